"""What all arms of the target's benchmark are given: a decoder with random weights, rows, a clock, and the ceilings."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

SEQUENCE = 2048
MEAN_LENGTH = 2068
SPREAD = 0.6
"""Of lognormal document lengths."""
CPU_SCALE = 16
"""Sequences are so much shorter there."""
QWEN36_27B = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 1000,
}


@dataclass(frozen=True)
class Row:
    """Documents one after the other, then padding."""

    input_ids_T: np.ndarray
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Floor:
    """The matrix products of all layers by themselves."""

    tokens_per_s: float
    residual_share: float
    """What adding the residual inside a product costs more than the product, as a share of all products."""


def make_decoder(shape: dict[str, int], num_layers: int, device: torch.device) -> Any:
    """Matrices of N(0, 0.02), drawn on the device."""
    config = Qwen3_5TextConfig(**shape, num_hidden_layers=num_layers)
    config._attn_implementation = "sdpa"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
    with torch.device(device):
        decoder = Qwen3_5TextModel(config).eval().requires_grad_(False)
    torch.set_default_dtype(before)
    torch.manual_seed(0)
    for name, parameter in decoder.named_parameters():
        if name.endswith("A_log"):
            parameter.uniform_(-3.0, 1.0)
        elif parameter.ndim > 1:
            parameter.normal_(0, 0.02)
        else:
            # gated norms keep their weights as they are, the others minus one
            parameter.fill_(1.0 if name.endswith("linear_attn.norm.weight") else 0.0)
    return decoder


def first_layers(decoder: Any, num_layers: int) -> Any:
    """A copy of the first layers in fp32 on the CPU."""
    config = copy.deepcopy(decoder.config)
    config.num_hidden_layers, config.layer_types = num_layers, config.layer_types[:num_layers]
    short = Qwen3_5TextModel(config).eval().requires_grad_(False)
    wanted = short.state_dict().keys()
    short.load_state_dict({name: t.float().cpu() for name, t in decoder.state_dict().items() if name in wanted})
    return short


def taps_of(decoder: Any) -> tuple[int, ...]:
    """Five, spread evenly."""
    return tuple(int(layer) for layer in np.linspace(1, len(decoder.layers) - 3, 5).clip(0))


def equal_row(num_tokens: int, vocab_size: int, device: torch.device) -> Row:
    length = min(num_tokens, SEQUENCE if device.type == "cuda" else SEQUENCE // CPU_SCALE)
    return Row(np.random.default_rng(0).integers(0, vocab_size, num_tokens), (length,) * (num_tokens // length))


def lognormal_row(num_tokens: int, vocab_size: int, device: torch.device) -> Row:
    """Documents drawn until the next one does not fit; what is left is padding."""
    generator = np.random.default_rng(1)
    mean_length = MEAN_LENGTH if device.type == "cuda" else MEAN_LENGTH // CPU_SCALE
    lengths: list[int] = []
    while True:
        drawn = max(2, round(generator.lognormal(np.log(mean_length) - SPREAD**2 / 2, SPREAD)))
        if sum(lengths) + drawn > num_tokens:
            break
        lengths.append(drawn)
    ids = np.random.default_rng(0).integers(0, vocab_size, num_tokens)
    return Row(ids, tuple(lengths) or (num_tokens,))


def timed(run: Callable[[], Any], device: torch.device) -> float:
    settle(device)
    started = time.perf_counter()
    run()
    settle(device)
    return time.perf_counter() - started


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def per_call(run: Callable[[int], Any], device: torch.device, num_calls: int = 8) -> float:
    """Seconds; the call is told its number."""
    for number in range(2):
        run(number)
    return timed(lambda: [run(number) for number in range(num_calls)] and None, device) / num_calls


def matmul_ceiling(device: torch.device) -> float:
    """FLOP/s of a large product of random numbers."""
    size = 8192 if device.type == "cuda" else 512
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x, y = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / min(per_call(lambda _: x @ y, device) for _ in range(3))


@torch.no_grad()
def products_alone(decoder: Any, num_tokens: int, device: torch.device) -> Floor:
    """Each shape timed on the layers' own weights, one after the other."""
    shapes: dict[tuple[int, int], list[Tensor]] = {}
    for name, weight in decoder.layers.named_parameters():
        if weight.ndim == 2:
            assert name.endswith("proj.weight") or ".in_proj_" in name, name
            shapes.setdefault((weight.shape[0], weight.shape[1]), []).append(weight)
    total_s, more_s = 0.0, 0.0
    hidden = torch.randn(num_tokens, decoder.config.hidden_size, device=device, dtype=decoder.norm.weight.dtype)
    for (num_out, num_in), weights in shapes.items():
        x = torch.randn(num_tokens, num_in, device=device, dtype=hidden.dtype)

        def plain(i: int, x: Tensor = x, weights: list[Tensor] = weights) -> Tensor:
            return x @ weights[i % len(weights)].t()

        def added(i: int, x: Tensor = x, weights: list[Tensor] = weights) -> Tensor:
            # so little that the residual stays finite
            return hidden.addmm_(x, weights[i % len(weights)].t(), alpha=1e-6)

        product_s = per_call(plain, device)
        total_s += product_s * len(weights)
        if num_out == hidden.shape[1]:
            more_s += (per_call(added, device) - product_s) * len(weights)
    return Floor(num_tokens / total_s, more_s / total_s)
