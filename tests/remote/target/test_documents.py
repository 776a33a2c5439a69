import pytest
import torch

from dflashctl_remote.target.documents import Documents, document_attention

CPU = torch.device("cpu")


def test_what_is_left_of_the_rows_is_a_document_of_padding() -> None:
    documents = Documents.of((3, 2), num_rows=9, device=CPU)
    assert documents.lengths == (3, 2, 4)
    assert documents.positions_T.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert documents.bounds.tolist() == documents.bounds_cpu.tolist() == [0, 3, 5, 9]


def test_documents_that_fill_the_rows_have_no_padding() -> None:
    assert Documents.of((3, 2), num_rows=5, device=CPU).lengths == (3, 2)


@pytest.mark.parametrize("num_key_value_heads", [1, 2, 4])
def test_attention_is_that_of_a_mask_of_documents_and_order(num_key_value_heads: int) -> None:
    torch.manual_seed(0)
    documents = Documents.of((7, 1, 12), num_rows=25, device=CPU)
    q_THC = torch.randn(25, 4, 16, dtype=torch.float64)
    k_TJC, v_TJC = (torch.randn(25, num_key_value_heads, 16, dtype=torch.float64) for _ in range(2))
    of_T = torch.arange(4).repeat_interleave(torch.tensor(documents.lengths))
    mask_TT = (of_T[:, None] == of_T) & torch.ones(25, 25, dtype=torch.bool).tril()
    k_THC, v_THC = (x.repeat_interleave(4 // num_key_value_heads, dim=1) for x in (k_TJC, v_TJC))
    scores_HTT = torch.einsum("qhc,khc->hqk", q_THC, k_THC) * 0.3
    weights_HTT = scores_HTT.masked_fill(~mask_TT, -torch.inf).softmax(dim=-1)
    expected = torch.einsum("hqk,khc->qhc", weights_HTT, v_THC)
    got = document_attention(q_THC, k_TJC, v_TJC, documents, scale=0.3)
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)
