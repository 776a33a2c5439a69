from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from dflashctl.engines.prometheus import samples, total, total_by

# Lines as vLLM's CPU build printed them.
RECORDED = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 63.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 5.0
"""


def test_sums_over_engines():
    assert total(RECORDED, "vllm:spec_decode_num_drafts_total") == 63
    assert total_by(RECORDED, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position") == {"0": 12, "1": 3}


def test_a_name_that_does_not_occur_is_none_and_not_zero():
    assert total(RECORDED, "vllm:spec_decode_num_draft_tokens_total") is None


def test_lines_that_are_no_samples_are_left_out():
    assert list(samples("# TYPE x counter\n\nx nonsense\n<html>\n")) == []


def test_reads_what_the_reference_client_writes():
    registry = CollectorRegistry()
    Counter("a:drafts", "help", ["model_name"], registry=registry).labels('we "quote" {braces}, commas').inc(3)
    Gauge("running", "help", registry=registry).set(2)
    text = generate_latest(registry).decode()
    found = {sample.name: sample for sample in samples(text)}
    assert found["a:drafts_total"].value == 3
    assert set(found["a:drafts_total"].labels) == {"model_name"}
    assert found["running"].value == 2
