"""The gated delta rule over documents that lie one after the other: fla's kernels on a GPU, else in chunks of torch.

A value head keeps a state S of [K, V] that is zero before a document's first token. At token t, with decay
exp(g_t) <= 1, write strength beta_t and a key of length one:

    S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)^T        o_t = S_t^T q_t K**-0.5

In a chunk of C tokens that begins with state S, with b_i the sum of g up to i, the writes u_i (what stands beside
k_i above, after decay) obey one triangular system, so the tokens need not be taken one by one:

    (I + A) U = B (V - exp(b) K S)        A_ij = beta_i exp(b_i - b_j) k_i . k_j  for j < i,  B = diag(beta)
    o_i = (exp(b_i) S^T q_i + sum_{j <= i} exp(b_i - b_j) (q_i . k_j) u_j) K**-0.5
    S' = exp(b_C) S + sum_j exp(b_C - b_j) k_j u_j^T

Both parts of the right side are solved for all chunks of all documents at once; then step i takes chunk i of every
document that has one. (Gated Delta Networks, arXiv 2412.06464, section 3.3.)

Axes: T tokens, J key heads, K their size, G value heads (those of a group G/J share a key), V their size, M chunks,
C tokens of a chunk, N documents.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.target.documents import Documents

CHUNK = 64


def has_fla(device: torch.device) -> bool:
    """Whether fla's kernels are what gated_delta_rule runs there."""
    return device.type == "cuda" and find_spec("fla") is not None


def gated_delta_rule(
    q_TJK: Tensor, k_TJK: Tensor, v_TGV: Tensor, log_decay_TG: Tensor, beta_TG: Tensor, documents: Documents
) -> Tensor:
    """What every token reads from the state of its document: [T, G, V] in the dtype of v."""
    if not has_fla(q_TJK.device):
        return chunked_delta_rule(q_TJK, k_TJK, v_TGV, log_decay_TG, beta_TG, documents.lengths)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    out_1TGV, _ = chunk_gated_delta_rule(
        q_TJK[None],
        k_TJK[None],
        v_TGV[None],
        g=log_decay_TG[None],
        beta=beta_TG[None],
        cu_seqlens=documents.bounds,
        cu_seqlens_cpu=documents.bounds_cpu,
    )
    out_TGV: Tensor = out_1TGV[0]
    return out_TGV


def chunked_delta_rule(
    q_TJK: Tensor, k_TJK: Tensor, v_TGV: Tensor, log_decay_TG: Tensor, beta_TG: Tensor, lengths: tuple[int, ...]
) -> Tensor:
    """The same in torch, in float32 at least; the formulas are at the top of this file."""
    table = _chunk_table(lengths)
    dtype = torch.promote_types(q_TJK.dtype, torch.float32)
    group, scale = v_TGV.shape[1] // q_TJK.shape[1], q_TJK.shape[-1] ** -0.5
    rows_MC = table.rows_MC.to(q_TJK.device)
    q, k, v, log_decay, beta = (_chunks(x.to(dtype), rows_MC) for x in (q_TJK, k_TJK, v_TGV, log_decay_TG, beta_TG))
    decay_MGC = log_decay.cumsum(-1)
    grown_MGC1 = decay_MGC.exp().unsqueeze(-1)
    upper_CC = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between_MGCC = (decay_MGC.unsqueeze(-1) - decay_MGC.unsqueeze(-2)).masked_fill(upper_CC, -torch.inf).exp()

    k_MGCK = k.repeat_interleave(group, dim=1)
    beta_MGC1 = beta.unsqueeze(-1)
    # only what stands below the diagonal is read of it
    system_MGCC = beta_MGC1 * (k @ k.mT).repeat_interleave(group, dim=1) * between_MGCC
    right = torch.cat([beta_MGC1 * v, beta_MGC1 * grown_MGC1 * k_MGCK], dim=-1)
    solved = torch.linalg.solve_triangular(system_MGCC, right, upper=False, unitriangular=True)
    write_MGCV, forget_MGCK = solved.split([v.shape[-1], k.shape[-1]], dim=-1)

    scores_MGCC = (q @ k.mT * scale).repeat_interleave(group, dim=1) * between_MGCC
    read_MGCK = q.repeat_interleave(group, dim=1) * scale * grown_MGC1
    keep_MG11 = grown_MGC1[:, :, -1:]
    store_MGKC = (k_MGCK * (decay_MGC[..., -1:] - decay_MGC).exp().unsqueeze(-1)).mT

    out_MGCV = torch.empty_like(v)
    state_NGKV = v.new_zeros(len(lengths), v.shape[1], k.shape[-1], v.shape[-1])
    start = 0
    for num_alive in table.num_alive:
        here = slice(start, start + num_alive)
        state_NGKV = state_NGKV[:num_alive]
        write = write_MGCV[here] - forget_MGCK[here] @ state_NGKV
        out_MGCV[here] = read_MGCK[here] @ state_NGKV + scores_MGCC[here] @ write
        state_NGKV = state_NGKV * keep_MG11[here] + store_MGKC[here] @ write
        start += num_alive
    return out_MGCV.transpose(1, 2).flatten(0, 1)[table.places_T.to(q.device)].to(v_TGV.dtype)


@dataclass(frozen=True)
class _ChunkTable:
    """Chunks in the order in which they are taken: the first of every document, the second of those that have one, ..

    Longer documents come first, so that the documents of a step are the first of those of the step before.
    """

    rows_MC: Tensor
    """The row of each token of a chunk; T, one past the last, where a document's last chunk is not full."""
    places_T: Tensor
    """Where each row stands in rows_MC, flattened."""
    num_alive: tuple[int, ...]
    """Documents of each step."""


@lru_cache(maxsize=8)
def _chunk_table(lengths: tuple[int, ...]) -> _ChunkTable:
    num_rows = sum(lengths)
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    order = sorted(range(len(lengths)), key=lambda n: (-lengths[n], n))
    rows: list[Tensor] = []
    num_alive: list[int] = []
    for first in range(0, max(lengths), CHUNK):
        alive = [n for n in order if lengths[n] > first]
        num_alive.append(len(alive))
        for n in alive:
            row_C = starts[n] + first + torch.arange(CHUNK)
            rows.append(row_C.masked_fill(row_C >= starts[n + 1], num_rows))
    rows_MC = torch.stack(rows)
    places = torch.empty(num_rows + 1, dtype=torch.int64)
    places[rows_MC.flatten()] = torch.arange(rows_MC.numel())
    return _ChunkTable(rows_MC, places[:num_rows], tuple(num_alive))


def _chunks(x: Tensor, rows_MC: Tensor) -> Tensor:
    """[T, heads, ...] -> [M, heads, C, ...], zeros where a chunk is not full."""
    padded = F.pad(x, (0, 0) * (x.ndim - 1) + (0, 1))
    return padded[rows_MC].transpose(1, 2).contiguous()
