"""Which positions of a packed row become anchors, and what each slot of their blocks weighs.

Numpy only, and functions of (row, seed, batch number) alone: a resumed run draws what the unbroken one drew.
"""

from dataclasses import dataclass

import numpy as np

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.masks import NO_DOCUMENT


@dataclass(frozen=True)
class Anchors:
    """N anchors of a row, sorted; those beyond the row's candidates are padding that weighs nothing."""

    indices_N: np.ndarray
    positions_N: np.ndarray
    documents_N: np.ndarray
    """NO_DOCUMENT at padding."""
    num_real: int

    def __len__(self) -> int:
        return len(self.indices_N)


def anchor_candidates(row: PackedRow) -> np.ndarray:
    """Indices p of the row where p and p+1 are supervised tokens of one document."""
    here, following = row.is_supervised_T[:-1], row.is_supervised_T[1:]
    same = (row.document_ids_T[:-1] == row.document_ids_T[1:]) & (row.document_ids_T[:-1] >= 0)
    return np.flatnonzero(here & following & same)


def sample_anchors(row: PackedRow, *, num_anchors: int, seed: int, batch: int) -> Anchors:
    """Draw anchors without replacement, each document's share proportional to its supervised tokens."""
    candidates = anchor_candidates(row)
    documents = row.document_ids_T[candidates]
    num_documents = len(row.lengths)
    supervised = np.bincount(
        row.document_ids_T[row.is_supervised_T & (row.document_ids_T >= 0)], minlength=num_documents
    )
    available = np.bincount(documents, minlength=num_documents)
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, batch], dtype=np.uint64)))
    quotas = share_out(num_anchors, supervised, available)
    chosen = [generator.permutation(candidates[documents == document])[:quota] for document, quota in enumerate(quotas)]
    indices = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
    num_padding = num_anchors - len(indices)
    return Anchors(
        indices_N=np.concatenate((indices, np.zeros(num_padding, dtype=np.int64))),
        positions_N=np.concatenate((row.positions_T[indices], np.zeros(num_padding, dtype=np.int64))),
        documents_N=np.concatenate((row.document_ids_T[indices], np.full(num_padding, NO_DOCUMENT, dtype=np.int64))),
        num_real=len(indices),
    )


def share_out(total: int, claims: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Divide `total` in proportion to `claims`, nobody above its limit; largest remainders first, ties by index.

    What a limit leaves over goes to those still below theirs. The sum is min(total, limits.sum()).
    """
    shares = np.zeros_like(limits)
    left = min(total, int(limits.sum()))
    is_open = (limits > 0) & (claims > 0)
    while left > 0:
        weights = np.where(is_open, claims, 0).astype(np.float64)
        quotas = left * weights / weights.sum()
        is_full = is_open & (quotas >= limits)
        if not is_full.any():
            shares += np.floor(quotas).astype(shares.dtype)
            remainders = np.where(is_open, quotas - np.floor(quotas), -1.0)
            num_over = left - int(np.floor(quotas).sum())
            shares[np.argsort(-remainders, kind="stable")[:num_over]] += 1
            break
        shares[is_full] = limits[is_full]
        left -= int(limits[is_full].sum())
        is_open &= ~is_full
    return shares


def slot_supervision(row: PackedRow, anchors: Anchors, block_size: int) -> np.ndarray:
    """bool [N, K]: slot k counts while p+1..p+k are all supervised tokens of the anchor's document.

    Slot 0 holds the anchor and never counts; from the first unsupervised slot, or the document's end, none does.
    """
    offsets_NK = anchors.indices_N[:, None] + np.arange(block_size)
    inside = offsets_NK < len(row.input_ids_T)
    at = np.minimum(offsets_NK, len(row.input_ids_T) - 1)
    counts = inside & row.is_supervised_T[at] & (row.document_ids_T[at] == anchors.documents_N[:, None])
    counts = np.logical_and.accumulate(counts, axis=1)
    counts[:, 0] = False
    return counts
