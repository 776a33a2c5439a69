"""Messages between the operator and an agent: a header of fixed length, then so many bytes of payload.

The header is JSON, padded, so that whoever passes a payload on can read it without reading ahead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

HEADER_BYTES = 96


def header(**fields: Any) -> bytes:
    """`n` in it says how many bytes of payload follow; 0 if it is not there."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) >= HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes")
    return text.ljust(HEADER_BYTES - 1) + b"\n"


def message(fields: dict[str, Any], payload: Any) -> bytes:
    """A header and a payload of JSON."""
    body = json.dumps(payload, separators=(",", ":")).encode()
    return header(n=len(body), **fields) + body


def parse(text: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no header."""
    if len(text) != HEADER_BYTES or text[-1:] != b"\n":
        raise ValueError(f"no header: {text[:40]!r}")
    fields = json.loads(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("n", 0), int) or fields.get("n", 0) < 0:
        raise ValueError(f"no header: {text[:40]!r}")
    return fields


def read_exactly(fd: int, num_bytes: int, on_piece: Callable[[], None] | None = None) -> bytes:
    """Raises EOFError if the other side has gone. `on_piece` is called whenever some of it has come."""
    pieces = []
    while num_bytes:
        pieces.append(read_some(fd, min(num_bytes, 1 << 20)))
        num_bytes -= len(pieces[-1])
        if on_piece is not None:
            on_piece()
    return b"".join(pieces)


def read_some(fd: int, most_bytes: int) -> bytes:
    """At least one byte. Raises EOFError if the other side has gone."""
    piece = os.read(fd, most_bytes)
    if not piece:
        raise EOFError("the other side has gone")
    return piece


def read_message(fd: int, on_piece: Callable[[], None] | None = None) -> tuple[dict[str, Any], Any]:
    """Gives the fields and the payload, which must be JSON if there is one. `on_piece` as in `read_exactly`."""
    fields = parse(read_exactly(fd, HEADER_BYTES, on_piece))
    size = fields.get("n", 0)
    return fields, json.loads(read_exactly(fd, size, on_piece)) if size else None


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
