"""AdamW over fp32 master weights: parameters and gradients may be bf16, what the optimizer adds up never is.

A bf16 weight of 0.02 moves in steps of 1e-4, so that most updates of a late learning rate would round away;
the masters keep them. Parameters that are fp32 already are their own masters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dflashctl_remote.spec.errors import ArtifactCorrupt
from dflashctl_remote.spec.train import OptimSpec

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class MasterAdamW:
    """Steps in two halves, so that the caller can refuse a gradient that is not finite before anything moves."""

    def __init__(self, module: nn.Module, spec: OptimSpec) -> None:
        self._clip_norm = spec.clip_norm
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._masters = {name: _master_of(p) for name, p in self._parameters.items()}
        matrices = [m for m in self._masters.values() if m.ndim > 1]
        vectors = [m for m in self._masters.values() if m.ndim <= 1]
        self._adamw = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": spec.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.eps,
            fused=all(m.is_cuda for m in self._masters.values()),
        )

    def take_gradients(
        self, weight_sum: float, *, add: Callable[[Sequence[Tensor]], None] = lambda gradients: None
    ) -> float:
        """Turn accumulated gradients of sum(w * ce) into fp32 gradients of the mean, clipped to the global norm.

        `add` adds those of other processes, in place; `weight_sum` is that of all.
        Returns the norm before clipping: not finite if any gradient is not. The parameters' own gradients are
        released.
        """
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            gradient = parameter.grad
            parameter.grad = None
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            master.grad = gradient.float()
        gradients = [master.grad for master in self._masters.values() if master.grad is not None]
        add(gradients)
        torch._foreach_div_(gradients, weight_sum)
        norm = torch.nn.utils.clip_grad_norm_(self._masters.values(), self._clip_norm)
        return norm.item()

    def step(self, learning_rate: float) -> None:
        """One AdamW step from the gradients taken; decay on matrices alone. Rounds the masters into the parameters."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                master = self._masters[name]
                master.grad = None
                if master is not parameter:
                    parameter.copy_(master)

    def drop_gradients(self) -> None:
        """Of parameters and masters."""
        for name, parameter in self._parameters.items():
            parameter.grad = self._masters[name].grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Everything beside the parameters, under `master/NAME`, `step/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`.

        Masters that are the parameters themselves are left out; before the first step there are no moments.
        """
        out: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                out[f"master/{name}"] = master.detach()
            for moment, value in self._adamw.state.get(master, {}).items():
                out[f"{moment}/{name}"] = value
        return out

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore exactly what `state_dict` gave; raises ArtifactCorrupt if names or shapes differ."""
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                with torch.no_grad():
                    master.copy_(_find(state, f"master/{name}", master.shape))
            if f"step/{name}" not in state:
                continue
            moments = {moment: _find(state, f"{moment}/{name}", None) for moment in MOMENTS}
            for moment in MOMENTS[1:]:
                _find(state, f"{moment}/{name}", master.shape)
            on_device = master.device if self._adamw.defaults["fused"] else torch.device("cpu")
            self._adamw.state[master] = {
                "step": moments["step"].to(on_device, copy=True),
                **{moment: moments[moment].to(master.device, copy=True) for moment in MOMENTS[1:]},
            }
        known = {f"{kind}/{name}" for name in self._masters for kind in ("master", *MOMENTS)}
        unknown = sorted(set(state) - known)
        if unknown:
            raise ArtifactCorrupt(f"the optimizer state holds {unknown[0]}, which this drafter has not")


def _master_of(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype == torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().to(torch.float32, copy=True))


def _find(state: dict[str, Tensor], key: str, shape: torch.Size | None) -> Tensor:
    if key not in state:
        raise ArtifactCorrupt(f"the optimizer state has no {key}")
    if shape is not None and state[key].shape != shape:
        raise ArtifactCorrupt(
            f"the optimizer state's {key} has shape {tuple(state[key].shape)}, the drafter wants {tuple(shape)}"
        )
    return state[key]
