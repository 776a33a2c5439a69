"""The step in groups against the loss in one graph: the same sums, the same gradients."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors, sample_anchors
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.drafter.noise import ContextNoise
from dflashctl_remote.drafter.objective import drafter_loss
from dflashctl_remote.drafter.scored import Scored, scored_slots
from dflashctl_remote.drafter.step import StepTotals, drafter_step, group_size
from dflashctl_remote.spec.objective import ObjectiveSpec

PLAIN = ObjectiveSpec()


@dataclass(frozen=True)
class Batch:
    row: PackedRow
    anchors: Anchors
    taps_TF: Tensor
    final_TE: Tensor
    scored: Scored


@dataclass(frozen=True)
class Ends:
    embedding_VE: Tensor
    head_VE: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding_VE[ids]


@dataclass(frozen=True)
class World:
    """A drafter and the ends of its target, fp64."""

    drafter: Drafter
    ends: Ends

    def batch(self, row: PackedRow, anchors: Anchors, states: Any, objective: ObjectiveSpec = PLAIN) -> Batch:
        taps_TF, final_TE = states.taps_TF.double(), states.final_TE.double()
        size = self.drafter.config.block_size
        scored = scored_slots(self.ends, row, final_TE, anchors, objective, size)
        return Batch(row, anchors, taps_TF, final_TE, scored)

    def by_groups(
        self, *batches: Batch, objective: ObjectiveSpec = PLAIN, **options: Any
    ) -> tuple[StepTotals, dict[str, Tensor]]:
        self.drafter.zero_grad(set_to_none=True)
        sums = [
            drafter_step(self.drafter, self.ends, batch, objective, attention="eager", **options) for batch in batches
        ]
        total = sums[0]
        for other in sums[1:]:
            total = total + other
        return total.read(), self._gradients()

    def in_one_graph(
        self, *batches: Batch, objective: ObjectiveSpec = PLAIN, noise: Any = None
    ) -> tuple[float, dict[str, Tensor]]:
        self.drafter.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for batch in batches:
            loss = drafter_loss(
                self.drafter, self.ends, batch.row, batch, batch.anchors, objective, attention="eager", noise=noise
            )
            loss.loss_sum.backward()
            loss_sum += loss.loss_sum.item()
        return loss_sum, self._gradients()

    def _gradients(self) -> dict[str, Tensor]:
        return {name: p.grad.clone() for name, p in self.drafter.named_parameters() if p.grad is not None}


KINDS: dict[str, dict[str, object]] = {
    "full": {},
    "mixed": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6},
}


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, make_config: Any, make_drafter: Any, ends: Any) -> World:
    drafter = make_drafter(make_config(**KINDS[request.param])).double()
    return World(drafter, Ends(ends.embedding_VE.double(), ends.head_VE.double()))


@pytest.fixture
def row(make_row: Callable[..., PackedRow]) -> PackedRow:
    return make_row((23, 9, 17), total=56)


@pytest.fixture
def batch(world: World, row: PackedRow, make_states: Any) -> Batch:
    """11 anchors and three that are padding."""
    anchors = with_padding(sample_anchors(row, num_anchors=11, seed=4, batch=9), 3)
    return world.batch(row, anchors, make_states(row, world.drafter.config))


def with_padding(anchors: Anchors, number: int) -> Anchors:
    def longer(values: np.ndarray, fill: int) -> np.ndarray:
        return np.concatenate((values, np.full(number, fill)))

    return Anchors(
        longer(anchors.indices_N, 0), longer(anchors.positions_N, 0), longer(anchors.documents_N, -2), anchors.num_real
    )


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (got[name] - gradient).norm() <= 1e-10 * gradient.norm(), name


@pytest.mark.parametrize("anchors_per_group", [1, 3, 4, 14, 100])
def test_gradients_and_sums_are_those_of_one_graph(world: World, batch: Batch, anchors_per_group: int) -> None:
    loss, wanted = world.in_one_graph(batch)
    totals, got = world.by_groups(batch, anchors_per_group=anchors_per_group)
    assert set(got) == {name for name, _ in world.drafter.named_parameters()}
    assert_same(got, wanted)
    assert totals.loss_sum == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("anchors_per_group", [1, 4, 100])
def test_what_a_trimmed_step_leaves_out_changes_nothing(world: World, batch: Batch, anchors_per_group: int) -> None:
    """Projections of equal rows in the first layer, slot 0 behind the last layer's attention."""
    loss, wanted = world.in_one_graph(batch)
    totals, got = world.by_groups(batch, anchors_per_group=anchors_per_group, trims=True)
    assert_same(got, wanted)
    assert totals.loss_sum == pytest.approx(loss, rel=1e-6)


def test_a_trimmed_step_of_one_layer(
    make_config: Any, make_drafter: Any, ends: Any, row: Any, make_states: Any
) -> None:
    """The first layer and the last in one."""
    drafter = make_drafter(make_config(num_layers=1, layer_types=("full_attention",))).double()
    world = World(drafter, Ends(ends.embedding_VE.double(), ends.head_VE.double()))
    batch = world.batch(row, sample_anchors(row, num_anchors=5, seed=4, batch=9), make_states(row, drafter.config))
    assert_same(world.by_groups(batch, trims=True)[1], world.in_one_graph(batch)[1])


def test_the_counts_are_those_of_one_graph(world: World, batch: Batch) -> None:
    one = drafter_loss(world.drafter, world.ends, batch.row, batch, batch.anchors, PLAIN, attention="eager")
    totals, _ = world.by_groups(batch, anchors_per_group=4)
    assert totals.weight_sum == pytest.approx(one.weight_sum)
    assert list(totals.scored_by_slot_K) == one.scored_by_slot_K.tolist()
    assert list(totals.correct_by_slot_K) == one.correct_by_slot_K.tolist()


@pytest.mark.parametrize(
    "objective",
    [ObjectiveSpec(weighting="d_pace"), ObjectiveSpec(weighting="streak"), ObjectiveSpec(loss="soft_kl")],
    ids=["d_pace", "streak", "soft_kl"],
)
def test_losses_that_look_at_whole_blocks_do_not_notice_the_groups(
    world: World, row: PackedRow, make_states: Any, objective: ObjectiveSpec
) -> None:
    anchors = sample_anchors(row, num_anchors=13, seed=4, batch=9)
    batch = world.batch(row, anchors, make_states(row, world.drafter.config), objective)
    loss, wanted = world.in_one_graph(batch, objective=objective)
    totals, got = world.by_groups(batch, objective=objective, anchors_per_group=4)
    assert totals.loss_sum == pytest.approx(loss, rel=1e-6)
    assert_same(got, wanted)


def test_the_order_of_anchors_does_not_matter(world: World, batch: Batch, make_states: Any) -> None:
    order = np.random.default_rng(0).permutation(len(batch.anchors))
    anchors = batch.anchors
    shuffled = replace(
        anchors,
        indices_N=anchors.indices_N[order],
        positions_N=anchors.positions_N[order],
        documents_N=anchors.documents_N[order],
    )
    other = world.batch(batch.row, shuffled, make_states(batch.row, world.drafter.config))
    assert_same(world.by_groups(other, anchors_per_group=4)[1], world.by_groups(batch, anchors_per_group=4)[1])


def test_more_padding_at_the_end_of_the_row_does_not_matter(
    world: World, batch: Batch, make_row: Callable[..., PackedRow]
) -> None:
    longer = make_row((23, 9, 17), total=80)
    longer.input_ids_T[:56] = batch.row.input_ids_T
    stranger = torch.full((24, batch.taps_TF.shape[1]), 7.0, dtype=torch.float64)
    padded = replace(batch, row=longer, taps_TF=torch.cat((batch.taps_TF, stranger)))
    assert_same(world.by_groups(padded)[1], world.by_groups(batch)[1])


def test_batches_add_up(world: World, batch: Batch, row: PackedRow, make_states: Any) -> None:
    anchors = sample_anchors(row, num_anchors=9, seed=4, batch=10)
    other = world.batch(row, anchors, make_states(row, world.drafter.config))
    loss, wanted = world.in_one_graph(batch, other)
    totals, got = world.by_groups(batch, other, anchors_per_group=4)
    assert_same(got, wanted)
    assert totals.loss_sum == pytest.approx(loss, rel=1e-6)
    assert sum(totals.scored_by_slot_K) == int(batch.scored.counts_N.sum() + other.scored.counts_N.sum())


def test_noise_is_that_of_one_graph_and_leaves_labels_and_states_alone(world: World, batch: Batch) -> None:
    before = batch.taps_TF.clone()
    noise = ContextNoise("gaussian", std=0.3, seed=1, sequence=2)
    clean, of_clean = world.by_groups(batch)
    _, wanted = world.in_one_graph(batch, noise=noise)
    totals, got = world.by_groups(batch, noise=noise)
    assert_same(got, wanted)
    assert totals.loss_sum != clean.loss_sum and not torch.equal(got["fc.weight"], of_clean["fc.weight"])
    assert torch.equal(batch.taps_TF, before)
    assert totals.scored_by_slot_K == clean.scored_by_slot_K


def test_a_batch_without_a_scored_slot_leaves_no_gradient(world: World, row: PackedRow, make_states: Any) -> None:
    nobody = with_padding(Anchors(*(np.zeros(0, dtype=np.int64) for _ in range(3)), 0), 5)
    totals, got = world.by_groups(world.batch(row, nobody, make_states(row, world.drafter.config)))
    assert totals.loss_sum == totals.weight_sum == sum(totals.scored_by_slot_K) == 0
    assert not got


def test_groups_are_few_equal_and_of_whole_tiles() -> None:
    assert group_size(512, 256, 16) == 256
    assert group_size(520, 256, 16) == 176
    assert group_size(300, 256, 16) == 152
    assert group_size(5, 256, 16) == 5
    assert group_size(100, 60, 16) == 56
    assert group_size(7, 3, 16) == 3
    assert group_size(90, 1000, 10) == 96


def _needs_gpu(function: Any) -> Any:
    for mark in (
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        pytest.mark.filterwarnings("default"),
    ):
        function = mark(function)
    return function


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def on_gpu(world: World, batch: Batch, dtype: torch.dtype) -> tuple[World, Batch]:
    device = torch.device("cuda")

    def there(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype)

    ends = Ends(there(world.ends.embedding_VE), there(world.ends.head_VE))
    moved = replace(batch, taps_TF=there(batch.taps_TF), final_TE=there(batch.final_TE), scored=batch.scored.to(device))
    return World(world.drafter.to(device=device, dtype=dtype), ends), moved


@_needs_gpu
@pytest.mark.parametrize("attention", ["flex", "triton"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.bfloat16, 1e-1)], ids=str)
def test_on_a_gpu_the_step_gives_the_gradients_of_the_cpu(
    world: World, batch: Batch, dtype: torch.dtype, most: float, attention: Any, fresh_dynamo: None
) -> None:
    _, wanted = world.in_one_graph(batch)
    there, moved = on_gpu(world, batch, dtype)
    drafter_step(there.drafter, there.ends, moved, PLAIN, attention=attention, anchors_per_group=8)
    for name, parameter in there.drafter.named_parameters():
        assert parameter.grad is not None
        assert (parameter.grad.double().cpu() - wanted[name]).norm() <= most * wanted[name].norm(), name


@_needs_gpu
@pytest.mark.parametrize("attention", ["flex", "triton"])
def test_the_host_never_waits_for_the_device(world: World, batch: Batch, attention: Any, fresh_dynamo: None) -> None:
    """Labels included. The first step may wait: it compiles."""
    there, moved = on_gpu(world, batch, torch.bfloat16)
    final_TE = moved.final_TE

    def step() -> None:
        scored = scored_slots(there.ends, moved.row, final_TE, moved.anchors, PLAIN, there.drafter.config.block_size)
        drafter_step(
            there.drafter, there.ends, replace(moved, scored=scored), PLAIN, attention=attention, anchors_per_group=8
        )

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
