import copy

import pytest
import torch
from torch import nn

from dflashctl_remote.spec.errors import ArtifactCorrupt
from dflashctl_remote.spec.train import OptimSpec
from dflashctl_remote.trainer.optim import MasterAdamW

SPEC = OptimSpec(learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0)


def small_model(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7, bias=False), nn.RMSNorm(7, eps=1e-6), nn.Linear(7, 3, bias=False)).to(dtype)


def fill_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.empty(parameter.shape).normal_(0.0, scale, generator=generator)
        parameter.grad = drawn.to(parameter.dtype)


def run_steps(model: nn.Module, optimizer: MasterAdamW, seeds: range) -> None:
    for seed in seeds:
        fill_gradients(model, seed)
        optimizer.take_gradients(weight_sum=13.0)
        optimizer.step(1e-3)


def test_bf16_parameters_follow_an_fp32_reference_to_the_bit():
    model = small_model(torch.bfloat16)
    optimizer = MasterAdamW(model, SPEC)
    reference = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    groups = [
        {"params": [p for p in reference if p.ndim > 1], "weight_decay": SPEC.weight_decay},
        {"params": [p for p in reference if p.ndim == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=SPEC.betas, eps=SPEC.eps)
    for seed in range(20):
        fill_gradients(model, seed)
        for mine, parameter in zip(reference, model.parameters(), strict=True):
            mine.grad = parameter.grad.float() / 13.0
        nn.utils.clip_grad_norm_(reference, SPEC.clip_norm)
        adamw.step()
        optimizer.take_gradients(weight_sum=13.0)
        optimizer.step(1e-3)
    for mine, parameter in zip(reference, model.parameters(), strict=True):
        assert torch.equal(parameter, mine.to(torch.bfloat16))
    masters = [value for key, value in optimizer.state_dict().items() if key.startswith("master/")]
    assert all(torch.equal(mine, master) for mine, master in zip(reference, masters, strict=True))


def test_masters_keep_updates_that_bf16_would_round_away():
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.constant_(model.weight, 1.0)
    optimizer = MasterAdamW(model, OptimSpec(weight_decay=0.0))
    for _ in range(100):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.take_gradients(1.0)
        optimizer.step(1e-4)
    # Each step is 1e-4 and bf16 near 1 has steps of 0.0039: added straight to bf16, none would count.
    assert model.weight.item() == pytest.approx(0.99, abs=0.004)
    assert model.weight.item() != 1.0


def test_first_step_worked_by_hand():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = MasterAdamW(model, OptimSpec(weight_decay=0.1, clip_norm=100.0, eps=1e-8))
    model.weight.grad = torch.full_like(model.weight, 6.0)
    assert optimizer.take_gradients(weight_sum=4.0) == pytest.approx(1.5)
    optimizer.step(0.01)
    # decay: 2 * (1 - 0.01 * 0.1); the first Adam step is lr * sign(gradient).
    assert model.weight.item() == pytest.approx(2.0 * 0.999 - 0.01)


def test_norms_are_not_decayed():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.RMSNorm(2, eps=1e-6))
    before = copy.deepcopy(model.state_dict())
    optimizer = MasterAdamW(model, OptimSpec(weight_decay=0.5))
    optimizer.take_gradients(1.0)
    optimizer.step(0.1)
    assert torch.equal(model[1].weight, before["1.weight"])
    torch.testing.assert_close(model[0].weight.detach(), before["0.weight"] * 0.95)


def test_clipping_is_of_the_normalised_gradient():
    model = nn.Linear(1, 2, bias=False)
    optimizer = MasterAdamW(model, OptimSpec(clip_norm=0.5))
    model.weight.grad = torch.tensor([[30.0], [40.0]])
    assert optimizer.take_gradients(weight_sum=10.0) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.3], [0.4]]))


def test_a_gradient_that_is_not_finite_shows_in_the_norm_before_anything_moves():
    model = small_model(torch.bfloat16)
    before = copy.deepcopy(model.state_dict())
    optimizer = MasterAdamW(model, SPEC)
    fill_gradients(model, 0)
    next(model.parameters()).grad[0, 0] = float("nan")
    assert not torch.tensor(optimizer.take_gradients(1.0)).isfinite()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_restores_to_the_bit(dtype):
    whole = small_model(dtype)
    run_steps(whole, MasterAdamW(whole, SPEC), range(10))

    first = small_model(dtype)
    optimizer = MasterAdamW(first, SPEC)
    run_steps(first, optimizer, range(6))
    weights, state = copy.deepcopy(first.state_dict()), {k: v.clone() for k, v in optimizer.state_dict().items()}

    second = small_model(dtype)
    second.load_state_dict(weights)
    resumed = MasterAdamW(second, SPEC)
    resumed.load_state_dict(state)
    run_steps(second, resumed, range(6, 10))
    for mine, theirs in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_state_of_another_shape_is_refused():
    model = small_model(torch.float32)
    optimizer = MasterAdamW(model, SPEC)
    run_steps(model, optimizer, range(1))
    state = optimizer.state_dict() | {"exp_avg/0.weight": torch.zeros(1)}
    with pytest.raises(ArtifactCorrupt, match=r"exp_avg/0\.weight has shape \(1,\)"):
        optimizer.load_state_dict(state)


def test_state_of_a_larger_drafter_is_refused():
    model = small_model(torch.float32)
    optimizer = MasterAdamW(model, SPEC)
    with pytest.raises(ArtifactCorrupt, match=r"exp_avg/3\.weight"):
        optimizer.load_state_dict({"exp_avg/3.weight": torch.zeros(1)})
