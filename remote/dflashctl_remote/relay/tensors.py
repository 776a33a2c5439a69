"""Where the tensors of a safetensors file lie, and digests of ranges of a file.

It reads no tensor and trusts no header. stdlib alone and Python 3.8, since it runs under `python3 -I -S` of any host.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

STEP_BYTES = 1 << 20

_MAX_HEADER_BYTES = 100_000_000
_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


class Tensor(NamedTuple):
    """`offset` counts from the start of the file, in bytes; `dtype` is the file's word ("BF16")."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def read_table(fd: int, size: int) -> tuple[Tensor, ...] | None:
    """All tensors of a safetensors file of `size` bytes, by offset; None for a file that is none.

    As the format asks: header of at most 100 MB, tensors side by side to the end of the file, each of the size of its
    shape (not looked at for a dtype that is not known here). Raises OSError if reading fails.
    Source: github.com/huggingface/safetensors, README, "Format".
    """
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        return None
    text = b"".join(_pieces(fd, 8, length))
    try:
        header = json.loads(
            text.decode(),
            object_pairs_hook=_unique,
            parse_int=_parse_int,
            parse_float=_refuse,
            parse_constant=_refuse,
        )
        return _check(header, 8 + length, size)
    except (ValueError, RecursionError):
        return None


def width_of(dtype: str) -> int:
    """Bytes an element: 1, 2, 4 or 8; 1 for what is narrower or not known."""
    return max(1, _BITS.get(dtype, 8) // 8)


def sha256_of_ranges(fd: int, ranges: list[tuple[int, int]]) -> list[str]:
    """Digests in hex of (offset, size), in the order given; as many at a time as there are cores.

    Raises EOFError if the file ends before a range does, OSError if reading fails.
    """
    ranges = list(ranges)
    if len(ranges) < 2:
        return [_sha256(fd, *one) for one in ranges]
    with ThreadPoolExecutor(min(len(ranges), os.cpu_count() or 1)) as threads:
        return list(threads.map(lambda one: _sha256(fd, *one), ranges))


def _sha256(fd: int, offset: int, size: int) -> str:
    digest = hashlib.sha256()
    num_bytes = 0
    for piece in _pieces(fd, offset, size):
        digest.update(piece)
        num_bytes += len(piece)
    if num_bytes < size:
        raise EOFError(f"the file ends {size - num_bytes} bytes early: it has changed")
    return digest.hexdigest()


def _pieces(fd: int, offset: int, size: int) -> Any:
    """What is there of a range, so that a file that lies about its size costs nothing."""
    while size:
        piece = os.pread(fd, min(size, STEP_BYTES), offset)
        if not piece:
            return
        yield piece
        offset += len(piece)
        size -= len(piece)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _parse_int(digits: str) -> int:
    """As int, which takes minutes over a number of a million digits in an old Python."""
    if len(digits) > 20:
        raise ValueError("a number too large for a size")
    return int(digits)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no size")


def _check(header: Any, start: int, size: int) -> tuple[Tensor, ...]:
    """Raises ValueError for anything but a table that covers the file from `start` to `size`."""
    if not isinstance(header, dict):
        raise ValueError("the header is no object")
    metadata = header.pop("__metadata__", {})
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise ValueError("the metadata is not of text")
    tensors = sorted((_tensor(*item, start) for item in header.items()), key=lambda one: (one.offset, one.size))
    for tensor in tensors:
        if tensor.offset != start:
            raise ValueError(f"{tensor.name!r} overlaps another, or leaves a hole")
        start += tensor.size
    if start != size:
        raise ValueError("the tensors do not end where the file does")
    return tuple(tensors)


def _tensor(name: str, entry: Any, start: int) -> Tensor:
    name.encode()  # not so for half of a surrogate pair, which is no text
    if not isinstance(entry, dict):
        raise ValueError(f"{name!r} is no object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    place: Any = entry.get("data_offsets")
    if not (isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(place) and len(place) == 2):
        raise ValueError(f"{name!r} lacks dtype, shape or data_offsets")
    begin, end = place
    num_bits = _BITS.get(dtype, 0)
    for length in shape:
        num_bits = min(num_bits * length, 1 << 80)
    if begin > end or (dtype in _BITS and num_bits != 8 * (end - begin)):
        raise ValueError(f"{name!r} is not of the size of its shape")
    return Tensor(name, dtype, tuple(shape), start + begin, end - begin)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
