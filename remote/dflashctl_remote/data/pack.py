"""Packed rows: documents one after the other in a row of fixed length. Which documents share one is loader.py's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflashctl_remote.data.shards import Document


@dataclass(frozen=True)
class PackedRow:
    """Documents in order, then padding up to the fixed length T. Padding has token 0 and position 0."""

    input_ids_T: npt.NDArray[np.int64]
    positions_T: npt.NDArray[np.int64]
    """From 0 in each document."""
    document_ids_T: npt.NDArray[np.int64]
    """0, 1, 2, .. in row order; -1 at padding."""
    is_supervised_T: npt.NDArray[np.bool_]
    """The assistant wrote the token, its end-of-turn token included."""
    lengths: tuple[int, ...]
    """Tokens of each document; their sum is at most T."""


def pack(documents: Sequence[Document], T: int) -> PackedRow:
    """The documents as one row of T tokens; they must fit, and each have a token."""
    lengths = tuple(len(d.input_ids) for d in documents)
    assert all(lengths) and sum(lengths) <= T, f"documents of {lengths} tokens do not fit a row of {T}"
    input_ids_T = np.zeros(T, np.int64)
    positions_T = np.zeros(T, np.int64)
    document_ids_T = np.full(T, -1, np.int64)
    is_supervised_T = np.zeros(T, np.bool_)
    start = 0
    for index, (document, length) in enumerate(zip(documents, lengths, strict=True)):
        here = slice(start, start + length)
        input_ids_T[here] = document.input_ids
        positions_T[here] = np.arange(length)
        document_ids_T[here] = index
        is_supervised_T[here] = document.is_supervised
        start += length
    return PackedRow(input_ids_T, positions_T, document_ids_T, is_supervised_T, lengths)
