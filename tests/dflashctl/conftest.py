"""Recorded values and small children that the tests of the operator's side share."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dflashctl.transport.base import Job
from dflashctl.transport.local import LocalTransport
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.evaluate import EvalReport, Tau
from dflashctl_remote.spec.events import Queue, StageLoad, Step, Validated
from dflashctl_remote.spec.parity import Parity

OPENAI_STAND_IN = Path(__file__).parent / "openai_stand_in.py"
FAKE_BUNDLE = Path(__file__).parent / "fake_bundle"


@pytest.fixture
def fake_bundle():
    """A bundle whose train job only talks: see its docstring."""
    return FAKE_BUNDLE


@pytest.fixture
def transport():
    return LocalTransport(pause=lambda: None)


@pytest.fixture
def child(tmp_path):
    """A job that runs the given Python with the events file's path as its first argument."""

    def make(code: str, **changes) -> Job:
        events = tmp_path / "events.jsonl"
        fields = {
            "name": "child",
            "argv": (sys.executable, "-c", code, str(events)),
            "env": (),
            "events": events,
            "log": tmp_path / "log",
        }
        return Job(**{**fields, **changes})

    return make


@pytest.fixture
def step():
    def make(number: int, **changes) -> Step:
        fields = {
            "at_s": 1000.0 + number,
            "step": number,
            "num_steps": 100,
            "batch": number,
            "epoch": number / 50,
            "loss": 8.0 / number,
            "accuracy": 0.25,
            "accuracy_by_slot": (0.5, 0.25),
            "learning_rate": 6e-4,
            "grad_norm": 1.0,
            "num_anchors": 128,
            "num_scored_slots": 512,
            "context_tokens_per_s": 2345.0,
            "block_ratio": 2.0,
            "peak_memory_bytes": 3 * 2**30,
        }
        return Step(**{**fields, **changes})

    return make


@pytest.fixture
def in_line():
    """Of a step whose stages ran side by side, the target limiting."""
    shares = (("loader", 1, 0.02, 0.0, 0.98), ("target", 2, 0.97, 0.03, 0.0), ("drafter", 1, 0.6, 0.4, 0.0))
    return {
        "queues": (Queue(name="rows", depth=4, capacity=4), Queue(name="hidden states", depth=0, capacity=2)),
        "stages": tuple(
            StageLoad(name=name, count=count, busy=busy, starved=starved, held_up=held_up)
            for name, count, busy, starved, held_up in shares
        ),
        "limiting_stage": "target",
    }


@pytest.fixture
def validated():
    def make(number: int, **changes) -> Validated:
        fields = {
            "at_s": 1000.0 + number,
            "step": number,
            "loss": 2.0,
            "accuracy_by_slot": (0.5, 0.25),
            "num_rows": 4,
            "tau": 3.21,
            "tau_low": 2.95,
            "tau_high": 3.5,
            "tau_without_repeats": 3.1,
            "tau_of_lookup": 1.4,
            "repeated_token_share": 0.02,
            "num_prompts": 16,
            "num_verify_steps": 600,
            "parity": Parity(verdict="agree", num_slots=60, num_slots_equal=60, num_labels=24, num_labels_equal=24),
            "seconds_s": 12.0,
        }
        return Validated(**{**fields, **changes})

    return make


@pytest.fixture
def eval_report():
    def make(tau: float = 3.0, headline: float = 2.5, **changes) -> EvalReport:
        fields = {
            "checkpoint": "/runs/a/checkpoints/step-00000100",
            "step": 100,
            "target": "/targets/demo",
            "block_size": 8,
            "num_prompts": 24,
            "drafter": Tau(tau=tau, num_tokens=2000, num_verify_steps=700),
            "drafter_without_repeats": Tau(tau=headline, num_tokens=1800, num_verify_steps=690),
            "bigram_lookup": Tau(tau=1.4, num_tokens=2000, num_verify_steps=1400),
            "bigram_table": Tau(tau=1.7, num_tokens=2000, num_verify_steps=1170),
            "repeated_token_share": 0.06,
            "distinct_4gram_share": 0.81,
            "mean_answer_tokens": 83.3,
            "acceptance_by_slot": (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02),
            "num_greedy_checked": 2,
            "num_greedy_equal": 2,
            "wall_s": 40.0,
            "device": "cpu",
            "dtype": "float32",
        }
        return EvalReport(**{**fields, **changes})

    return make


@pytest.fixture
def dataset_info():
    return DatasetInfo(
        num_documents=300,
        num_tokens=36_738,
        num_supervised_tokens=18_332,
        num_skipped_rows=0,
        num_truncated=0,
        max_document_tokens=184,
        max_length_tokens=512,
        target="/targets/demo",
        tokenizer_sha256="a" * 64,
        template_sha256="b" * 64,
        input_sha256="c" * 64,
    )


@pytest.fixture
def openai_stand_in():
    """Makes servers that behave as they are told, and stops them: see openai_stand_in.py."""
    spec = importlib.util.spec_from_file_location("openai_stand_in", OPENAI_STAND_IN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = []

    def make(num_draft_tokens=0):
        made.append(module.StandIn(num_draft_tokens).start())
        return made[-1]

    yield make
    for server in made:
        server.stop()
