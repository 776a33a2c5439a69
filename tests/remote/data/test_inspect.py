import json

import numpy as np
import pytest

from dflashctl_remote.data.inspect import inspect, mask_spans
from dflashctl_remote.data.tokenize import tokenize
from dflashctl_remote.spec.data import InspectSpec, TokenizeSpec
from dflashctl_remote.spec.errors import BadInput


def row(answer, category=None):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "category": category}


@pytest.fixture
def report_of(tmp_path, jsonl, chatml_target):
    """Tokenise these rows, then inspect them."""

    def _report(rows, *, target=chatml_target, **options):
        dataset = str(tmp_path / "dataset")
        spec = TokenizeSpec(target=str(chatml_target), input=str(jsonl(rows)), output=dataset)
        tokenize(spec, lambda done, total: None)
        return inspect(InspectSpec(dataset=dataset, target=str(target), output="unused", **options))

    return _report


def test_spans_show_what_is_trained_on_and_where_blocks_may_start(report_of):
    (document,) = report_of([row("Hello there")]).documents
    assert [(s.text, s.is_supervised, s.is_anchor_candidate) for s in document.spans] == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False, False),
        ("Hello there", True, True),
        ("<|im_end|>", True, False),
    ]
    assert sum(s.num_tokens for s in document.spans) == document.num_tokens
    assert document.num_anchor_candidates == document.num_supervised_tokens - 1


def test_characters_of_several_tokens_do_not_break(report_of):
    (document,) = report_of([row("Ж中😀 \ufffd Ж")]).documents
    assert document.spans[1].text == "Ж中😀 \ufffd Ж"


@pytest.mark.parametrize("split", range(1, 8))
def test_character_across_a_boundary_stands_whole_in_the_later_span(chatml, split):
    ids = np.array(chatml.tokenizer("a😀中")["input_ids"])
    assert len(ids) == 8
    spans = mask_spans(ids, np.arange(8) >= split, chatml.tokenizer)
    assert "".join(s.text for s in spans) == "a😀中"


def test_totals_count_all_documents(report_of):
    report = report_of([row("Hello", "chat"), row("Hello there " * 9, "chat"), row("x")])
    info = report.info
    assert report.categories == {"chat": 2, "": 1}
    assert report.supervised_share == info.num_supervised_tokens / info.num_tokens
    assert report.length_p50_tokens < report.length_p90_tokens == report.length_max_tokens
    assert report.length_max_tokens == info.max_document_tokens


def test_packing_is_reported_when_asked(report_of):
    rows = [row("Hello")]
    assert report_of(rows).packing is None
    packing = report_of(rows, tokens_per_batch=64).packing
    assert (packing.num_rows, packing.padded_waste_share) == (1, 0)


def test_document_that_is_not_there_is_refused(report_of):
    with pytest.raises(BadInput, match="which has 0 to 0"):
        report_of([row("Hello")], documents=(1,))


def test_another_tokenizer_is_refused(report_of, target_folder, chatml_target):
    other = target_folder(None)
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["added_tokens"].append({**vocabulary["added_tokens"][0], "id": 340, "content": "<|x|>"})
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(BadInput, match="was made with the tokenizer of"):
        report_of([row("Hello")], target=other)
