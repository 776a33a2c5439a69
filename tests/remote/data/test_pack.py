import numpy as np
import pytest

from dflashctl_remote.data.pack import pack
from dflashctl_remote.data.shards import Document


def document(*ids):
    return Document(np.array(ids), np.array(ids) % 2 == 0)


def test_documents_lie_one_after_the_other_with_positions_from_0():
    row = pack([document(5, 6, 8), document(4, 3)], 7)
    assert row.input_ids_T.tolist() == [5, 6, 8, 4, 3, 0, 0]
    assert row.positions_T.tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert row.document_ids_T.tolist() == [0, 0, 0, 1, 1, -1, -1]
    assert row.is_supervised_T.tolist() == [False, True, True, True, False, False, False]
    assert row.lengths == (3, 2)


def test_padding_is_never_supervised_and_belongs_to_no_document():
    row = pack([document(2)], 4)
    assert not row.is_supervised_T[1:].any()
    assert (row.document_ids_T[1:] == -1).all()


def test_full_row_has_no_padding():
    assert (pack([document(1, 2), document(3)], 3).document_ids_T >= 0).all()


@pytest.mark.parametrize("documents", [[document(1, 2), document(3, 4)], [document(1), document()]])
def test_documents_that_do_not_fit_or_are_empty_are_a_mistake_of_the_caller(documents):
    with pytest.raises(AssertionError):
        pack(documents, 3)
