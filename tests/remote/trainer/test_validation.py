import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from dflashctl_remote.data.loader import BatchPlan
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.drafter.anchors import sample_anchors
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.objective import AttentionName, drafter_loss
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.evaluate.decode import speculative_greedy
from dflashctl_remote.spec.drafter import DrafterConfig
from dflashctl_remote.spec.events import Event, EventLog, Validated, parse_event
from dflashctl_remote.spec.manifest import read_manifest
from dflashctl_remote.spec.train import ObjectiveSpec, OptimSpec, RunRecord
from dflashctl_remote.spec.validation import ValidationSpec
from dflashctl_remote.target.load import Target
from dflashctl_remote.trainer.loop import train
from dflashctl_remote.trainer.optim import MasterAdamW
from dflashctl_remote.trainer.validation import Abandoned, HeldOut, hold_out, is_due, validate

T, MAX_LENGTH, NUM_ANCHORS = 128, 64, 16


@dataclass(frozen=True)
class Lent:
    drafter: Drafter
    target: Target
    ends: Target
    attention: AttentionName


@pytest.fixture
def run(hybrid_target: Target) -> Lent:
    config = DrafterConfig(
        hidden_size=64,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        vocab_size=300,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=512,
        layer_types=("full_attention",),
        sliding_window=None,
        is_causal=None,
        block_size=4,
        mask_token_id=3,
        tap_layers=(0, 2),
        num_target_layers=4,
        initializer_range=0.1,
    )
    drafter = Drafter(config)
    drafter.init_weights(seed=1)
    return Lent(drafter, hybrid_target, hybrid_target, "eager")


@pytest.fixture
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


@pytest.fixture
def held_out(dataset: Dataset, target_folder: Path) -> HeldOut:
    return choose(dataset, target_folder)


def choose(dataset: Dataset, target_folder: Path, /, **changes: object) -> HeldOut:
    spec = ValidationSpec.model_validate(
        {"held_out_share": 0.3, "num_rows": 2, "num_prompts": 6, "max_new_tokens": 12, **changes}
    )
    return hold_out(
        spec,
        dataset,
        target_folder,
        tokens_per_batch=T,
        max_length_tokens=MAX_LENGTH,
        num_anchors=NUM_ANCHORS,
        max_positions=1024,
    )


def without_times(event: Validated) -> Validated:
    return event.model_copy(update={"at_s": 0.0, "seconds_s": 0.0})


def test_a_validation_tells_all_that_it_measured(run: Lent, held_out: HeldOut) -> None:
    event = validate(run, held_out, step=5)
    assert (event.step, event.num_rows, event.num_prompts) == (5, 2, 6)
    assert len(event.accuracy_by_slot) == 3
    assert event.loss > 0
    assert event.tau is not None and event.tau_low is not None and event.tau_high is not None
    assert 1 <= event.tau_low <= event.tau <= event.tau_high <= 4
    assert event.num_verify_steps > 0
    assert event.parity.verdict == "agree"
    assert parse_event(event.model_dump_json()) == event


def test_the_same_weights_give_the_same_validation(run: Lent, held_out: HeldOut) -> None:
    assert without_times(validate(run, held_out, step=5)) == without_times(validate(run, held_out, step=5))


def test_tau_is_that_of_free_running_decoding(run: Lent, held_out: HeldOut) -> None:
    event = validate(run, held_out, step=0)
    steps: list[int] = []
    for prompt in held_out.prompts:
        decoded = speculative_greedy(
            run.target,
            DraftSession(run.drafter, run.target),
            prompt,
            tap_layers=(0, 2),
            block_size=4,
            max_new_tokens=12,
            eos_token_ids={2},
        )
        steps += decoded.accepted_per_step
    assert event.tau == pytest.approx(sum(steps) / len(steps))
    assert event.num_verify_steps == len(steps)


def test_loss_and_accuracies_are_the_trainers_own_on_these_rows(run: Lent, held_out: HeldOut) -> None:
    event = validate(run, held_out, step=0)
    losses = [
        drafter_loss(
            run.drafter, run.target, row, run.target.states(row, (0, 2)), anchors, ObjectiveSpec(), attention="eager"
        )
        for row, anchors in zip(held_out.rows, held_out.anchors, strict=True)
    ]
    loss = sum(one.loss_sum.item() for one in losses) / sum(one.weight_sum for one in losses)
    assert event.loss == pytest.approx(loss, rel=1e-5)
    correct = sum(one.correct_by_slot_K for one in losses)[1:]
    scored = sum(one.scored_by_slot_K for one in losses)[1:]
    assert event.accuracy_by_slot == pytest.approx((correct / scored).tolist())


def trained(run: Lent, plan: BatchPlan, at_step: Callable[[int], None]) -> dict[str, torch.Tensor]:
    """Weights after 4 steps of 2 batches each."""
    optimizer = MasterAdamW(run.drafter, OptimSpec())
    for step in range(4):
        weight_sum = 0.0
        for batch in (2 * step, 2 * step + 1):
            row = plan.row(batch)
            anchors = sample_anchors(row, num_anchors=NUM_ANCHORS, seed=5, batch=batch)
            states = run.target.states(row, (0, 2))
            loss = drafter_loss(run.drafter, run.target, row, states, anchors, ObjectiveSpec(), attention="eager")
            loss.loss_sum.backward()
            weight_sum += loss.weight_sum
            if batch == 2 * step:
                at_step(step)  # with gradients that wait
        optimizer.take_gradients(weight_sum)
        optimizer.step(1e-3)
    return {name: value.clone() for name, value in run.drafter.state_dict().items()}


def test_a_run_with_validations_ends_with_the_same_bits(run: Lent, dataset: Dataset, held_out: HeldOut) -> None:
    plan = BatchPlan(dataset, tokens_per_batch=T, max_length_tokens=MAX_LENGTH, seed=5, excluded=held_out.excluded)
    without = trained(run, plan, lambda step: None)
    run.drafter.init_weights(seed=1)
    events: list[Validated] = []
    after = trained(run, plan, lambda step: events.append(validate(run, held_out, step=step)))
    assert len(events) == 4
    for name, value in without.items():
        assert torch.equal(value, after[name]), name


def test_a_stop_is_heard_between_two_prompts(run: Lent, held_out: HeldOut) -> None:
    asked = iter([False] * 4 + [True])
    with pytest.raises(Abandoned):
        validate(run, held_out, step=1, is_asked_to_stop=lambda: next(asked))


def test_no_generator_mode_or_gradient_is_touched(run: Lent, held_out: HeldOut) -> None:
    run.drafter.train()
    run.drafter.fc.weight.grad = torch.ones_like(run.drafter.fc.weight)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    validate(run, held_out, step=1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
    assert run.drafter.training
    assert torch.equal(run.drafter.fc.weight.grad, torch.ones_like(run.drafter.fc.weight))
    assert all(p.grad is None for name, p in run.drafter.named_parameters() if name != "fc.weight")


def test_what_is_held_out_is_the_same_each_time_and_never_trained_on(
    dataset: Dataset, target_folder: Path, held_out: HeldOut
) -> None:
    again = choose(dataset, target_folder)
    assert held_out.prompts == again.prompts
    assert all(np.array_equal(a.indices_N, b.indices_N) for a, b in zip(held_out.anchors, again.anchors, strict=True))
    plan = BatchPlan(dataset, tokens_per_batch=T, max_length_tokens=MAX_LENGTH, seed=5, excluded=held_out.excluded)
    batches = range(next(b for b in range(1000) if plan.epoch_of(b) >= 1))
    seen = {int(i) for batch in batches for i in plan.documents_of(batch)}
    assert len(held_out.excluded) == 7  # 0.3 * 24
    assert not seen & set(held_out.excluded.tolist())
    assert seen | set(held_out.excluded.tolist()) == set(range(24))


def test_another_seed_holds_out_others(dataset: Dataset, target_folder: Path, held_out: HeldOut) -> None:
    assert choose(dataset, target_folder, seed=1).excluded.tolist() != held_out.excluded.tolist()


def test_a_small_dataset_is_left_whole_and_that_is_said(dataset: Dataset, target_folder: Path) -> None:
    nothing = choose(dataset, target_folder, held_out_share=0.02)
    assert nothing.is_empty
    assert len(nothing.excluded) == 0
    assert "nothing is validated" in nothing.notices[-1]


def test_a_folder_of_its_own_takes_only_its_prompts_from_training(
    dataset: Dataset, dataset_folder: Path, target_folder: Path
) -> None:
    """The same dataset stands for one whose prompts are all in the training data."""
    other = choose(dataset, target_folder, dataset=str(dataset_folder), num_documents=5)
    assert len(other.excluded) == 5
    assert any("5 documents with prompts of" in notice for notice in other.notices)


@pytest.mark.parametrize(
    ("every", "step", "spent_s", "last_s", "is_it"),
    [
        (None, 500, 0.0, 0.0, True),  # the first, whatever it will take
        (None, 750, 0.0, 0.0, False),  # no checkpoint there
        (None, 1000, 10.0, 10.0, True),  # 20 s of 1000 s
        (None, 1000, 11.0, 10.0, False),
        (None, 2000, 900.0, 900.0, True),  # the last step
        (300, 600, 900.0, 900.0, True),  # asked for
        (300, 500, 0.0, 0.0, False),
        (300, 2000, 0.0, 0.0, True),
    ],
)
def test_when_a_validation_is_due(every: int | None, step: int, spent_s: float, last_s: float, is_it: bool) -> None:
    spec = ValidationSpec(every_steps=every)
    due = is_due(
        spec,
        step=step,
        num_steps=2000,
        checkpoint_every_steps=500,
        spent_s=spent_s,
        last_s=last_s,
        elapsed_s=1000.0,
    )
    assert due is is_it


def test_a_target_without_chat_template_is_said(held_out: HeldOut) -> None:
    assert held_out.template is None
    assert any("leaves templates out" in notice for notice in held_out.notices)


def trained_run(record: RunRecord, folder: Path, at_event: Callable[[Event], None] = lambda event: None) -> list[Event]:
    """Of the whole trainer; the events of this start."""
    folder.mkdir(exist_ok=True)
    seen: list[Event] = []

    class Listening(EventLog):
        def emit(self, event: Event) -> None:
            super().emit(event)
            seen.append(event)
            at_event(event)

    with closing(Listening(folder / "events.jsonl")) as events:
        train(record, folder, events)
    return seen


def state_of(folder: Path) -> dict[str, bytes]:
    last = folder / "checkpoints/step-00000007"
    return {name: (last / name).read_bytes() for name in ("model.safetensors", "state/optimizer.safetensors")}


def often(every_steps: int) -> ValidationSpec:
    return ValidationSpec(every_steps=every_steps, held_out_share=0.3, num_rows=1, num_prompts=2, max_new_tokens=6)


def test_a_whole_run_that_validates_after_every_step_ends_with_the_bits_of_one_that_does_not(
    make_record: Callable[..., RunRecord], tmp_path: Path
) -> None:
    seldom = trained_run(make_record(validation=often(100)), tmp_path / "seldom")
    each = trained_run(make_record(validation=often(1)), tmp_path / "each")
    assert [e.step for e in seldom if isinstance(e, Validated)] == [7]
    assert [e.step for e in each if isinstance(e, Validated)] == [1, 2, 3, 4, 5, 6, 7]
    assert state_of(tmp_path / "each") == state_of(tmp_path / "seldom")
    taus = {e.step: e.tau for e in each if isinstance(e, Validated)}
    for step in (3, 6, 7):
        about = read_manifest(tmp_path / f"each/checkpoints/step-{step:08d}", "checkpoint").about
        assert about["tau"] == taus[step]


class Killed(BaseException):
    """Stands for SIGKILL inside one process."""


def test_a_run_killed_as_it_validates_and_resumed_ends_with_the_same_bits(
    make_record: Callable[..., RunRecord], tmp_path: Path
) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, Validated) and event.step == 5:
            raise Killed

    whole = trained_run(make_record(validation=often(5)), tmp_path / "whole")
    with pytest.raises(Killed):
        trained_run(make_record(validation=often(5)), tmp_path / "killed", kill)
    after = trained_run(make_record(validation=often(5)), tmp_path / "killed")
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole")

    def measured(events: list[Event]) -> list[Validated]:
        return [without_times(e) for e in events if isinstance(e, Validated)]

    assert measured(after) == measured(whole)
