"""Validation and the parity gate in bfloat16 with fla and compiled attention, where rounding parts the two ways.

Run there with `pytest -m gpu -s tests/remote/gpu/test_validation_on_gpu.py`: the last lines are what was equal.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import torch

from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.data.tokenize import tokenize
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.objective import AttentionName
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.evaluate.causes import Gate, check_parity
from dflashctl_remote.evaluate.decode import speculative_greedy
from dflashctl_remote.evaluate.parity import AsStepped, text_of
from dflashctl_remote.spec.data import TokenizeSpec
from dflashctl_remote.spec.drafter import DrafterSpec, resolve_drafter
from dflashctl_remote.spec.validation import ValidationSpec
from dflashctl_remote.target.load import Target, load_target
from dflashctl_remote.trainer.validation import HeldOut, hold_out, validate

ASSETS = Path(__file__).parents[3] / "dflashctl" / "assets"
DEMO_TARGET = ASSETS / "demo_target"
TAPS, BLOCK = (0, 1), 8

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


@dataclass(frozen=True)
class Lent:
    drafter: Drafter
    target: Target
    ends: Target
    attention: AttentionName


@pytest.fixture(scope="module")
def run() -> Lent:
    target = load_target(DEMO_TARGET, device="cuda", dtype="bfloat16")
    spec = DrafterSpec(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64, block_size=BLOCK, tap_layers=TAPS)
    drafter = Drafter(resolve_drafter(spec, target.shape))
    drafter.init_weights(seed=0)
    return Lent(drafter.to(device="cuda", dtype=torch.bfloat16), target, target, "flex")


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldOut]:
    folder = tmp_path_factory.mktemp("held-out")
    with gzip.open(ASSETS / "demo_data" / "responses-train.jsonl.gz", "rt") as lines:
        (folder / "rows.jsonl").write_text("".join(islice(lines, 200)))
    spec = TokenizeSpec(target=str(DEMO_TARGET), input=str(folder / "rows.jsonl"), output=str(folder / "dataset"))
    tokenize(spec, lambda done, total: None)
    yield hold_out(
        ValidationSpec(held_out_share=0.2, num_prompts=12, max_new_tokens=64),
        Dataset.open(folder / "dataset"),
        DEMO_TARGET,
        tokens_per_batch=2048,
        max_length_tokens=512,
        num_anchors=256,
        max_positions=2048,
    )


def test_the_gate_holds_in_bfloat16_between_compiled_rows_and_decoding(run: Lent, held_out: HeldOut) -> None:
    event = validate(run, held_out, step=1)
    again = validate(run, held_out, step=1)
    parity = event.parity
    print(
        f"\ndrafts {parity.num_slots_equal} of {parity.num_slots}, labels {parity.num_labels_equal} of "
        f"{parity.num_labels}, tau {event.tau} [{event.tau_low}, {event.tau_high}], "
        f"first {event.seconds_s:.1f} s, then {again.seconds_s:.1f} s"
    )
    assert parity.verdict == "agree", parity.says
    assert event.tau is not None and again.tau is not None
    assert abs(again.tau - event.tau) < 0.05
    assert abs(again.loss - event.loss) < 0.01


def test_taps_one_layer_off_are_named_in_bfloat16_too(run: Lent, held_out: HeldOut) -> None:
    texts = []
    for prompt in held_out.prompts:
        out = speculative_greedy(
            run.target,
            DraftSession(run.drafter, run.target),
            prompt,
            tap_layers=tuple(tap + 1 for tap in TAPS),
            block_size=BLOCK,
            max_new_tokens=48,
            eos_token_ids=run.target.shape.eos_token_ids,
        )
        texts.append(text_of(prompt, out.tokens, out.accepted_per_step, out.proposals_per_step, block_size=BLOCK))
    path = AsStepped(run.drafter, run.ends, run.target, run.attention)
    gate = Gate(run.drafter, run.ends, run.target, path, row_tokens=2048, num_anchors=256)
    found = check_parity(gate, texts)
    print(f"\n{found.num_slots_equal} of {found.num_slots} drafts equal; {found.says}")
    assert (found.verdict, found.cause) == ("differ", "tap offset")
