"""Rows, heads and labels made from a seed, for checks and tests: ordinary ones, and those with ties in bf16.

Axes: R rows, D = E width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    states_RD: Tensor
    head_VE: Tensor
    labels_R: Tensor
    weights_R: Tensor


def random_problem(
    num_rows: int, width: int, num_vocab: int, *, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Problem:
    """Logits of a standard deviation of about 3; every seventh weight is zero."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    weights_R = torch.rand(num_rows, generator=generator, device=device)
    weights_R[::7] = 0
    return Problem(
        normal(num_rows, width).to(dtype),
        (normal(num_vocab, width) * (3 / width**0.5)).to(dtype),
        torch.randint(0, num_vocab, (num_rows,), generator=generator, device=device),
        weights_R,
    )


def tied_problem(
    num_rows: int,
    width: int,
    num_vocab: int,
    num_tied: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
) -> tuple[Problem, Tensor]:
    """Rows whose `num_tied` largest logits are one number in bf16 and differ in fp32; and the ids that win.

    The tied rows of the head are copies of one, raised along one column by multiples of a step that is far below bf16's
    there; the largest stands anywhere among them, so that neither the lowest nor the highest id is right by chance.
    """
    assert num_tied < 64 < num_vocab, "raised by at most 63 steps"
    plain = random_problem(num_rows, width, num_vocab, dtype=dtype, device=device, seed=seed)
    generator = torch.Generator(device).manual_seed(seed + 1)
    states, head = plain.states_RD.clone(), plain.head_VE.clone()
    # The tied logits are 16 + 2**-12 * (1 to 63): not half of half a step of bf16 there, which is 2**-3. The others are
    # halved, so that none comes near 16.
    ids = torch.randperm(num_vocab, generator=generator, device=device)[:num_tied].sort().values
    raises = torch.randperm(num_tied, generator=generator, device=device) + 1
    states[:, :2] = torch.tensor([4.0, 2.0**-6], device=device, dtype=dtype)
    head *= 0.5
    head[ids] = 0
    head[ids, 0] = 4.0
    head[ids, 1] = (raises * 2.0**-6).to(dtype)
    problem = Problem(states, head, plain.labels_R, plain.weights_R)
    return problem, ids[raises.argmax()].expand(num_rows)
