"""The target's forward pass over a whole packed row at once, each document as if it were alone.

The layers of the loaded transformers model are walked here and its own weights are used; what transformers leaves
out when documents share a row is done: the short convolution and the recurrent state begin anew with each document,
attention stays inside it, positions restart. families.py says for which models; all others run as padded sequences
(taps.py).

Axes: T tokens, E target width, L taps, F = L*E; others as in pointwise.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dflashctl_remote.target.documents import Documents, document_attention
from dflashctl_remote.target.families import IS_ZERO_CENTRED
from dflashctl_remote.target.gated_delta import gated_delta_rule, has_fla
from dflashctl_remote.target.pointwise import Pieces, pieces
from dflashctl_remote.target.taps import Row, TargetStates


@dataclass(frozen=True)
class Walk:
    """How a decoder is walked; made once."""

    decoder: Any
    is_zero_centred: bool
    pieces: Pieces

    @classmethod
    def of(cls, decoder: Any, *, is_compiled: bool) -> "Walk":
        """Of a decoder against which why_not_walkable() has nothing to say."""
        return cls(decoder, IS_ZERO_CENTRED[decoder.config.model_type], pieces(is_compiled=is_compiled))

    def describe(self) -> str:
        """What runs, for a notice."""
        parts = ["one pass over packed documents"]
        if any(hasattr(layer, "linear_attn") for layer in self.decoder.layers):
            is_fla = has_fla(self.decoder.embed_tokens.weight.device)
            parts.append("Gated DeltaNet by fla's kernels" if is_fla else "Gated DeltaNet in torch")
        if self.pieces.is_compiled:
            parts.append("what is pointwise compiled")
        return ", ".join(parts)


@torch.no_grad()
def packed_forward(walk: Walk, row: Row, tap_layers: Sequence[int], device: torch.device) -> TargetStates:
    """States of a packed row, each document as if it were alone; zeros at padding.

    On a GPU all T rows are computed, padding as a document of its own, so that shapes stay the same from row to row.
    Not in inference mode: the states are constants of the drafter's graph, which saves them for its backward pass.
    """
    decoder = walk.decoder
    num_tokens, num_all = sum(row.lengths), len(row.input_ids_T)
    num_rows = num_all if device.type == "cuda" else num_tokens
    documents = Documents.of(row.lengths, num_rows, device)
    ids_T = torch.as_tensor(row.input_ids_T[:num_rows], dtype=torch.int64).to(device)
    hidden_TE = decoder.embed_tokens(ids_T)
    shared = _Shared(walk, documents, *_rotary_tables(decoder.rotary_emb, hidden_TE, documents.positions_T))

    width = hidden_TE.shape[1]
    taps_TF = hidden_TE.new_zeros((num_all, len(tap_layers) * width))
    final_TE = hidden_TE.new_zeros((num_all, width))
    for index, layer in enumerate(decoder.layers):
        _run_layer(hidden_TE, layer, shared)
        for tap, tapped in enumerate(tap_layers):
            if tapped == index:
                taps_TF[:num_tokens, tap * width : (tap + 1) * width] = hidden_TE[:num_tokens]
    final_TE[:num_tokens] = _normed(hidden_TE, decoder.norm, walk)[:num_tokens]
    return TargetStates(taps_TF, final_TE)


@dataclass(frozen=True)
class _Shared:
    """What all layers share in one pass."""

    walk: Walk
    documents: Documents
    cos_TR: Tensor
    sin_TR: Tensor


def _rotary_tables(rotary: Any, hidden_TE: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of [T, R], as the model makes them."""
    positions = positions_T[None]
    if hasattr(rotary, "mrope_section"):
        # Text has one place in time, height and width; not every transformers spreads it by itself.
        positions = positions.expand(3, 1, -1)
    cos_1TR, sin_1TR = rotary(hidden_TE[None], positions)
    return cos_1TR[0], sin_1TR[0]


def _run_layer(hidden_TE: Tensor, layer: Any, shared: _Shared) -> None:
    """One decoder layer, from and into `hidden_TE`."""
    walk = shared.walk
    normed_TE = _normed(hidden_TE, layer.input_layernorm, walk)
    if hasattr(layer, "linear_attn"):
        _add_gated_delta(hidden_TE, normed_TE, layer.linear_attn, shared)
    else:
        _add_attention(hidden_TE, normed_TE, layer.self_attn, shared)
    normed_TE = _normed(hidden_TE, layer.post_attention_layernorm, walk)
    mlp = layer.mlp
    if all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")):
        product_TI = walk.pieces.swiglu(mlp.gate_proj(normed_TE), mlp.up_proj(normed_TE))
        _add_projected(hidden_TE, product_TI, mlp.down_proj)
    else:
        mixed = mlp(normed_TE[None])
        hidden_TE += (mixed[0] if isinstance(mixed, tuple) else mixed)[0]


def _add_gated_delta(hidden_TE: Tensor, normed_TE: Tensor, mixer: Any, shared: _Shared) -> None:
    run, documents = shared.walk.pieces, shared.documents
    qkv, gate, b, a = _delta_projections(normed_TE, mixer)
    inputs = run.delta_inputs(qkv, b, a, mixer.conv1d.weight, mixer.A_log, mixer.dt_bias, documents.positions_T)
    read_TGV = gated_delta_rule(*inputs, documents)
    normed = run.gated_norm(read_TGV, gate, mixer.norm.weight, _eps(mixer.norm))
    _add_projected(hidden_TE, normed, mixer.out_proj)


def _delta_projections(normed_TE: Tensor, mixer: Any) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor, Tensor]:
    """(q, k, v) of [T, J, ...] before the convolution, output gate, b and a; all are views of what the products give.

    Qwen3.5 has a projection for each; Qwen3-Next has two, in which the parts stand key head by key head.
    """
    J, K, V = mixer.num_k_heads, mixer.head_k_dim, mixer.head_v_dim
    group = mixer.num_v_heads // J
    if hasattr(mixer, "in_proj_qkvz"):
        q, k, v, z = mixer.in_proj_qkvz(normed_TE).unflatten(1, (J, -1)).split([K, K, group * V, group * V], dim=-1)
        b, a = mixer.in_proj_ba(normed_TE).unflatten(1, (J, -1)).split([group, group], dim=-1)
        return (q, k, v), z, b, a
    q, k, v = mixer.in_proj_qkv(normed_TE).split([J * K, J * K, J * group * V], dim=-1)
    qkv = (q.unflatten(1, (J, K)), k.unflatten(1, (J, K)), v.unflatten(1, (J, group * V)))
    return qkv, mixer.in_proj_z(normed_TE), mixer.in_proj_b(normed_TE), mixer.in_proj_a(normed_TE)


def _add_attention(hidden_TE: Tensor, normed_TE: Tensor, mixer: Any, shared: _Shared) -> None:
    run, C = shared.walk.pieces, mixer.head_dim
    # with an output gate twice as wide: of each head its query, then its gate
    q_THX = mixer.q_proj(normed_TE).unflatten(1, (mixer.o_proj.in_features // C, -1))
    k_TJC = mixer.k_proj(normed_TE).unflatten(1, (-1, C))
    v_TJC = mixer.v_proj(normed_TE).unflatten(1, (-1, C))
    q_THC, gate_THC = q_THX[..., :C], q_THX[..., C:]
    q_norm, k_norm = getattr(mixer, "q_norm", None), getattr(mixer, "k_norm", None)
    q_THC, k_TJC = run.rotated(
        q_THC,
        k_TJC,
        None if q_norm is None else q_norm.weight,
        None if k_norm is None else k_norm.weight,
        0.0 if q_norm is None else _eps(q_norm),
        shared.walk.is_zero_centred,
        shared.cos_TR,
        shared.sin_TR,
    )
    mixed_THC = document_attention(q_THC, k_TJC, v_TJC, shared.documents, scale=mixer.scaling)
    mixed = run.output_gate(mixed_THC, gate_THC) if gate_THC.shape[-1] else mixed_THC.flatten(1)
    _add_projected(hidden_TE, mixed, mixer.o_proj)


def _add_projected(hidden_TE: Tensor, x: Tensor, projection: Any) -> None:
    """hidden += projection(x); a plain product adds while it writes, so that the residual costs no pass of its own."""
    if type(projection) is nn.Linear and getattr(projection, "bias", None) is None:
        hidden_TE.addmm_(x, projection.weight.t())
    else:
        hidden_TE += projection(x)


def _normed(x: Tensor, norm: Any, walk: Walk) -> Tensor:
    return walk.pieces.rms_norm(x, norm.weight, _eps(norm), walk.is_zero_centred)


def _eps(norm: Any) -> float:
    """transformers and fla have two names for it."""
    return float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)
