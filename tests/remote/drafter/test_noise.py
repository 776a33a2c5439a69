import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dflashctl_remote.drafter.anchors import sample_anchors
from dflashctl_remote.drafter.noise import ContextNoise, context_noise, noise_std_at, unit_noise
from dflashctl_remote.drafter.objective import drafter_loss
from dflashctl_remote.drafter.scored import scored_slots
from dflashctl_remote.spec.objective import LossName, NoiseName, ObjectiveSpec

CPU = torch.device("cpu")
KINDS: tuple[NoiseName, ...] = ("gaussian", "uniform")


def unit(kind: NoiseName = "gaussian", first: int = 0, rows: int = 64, width: int = 96, **which: int) -> torch.Tensor:
    return unit_noise(kind, first, rows, width, device=CPU, **{"seed": 3, "sequence": 5} | which)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [96, 95, 3])
def test_a_batch_made_in_pieces_equals_the_batch_made_at_once(kind: NoiseName, width: int) -> None:
    whole = unit(kind, width=width)
    pieces = [unit(kind, first=first, rows=rows, width=width) for first, rows in ((0, 1), (1, 20), (21, 43))]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_states_in_many_chunks_get_what_each_row_gets_alone(kind: NoiseName) -> None:
    """More elements than are made at a time."""
    states = torch.ones(40, 1 << 19)
    noise = ContextNoise(kind, 0.5, seed=3, sequence=5)
    found = noise.added_to(states, num_taps=4)
    for row in (0, 31, 32, 39):
        alone = unit(kind, first=row, rows=1, width=1 << 19)
        torch.testing.assert_close(found[row], 1 + 0.5 * alone[0])


def test_seed_batch_and_place_each_change_the_noise() -> None:
    base = unit()
    for other in (unit(seed=4), unit(sequence=6), unit(first=1), unit("uniform")):
        assert (other == base).float().mean() < 0.01
    assert torch.equal(unit(), base)


@pytest.mark.parametrize(("kind", "kurtosis"), [("gaussian", 3.0), ("uniform", 1.8)])
def test_the_noise_has_the_moments_of_its_kind_and_no_memory(kind: NoiseName, kurtosis: float) -> None:
    """2^21 values: standard errors are 0.0007 for mean and correlations, below 0.004 for the fourth moment."""
    values = unit(kind, rows=2048, width=1024).double()
    assert float(values.mean()) == pytest.approx(0, abs=3e-3)
    assert float(values.var()) == pytest.approx(1, abs=3e-3)
    assert float(values.pow(3).mean()) == pytest.approx(0, abs=2e-2)
    assert float(values.pow(4).mean()) == pytest.approx(kurtosis, abs=3e-2)
    flat = values.flatten()
    for lag in (1, 2, 3, 4, 5, 1024, 1028):
        assert float((flat[lag:] * flat[:-lag]).mean()) == pytest.approx(0, abs=3e-3), lag
    for other in (unit(kind, rows=2048, width=1024, sequence=6), unit(kind, rows=2048, width=1024, seed=4)):
        assert float((values * other).mean()) == pytest.approx(0, abs=3e-3)


def test_uniform_noise_ends_at_root_three_of_its_deviation() -> None:
    values = unit("uniform", rows=2048, width=1024)
    assert float(values.abs().max()) == pytest.approx(math.sqrt(3), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noise_goes_to_a_copy_and_the_states_stay(dtype: torch.dtype) -> None:
    states = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    before, version = states.clone(), states._version
    noisy = ContextNoise("gaussian", 0.5, seed=0, sequence=0).added_to(states, num_taps=2)
    assert noisy.dtype == dtype and noisy.data_ptr() != states.data_ptr()
    assert (noisy != states).float().mean() > 0.9
    assert torch.equal(states, before) and states._version == version


def test_noise_is_relative_to_each_tokens_state_at_each_tap() -> None:
    """Taps of size 1 and 100, a token of size 1e4, and padding that is zero."""
    states = torch.cat((torch.ones(50, 4000), 100 * torch.ones(50, 4000)), dim=1)
    states[7] *= 1e4
    states[8] = 0
    added = ContextNoise("gaussian", 0.1, seed=0, sequence=0).added_to(states, num_taps=2) - states
    by_tap = added.unflatten(1, (2, -1)).std(dim=2)
    wanted = torch.tensor([0.1, 10.0]).repeat(50, 1)
    wanted[7] *= 1e4
    wanted[8] = 0
    torch.testing.assert_close(by_tap, wanted, rtol=0.05, atol=0.0)


def test_nothing_is_drawn_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    unit()
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_falls_by_half_a_cosine_from_the_first_batch_to_the_last() -> None:
    spec = ObjectiveSpec(context_noise_std=0.1, context_noise_end_std=0.01)
    found = [noise_std_at(spec, batch, 101) for batch in (0, 25, 50, 100, 300)]
    quarter = 0.01 + 0.09 * 0.5 * (1 + math.cos(math.pi / 4))
    assert found == pytest.approx([0.1, quarter, 0.055, 0.01, 0.01])


def test_noise_without_an_end_is_constant() -> None:
    spec = ObjectiveSpec(context_noise_std=0.1)
    assert [noise_std_at(spec, batch, 10) for batch in (0, 9)] == [0.1, 0.1]
    assert noise_std_at(ObjectiveSpec(context_noise_std=0.1, context_noise_end_std=0.0), 0, 1) == 0.1


def test_an_objective_without_noise_makes_none() -> None:
    assert context_noise(ObjectiveSpec(), seed=0, sequence=0, num_batches=10) is None
    noise = context_noise(
        ObjectiveSpec(context_noise="uniform", context_noise_std=0.2), seed=4, sequence=7, num_batches=10
    )
    assert noise == ContextNoise("uniform", 0.2, seed=4, sequence=7)


class Reads(TorchDispatchMode):
    """Notes where every tensor lies out of which rows are picked."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[tuple[int, torch.Size]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.index_select.default:
            self.places.add((args[0].data_ptr(), args[0].shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("loss", ["hard_ce", "soft_kl"])
def test_labels_are_read_off_the_very_states_that_were_given_even_where_a_tap_is_one_of_them(
    make_config: Any, make_drafter: Any, make_row: Any, make_states: Any, ends: Any, loss: LossName
) -> None:
    """The final states are a view of the last tap: noise that was written anywhere but to a copy would reach them."""
    config, row = make_config(), make_row((30, 20), total=52)
    states = make_states(row, config)
    states = replace(states, final_TE=states.taps_TF[:, -config.hidden_size :])
    anchors = sample_anchors(row, num_anchors=12, seed=0, batch=0)
    noisy = ObjectiveSpec(loss=loss, context_noise_std=2.0)
    before = scored_slots(ends, row, states.final_TE, anchors, ObjectiveSpec(loss=loss), config.block_size)
    with Reads() as reads:
        drafter_loss(
            make_drafter(config),
            ends,
            row,
            states,
            anchors,
            noisy,
            attention="eager",
            noise=context_noise(noisy, seed=1, sequence=0, num_batches=1),
        ).loss_sum.backward()
    assert (states.final_TE.data_ptr(), states.final_TE.shape) in reads.places
    assert states.taps_TF._version == 0
    after = scored_slots(ends, row, states.final_TE, anchors, noisy, config.block_size)
    assert torch.equal(after.labels_R, before.labels_R)
    if loss == "soft_kl":
        assert after.final_RE is not None and before.final_RE is not None
        assert torch.equal(after.final_RE, before.final_RE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [25600, 95])
def test_gpu_and_cpu_make_the_same_numbers(kind: NoiseName, width: int) -> None:
    there = unit_noise(kind, 17, 300, width, seed=3, sequence=5, device=torch.device("cuda"))
    assert torch.equal(there.cpu(), unit(kind, first=17, rows=300, width=width))
