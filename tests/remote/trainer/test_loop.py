import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflashctl_remote.data.pack import PackedRow, pack
from dflashctl_remote.data.shards import Dataset
from dflashctl_remote.drafter.checkpoint import load_drafter
from dflashctl_remote.spec.errors import BadInput, TrainingFailed
from dflashctl_remote.spec.events import CheckpointSaved, Event, EventLog, Step
from dflashctl_remote.spec.manifest import read_manifest, verify, write_manifest
from dflashctl_remote.spec.train import BatchSpec, ObjectiveSpec, OptimSpec, RunRecord
from dflashctl_remote.trainer.assembly import draft, open_source
from dflashctl_remote.trainer.checkpoint import Newest, TrainerState, complete_steps
from dflashctl_remote.trainer.loop import Outcome, Running, train, train_step
from dflashctl_remote.trainer.replicas import Replicas
from dflashctl_remote.trainer.saving import Saving
from dflashctl_remote.trainer.setup import Parts, prepare, settle_torch
from dflashctl_remote.trainer.stop import StopRequest


class Reacting(EventLog):
    """An event log with something to do after each event."""

    def __init__(self, path: Path, at_event: Callable[[Event], None]) -> None:
        super().__init__(path)
        self._at_event = at_event

    def emit(self, event: Event) -> None:
        super().emit(event)
        self._at_event(event)


def run(record: RunRecord, folder: Path, at_event: Callable[[Event], None] = lambda event: None) -> Outcome:
    folder.mkdir(exist_ok=True)
    with closing(Reacting(folder / "events.jsonl", at_event)) as events:
        return train(record, folder, events)


def losses(folder: Path) -> dict[int, float]:
    """Last loss of each step in events.jsonl, as readers take it."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {event["step"]: event["loss"] for event in events if event["kind"] == "step"}


def notices(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in events if event["kind"] == "notice"]


def parts_of(record: RunRecord, folder: Path) -> tuple[Parts, TrainerState]:
    """A new run's parts; its checkpoints go to `folder`."""
    settle_torch(record.train)
    with closing(EventLog(folder / "events.jsonl")) as events:
        return prepare(record, folder, Newest(None, ()), events)


@contextmanager
def running(parts: Parts, state: TrainerState, folder: Path) -> Iterator[Running]:
    """The stages, begun where the state stands; nothing is saved."""
    with (
        closing(EventLog(folder / "events.jsonl")) as events,
        StopRequest(folder) as stop,
        Saving(parts, events) as saving,
        Replicas(parts.drafters, draft(parts)) as replicas,
        open_source(parts, state.batch) as source,
    ):
        yield Running(parts, source, replicas, stop, saving)


def gradients(parts: Parts, num_batches: int) -> dict[str, torch.Tensor]:
    """Of the weighted mean over these batches."""
    (drafter,) = parts.drafters
    drafter.zero_grad(set_to_none=True)
    with open_source(parts, 0) as source:
        sums = [draft(parts)(0, source.next()) for _ in range(num_batches)]
    weight_sum = sum(one.read().weight_sum for one in sums)
    return {name: p.grad / weight_sum for name, p in drafter.named_parameters()}


class FixedRows:
    """A plan of given rows, over and over."""

    def __init__(self, *rows: PackedRow) -> None:
        self._rows = rows

    def row(self, batch: int) -> PackedRow:
        return self._rows[batch % len(self._rows)]

    def epoch_of(self, batch: int) -> float:
        return batch / len(self._rows)


class Killed(BaseException):
    """Stands for SIGKILL inside one process: nothing of the trainer catches it."""


def kill_after(step: int) -> Callable[[Event], None]:
    def at_event(event: Event) -> None:
        if isinstance(event, Step) and event.step == step:
            raise Killed

    return at_event


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("unbroken")


@pytest.fixture
def unbroken_losses(unbroken, make_record) -> dict[int, float]:
    """Of a run of make_record() that nothing interrupts."""
    if not (unbroken / "events.jsonl").exists():
        run(make_record(), unbroken)
    return losses(unbroken)


def test_run_reports_every_step_and_ends_with_its_checkpoint(unbroken, unbroken_losses):
    assert list(unbroken_losses) == [1, 2, 3, 4, 5, 6, 7]
    assert list(complete_steps(unbroken / "checkpoints")) == [0, 3, 6, 7]


def test_step_0_holds_the_weights_before_training(unbroken, unbroken_losses, make_record, tmp_path):
    parts, _ = parts_of(make_record(), tmp_path)
    (drafter,) = parts.drafters
    saved = load_drafter(unbroken / "checkpoints/step-00000000", device=parts.device, dtype=torch.float32)
    for mine, theirs in zip(drafter.parameters(), saved.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_step_event_counts_real_tokens_and_anchors(make_record, tmp_path):
    record = make_record(optim=OptimSpec(accumulation=1), batch=BatchSpec(tokens_per_batch=128, block_ratio=0.5))
    parts, state = parts_of(record, tmp_path)
    with running(parts, state, tmp_path) as stages:
        after, event = train_step(stages, state, 0.0)
    num_tokens = sum(parts.plan.row(0).lengths)
    assert parts.num_anchors == event.num_anchors == 16  # 0.5 * 128 / 4
    assert event.block_ratio == pytest.approx(16 * 4 / num_tokens)
    assert (after.step, after.batch, event.batch) == (1, 1, 1)
    assert len(event.accuracy_by_slot) == 3


def test_loss_of_a_row_falls_as_it_is_learnt_by_heart(make_record, tmp_path):
    record = make_record(num_steps=40, optim=OptimSpec(learning_rate=1e-2, weight_decay=0.0))
    parts, state = parts_of(record, tmp_path)
    parts = replace(parts, plan=FixedRows(parts.plan.row(0)))
    found = []
    with running(parts, state, tmp_path) as stages:
        for _ in range(record.train.num_steps):
            state, event = train_step(stages, state, 0.0)
            found.append(event.loss)
    assert found[-1] < 0.5 * found[0]


@pytest.mark.parametrize("seed", range(5))
def test_killed_and_resumed_run_repeats_the_unbroken_one_to_the_bit(make_record, unbroken_losses, tmp_path, seed):
    draw = random.Random(seed)
    for killed_at in sorted(draw.sample(range(1, 7), k=draw.randint(1, 3))):
        with pytest.raises(Killed):
            run(make_record(), tmp_path, kill_after(killed_at))
    run(make_record(), tmp_path)
    assert losses(tmp_path) == unbroken_losses


def test_resumed_run_repeats_context_noise_to_the_bit(make_record, tmp_path):
    record = make_record(objective=ObjectiveSpec(context_noise_std=0.2), num_steps=5)
    run(record, tmp_path / "whole")
    with pytest.raises(Killed):
        run(record, tmp_path / "broken", kill_after(4))
    run(record, tmp_path / "broken")
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")


def test_resumed_run_in_bf16_repeats_the_unbroken_one(make_record, tmp_path):
    record = make_record(dtype="bfloat16", num_steps=5)
    run(record, tmp_path / "whole")
    with pytest.raises(Killed):
        run(record, tmp_path / "broken", kill_after(5))
    run(record, tmp_path / "broken")
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    mine, theirs = (
        load_file(tmp_path / f / "checkpoints/step-00000005/state/optimizer.safetensors") for f in ("whole", "broken")
    )
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_resume_keeps_the_events_before_it_and_says_where_it_starts(make_record, tmp_path):
    with pytest.raises(Killed):
        run(make_record(), tmp_path, kill_after(5))
    run(make_record(), tmp_path)
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "events.jsonl").read_text().splitlines()
        if '"kind":"step"' in line
    ]
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert "resuming from step-00000003 (step 3 of 7)" in notices(tmp_path)


def test_a_run_says_how_its_target_runs_packed_rows(make_record, tmp_path):
    run(make_record(num_steps=1), tmp_path)
    assert "target: one pass over packed documents, Gated DeltaNet in torch" in notices(tmp_path)


def test_training_draws_nothing_from_the_global_generator(make_record, tmp_path):
    parts, state = parts_of(make_record(objective=ObjectiveSpec(context_noise_std=0.1)), tmp_path)
    before = torch.get_rng_state()
    with running(parts, state, tmp_path) as stages:
        train_step(stages, state, 0.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_two_accumulated_rows_give_the_gradient_of_one_row_with_all_their_documents(make_record, tmp_path):
    parts, _ = parts_of(make_record(), tmp_path)
    documents = [parts.plan.documents_of(batch) for batch in range(2)]
    dataset = Dataset.open(Path(parts.spec.dataset))

    def row_of(indices: Sequence[int], size: int) -> PackedRow:
        return pack([dataset.tokens(int(i)) for i in indices], size)

    # More anchors than there are candidates: every candidate becomes one, however the documents are packed.
    two = replace(parts, num_anchors=256, plan=FixedRows(*(row_of(indices, 128) for indices in documents)))
    one = replace(parts, num_anchors=256, plan=FixedRows(row_of([*documents[0], *documents[1]], 256)))
    apart, together = gradients(two, 2), gradients(one, 1)
    for name, gradient in together.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-4, atol=1e-7)


def test_same_command_on_a_finished_run_says_so_and_trains_nothing(unbroken, unbroken_losses, make_record):
    num_events = len((unbroken / "events.jsonl").read_text().splitlines())
    outcome = run(make_record(), unbroken)
    assert (outcome.state.step, outcome.exit_code, outcome.stop_reason) == (7, 0, None)
    added = [json.loads(line) for line in (unbroken / "events.jsonl").read_text().splitlines()[num_events:]]
    assert [event["message"] for event in added] == ["this run is finished: step-00000007 is its last checkpoint"]


def test_stop_file_saves_a_checkpoint_and_is_taken(make_record, unbroken_losses, tmp_path):
    def ask(event: Event) -> None:
        if isinstance(event, Step) and event.step == 2:
            (tmp_path / "stop.requested").write_text('{"who": "anna"}')

    outcome = run(make_record(), tmp_path, ask)
    assert (outcome.stop_reason, outcome.exit_code) == ("asked to stop by anna", 0)
    assert outcome.checkpoint == tmp_path / "checkpoints/step-00000002"
    verify(outcome.checkpoint, "checkpoint")
    assert run(make_record(), tmp_path).stop_reason is None
    assert losses(tmp_path) == unbroken_losses


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_the_first_step_leaves_a_resumable_folder(make_record, unbroken_losses, tmp_path, number):
    def interrupt(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.step == 0:
            os.kill(os.getpid(), number)

    outcome = run(make_record(), tmp_path, interrupt)
    assert (outcome.exit_code, outcome.state.step) == (130, 0)
    assert outcome.checkpoint == tmp_path / "checkpoints/step-00000000"
    run(make_record(), tmp_path)
    assert losses(tmp_path) == unbroken_losses


def test_signal_between_the_batches_of_a_step_drops_the_step_and_changes_nothing(make_record, tmp_path):
    parts, state = parts_of(make_record(), tmp_path)
    (drafter,) = parts.drafters
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    with running(parts, state, tmp_path) as stages:
        os.kill(os.getpid(), signal.SIGINT)
        assert train_step(stages, state, 0.0) is None
    assert all(torch.equal(p, before[name]) for name, p in drafter.named_parameters())
    assert all(p.grad is None for p in drafter.parameters())


def test_signal_after_a_step_saves_that_step(make_record, unbroken_losses, tmp_path):
    def interrupt(event: Event) -> None:
        if isinstance(event, Step) and event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = run(make_record(), tmp_path, interrupt)
    assert (outcome.stop_reason, outcome.exit_code) == ("interrupted (Ctrl-C)", 130)
    assert outcome.checkpoint == tmp_path / "checkpoints/step-00000004"
    run(make_record(), tmp_path)
    assert losses(tmp_path) == unbroken_losses


def test_signal_while_saving_lets_the_save_end(make_record, unbroken_losses, tmp_path):
    """An audit hook sees the checkpoint's files being opened: the signal falls between two of them."""
    asked = []

    def at_open(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not asked and ".step-00000003.part" in str(arguments[0]):
            asked.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    sys.addaudithook(at_open)  # cannot be removed; does nothing after its signal
    outcome = run(make_record(), tmp_path)
    assert asked
    assert (outcome.stop_reason, outcome.exit_code) == ("terminated (SIGTERM)", 130)
    assert outcome.checkpoint == tmp_path / "checkpoints/step-00000003"
    verify(outcome.checkpoint, "checkpoint")
    run(make_record(), tmp_path)
    assert losses(tmp_path) == unbroken_losses


def test_second_ctrl_c_aborts_at_once_and_the_run_resumes(make_record, unbroken_losses, tmp_path):
    def interrupt_twice(event: Event) -> None:
        if isinstance(event, Step) and event.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(make_record(), tmp_path, interrupt_twice)
    assert list(complete_steps(tmp_path / "checkpoints")) == [0, 3]
    run(make_record(), tmp_path)
    assert losses(tmp_path) == unbroken_losses


def test_repeated_sigterm_still_saves(make_record, tmp_path):
    def terminate_twice(event: Event) -> None:
        if isinstance(event, Step) and event.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    assert run(make_record(), tmp_path, terminate_twice).state.step == 2


def test_poisoned_weight_stops_the_run_and_names_the_last_good_checkpoint(make_record, tmp_path):
    with pytest.raises(Killed):
        run(make_record(), tmp_path, kill_after(4))
    poison(tmp_path / "checkpoints/step-00000003")
    contents = {p: p.read_bytes() for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()}
    with pytest.raises(TrainingFailed, match=r"the loss is nan in step 4 .*last good checkpoint is .*step-00000003"):
        run(make_record(), tmp_path)
    assert contents == {p: p.read_bytes() for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()}


def test_weights_that_are_not_finite_are_never_published(make_record, tmp_path):
    parts, state = parts_of(make_record(), tmp_path)
    with closing(EventLog(tmp_path / "events.jsonl")) as events, Saving(parts, events) as saving:
        saving.save(state)
        saving.tell(wait=True)
        with torch.no_grad():
            parts.drafters[0].fc.weight[0, 0] = float("inf")
        with pytest.raises(TrainingFailed, match=r"fc\.weight is not finite after step 1.*step-00000000"):
            saving.save(state.model_copy(update={"step": 1}))
    assert list(complete_steps(tmp_path)) == [0]


def test_resume_with_another_objective_is_refused(make_record, tmp_path):
    with pytest.raises(Killed):
        run(make_record(), tmp_path, kill_after(4))
    with pytest.raises(BadInput, match=r"objective\.gamma"):
        run(make_record(objective=ObjectiveSpec(gamma=2.0)), tmp_path)


def test_settings_may_change_while_nothing_was_trained(make_record, tmp_path):
    with pytest.raises(Killed):
        run(make_record(), tmp_path, kill_after(1))
    assert run(make_record(num_steps=1, seed=6), tmp_path).state.step == 1


def test_dataset_of_another_tokenizer_is_refused(make_record, tmp_path, target_folder):
    other = tmp_path / "other"
    other.mkdir()
    for file in target_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "tokenizer.json").write_bytes((target_folder / "tokenizer.json").read_bytes() + b"\n")
    with pytest.raises(BadInput, match="was made with the tokenizer of"):
        run(make_record(target=str(other)), tmp_path / "run")


def test_batch_without_room_for_a_block_is_refused(make_record, tmp_path):
    with pytest.raises(BadInput, match="no room for one block of 4"):
        run(make_record(batch=BatchSpec(tokens_per_batch=128, block_ratio=0.001)), tmp_path)


def poison(checkpoint: Path) -> None:
    """Put a NaN among the weights and make the manifest agree: a file that is whole and useless."""
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, path)
    about = read_manifest(checkpoint, "checkpoint").about
    write_manifest(checkpoint, "checkpoint", bundle_sha="b", about=about)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_gpu_run_trains_bf16_weights_over_fp32_masters_and_resumes_from_them(make_record, tmp_path):
    record = make_record(device="cuda")
    for name in ("whole", "again"):
        run(record, tmp_path / name)
    with pytest.raises(Killed):
        run(record, tmp_path / "broken", kill_after(5))
    assert run(record, tmp_path / "broken").state.dtype == "bfloat16"
    checkpoint = tmp_path / "broken/checkpoints/step-00000007"
    weights = load_file(checkpoint / "model.safetensors")
    state = load_file(checkpoint / "state/optimizer.safetensors")
    for name, weight in weights.items():
        master = state[f"master/{name}"]
        assert (weight.dtype, master.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(weight, master.to(torch.bfloat16))
    # To the bit is promised on a CPU; a GPU may add up gradients in another order, and then two whole runs differ too.
    whole, again, broken = (torch.tensor(list(losses(tmp_path / n).values())) for n in ("whole", "again", "broken"))
    noise, difference = (whole - again).abs().max(), (whole - broken).abs().max()
    print(f"run to run {noise:.2e}, resumed {difference:.2e}")
    assert difference <= max(3 * noise, torch.tensor(1e-3))
