"""Chunks of numbers made smaller without loss: byte planes, each coded by itself, if asked against an older checkpoint.

It knows nothing of files or tensors. stdlib alone and Python 3.8, since it runs under `python3 -I -S` of any host.

An encoded chunk is a head (version, method, width, CRC-32 of the chunk), a table (kind and length of each plane) and
the planes. Plane i holds bytes i, i + width, i + 2 width... of the chunk. In a trained weight the plane of exponents
shrinks to about a third and those of the mantissa hardly: these are found on a sample and left as they are. Measured in
docs/results/relay-codec.md.
"""

from __future__ import annotations

import importlib
import struct
import threading
import time
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    BytesLike = bytes | bytearray | memoryview

METHODS = ("zstd", "huffman")

_HEAD = struct.Struct("<BBBI")
_PLANE = struct.Struct("<BI")
_VERSION = 1
_RAW, _ONE_VALUE, _CODED, _XORED = 0, 1, 2, 4
_SAMPLE_BYTES = 1 << 16
# What saves less than this is not worth the time of both sides.
_WORTH = 0.98
# Integers of this size stay in the cache; the whole plane at once is a third slower.
_XOR_BYTES = 1 << 16
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LIBRARIES = (
    "libzstd.so.1",
    "libzstd.1.dylib",
    "/opt/homebrew/lib/libzstd.1.dylib",
    "/usr/local/lib/libzstd.1.dylib",
)


def available() -> tuple[str, ...]:
    """Those of METHODS that this interpreter can encode and decode, best first."""
    return tuple(method for method in METHODS if find_coder(method))


def encode(data: BytesLike, width: int, base: BytesLike | None = None, *, method: str) -> bytes:
    """Elements are `width` bytes wide (1, 2, 4, 8); a last one may be cut short. `base`: as long, what decode gets too.

    The answer may be longer than `data`, by 7 + 5 * width bytes. Raises ValueError for what is not available().
    """
    coder = find_coder(method)
    if coder is None or width not in (1, 2, 4, 8):
        raise ValueError(f"wanted {available()} and a width of 1, 2, 4 or 8, found {method!r} and {width}")
    # Slices of memoryviews with a step are several times as slow.
    data, base = bytes(data), _base(base, len(data))
    packed = [_pack(data[i::width], None if base is None else base[i::width], coder) for i in range(width)]
    head = _HEAD.pack(_VERSION, METHODS.index(method), width, zlib.crc32(data))
    return b"".join([head, *(_PLANE.pack(kind, len(body)) for kind, body in packed), *(body for _, body in packed)])


def decode(stored: BytesLike, size: int, width: int, base: BytesLike | None = None) -> bytearray:
    """Give back the `size` bytes of encode(), whose CRC-32 is compared; `base` may be given though it was not used.

    Raises ValueError for all that encode() did not make so: damaged, of another size or width, or with another base.
    Never allocates more than a few times `size`, whatever `stored` says.
    """
    stored, base = bytes(stored), _base(base, size)
    method, crc, table = _parse(stored, size, width)
    if base is None and any(kind & _XORED for kind, _ in table):
        raise ValueError("encoded against a base, and there is none here")
    out = bytearray(size)
    start = _HEAD.size + width * _PLANE.size
    for i, (kind, length) in enumerate(table):
        plane = _unpack(kind & ~_XORED, stored[start : start + length], _plane_bytes(size, width, i), method)
        out[i::width] = _xor(plane, base[i::width]) if base is not None and kind & _XORED else plane
        start += length
    if zlib.crc32(out) != crc:
        raise ValueError(f"{size} bytes were decoded to something else than was encoded: damage, or another base")
    return out


def measure(data: BytesLike, width: int, base: BytesLike | None = None, *, method: str) -> tuple[float, float]:
    """Size after by size before (below 1 is smaller) and the seconds of encode() on this sample."""
    start_s = time.perf_counter()
    stored = encode(data, width, base, method=method)
    return len(stored) / max(1, len(data)), time.perf_counter() - start_s


class Coder(NamedTuple):
    """One way of coding a plane, never an empty one."""

    compress: Callable[[bytes], bytes]
    # (what compress gave, the size before); raises ValueError for anything that is not of just this size
    decompress: Callable[[bytes, int], bytes]


def coders() -> dict[str, Coder]:
    """All that this interpreter has; those of "zstd" read what the others of them wrote."""
    found = {name: load() for names in LOADERS.values() for name, load in names.items()}
    return {name: coder for name, coder in found.items() if coder is not None}


@lru_cache
def find_coder(method: str) -> Coder | None:
    return next((coder for coder in (load() for load in LOADERS.get(method, {}).values()) if coder), None)


def _base(base: BytesLike | None, num_bytes: int) -> bytes | None:
    if base is None:
        return None
    base = bytes(base)
    if len(base) != num_bytes:
        raise ValueError(f"wanted a base of {num_bytes} bytes, found {len(base)}")
    return base


def _pack(plane: bytes, base: bytes | None, coder: Coder) -> tuple[int, bytes]:
    if not plane:
        return _RAW, b""
    if _is_one_value(plane):
        return _ONE_VALUE, plane[:1]
    if plane == base:
        return _ONE_VALUE | _XORED, b"\0"
    sample = _sample(plane)
    choices = [(len(coder.compress(sample)), 0)]
    if base is not None:
        choices.append((len(coder.compress(_xor(sample, _sample(base)))), _XORED))
    coded_bytes, flag = min(choices)
    if coded_bytes > _WORTH * len(sample):
        return _RAW, plane
    changed = _xor(plane, base) if base is not None and flag else plane
    if _is_one_value(changed):
        return _ONE_VALUE | flag, changed[:1]
    coded = coder.compress(changed)
    return (_CODED | flag, coded) if len(coded) < len(plane) else (_RAW, plane)


def _parse(stored: bytes, size: int, width: int) -> tuple[str, int, list[tuple[int, int]]]:
    """Method, CRC-32, kind and length of each plane, which together are all that follows."""
    if len(stored) < _HEAD.size + width * _PLANE.size:
        raise ValueError(f"no encoded chunk of width {width}: {len(stored)} bytes")
    version, number, its_width, crc = _HEAD.unpack_from(stored)
    if version != _VERSION or number >= len(METHODS) or its_width != width:
        raise ValueError(f"no encoded chunk of width {width}: it begins with {stored[:3]!r}")
    table = [_PLANE.unpack_from(stored, _HEAD.size + i * _PLANE.size) for i in range(width)]
    if sum(length for _, length in table) != len(stored) - _HEAD.size - width * _PLANE.size:
        raise ValueError(f"an encoded chunk of {len(stored)} bytes, and its planes are of other lengths")
    for i, (kind, length) in enumerate(table):
        num_bytes = _plane_bytes(size, width, i)
        fits = {_RAW: length == num_bytes, _ONE_VALUE: length == 1 <= num_bytes, _CODED: 0 < length < num_bytes}
        if not fits.get(kind & ~_XORED, False):
            raise ValueError(f"plane {i} of {num_bytes} bytes is of kind {kind} and stored in {length}")
    return METHODS[number], crc, table


def _unpack(kind: int, body: bytes, num_bytes: int, method: str) -> bytes:
    if kind == _RAW:
        return body
    if kind == _ONE_VALUE:
        return body * num_bytes
    coder = find_coder(method)
    if coder is None:
        raise ValueError(f"encoded with {method}; here are {available()}")
    return coder.decompress(body, num_bytes)


def _plane_bytes(size: int, width: int, i: int) -> int:
    return len(range(i, size, width))


def _is_one_value(plane: bytes) -> bool:
    """Compared with itself one byte on: no copy, and it ends at the first difference."""
    return plane.startswith(memoryview(plane)[1:])


def _sample(plane: bytes) -> bytes:
    """Four places, since a chunk may hold pieces of several tensors."""
    if len(plane) <= _SAMPLE_BYTES:
        return plane
    piece = _SAMPLE_BYTES // 4
    step = (len(plane) - piece) // 3
    return b"".join([plane[i * step : i * step + piece] for i in range(4)])


def _xor(one: bytes, other: bytes) -> bytes:
    """Integers are the quickest that stdlib has for it, and still the slowest part of all: equal pieces go without."""
    pieces = []
    for start in range(0, len(one), _XOR_BYTES):
        piece, against = one[start : start + _XOR_BYTES], other[start : start + _XOR_BYTES]
        if piece == against:
            piece = bytes(len(piece))
        elif _is_zeros(piece):
            piece = against
        else:
            number = int.from_bytes(piece, "little") ^ int.from_bytes(against, "little")
            piece = number.to_bytes(len(piece), "little")
        pieces.append(piece)
    return b"".join(pieces)


def _is_zeros(data: bytes) -> bool:
    return not data[0] and _is_one_value(data)


def _load_huffman() -> Coder:
    def compress(data: bytes) -> bytes:
        # A code has at least one bit a byte: zeros that are most of the data are better taken as runs.
        sample = _sample(data)
        is_sparse = sample.count(0) > 0.8 * len(sample)
        coder = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE if is_sparse else zlib.Z_HUFFMAN_ONLY)
        return coder.compress(data) + coder.flush()

    def decompress(coded: bytes, num_bytes: int) -> bytes:
        decoder = zlib.decompressobj(-15)
        try:
            # One more than wanted: so the end of the stream is seen, and what is longer.
            data = decoder.decompress(coded, num_bytes + 1)
        except zlib.error as error:
            raise ValueError(f"a damaged plane: {error}") from error
        return _exact(data, num_bytes, decoder.eof and not decoder.unused_data)

    return Coder(compress, decompress)


def _load_stdlib_zstd() -> Coder | None:
    try:
        zstd = importlib.import_module("compression.zstd")
    except ImportError:
        return None

    def decompress(coded: bytes, num_bytes: int) -> bytes:
        try:
            _check_frame(coded, zstd.get_frame_info(coded).decompressed_size, num_bytes)
            decoder = zstd.ZstdDecompressor()
            data = decoder.decompress(coded, num_bytes + 1)
        except zstd.ZstdError as error:
            raise ValueError(f"a damaged plane: {error}") from error
        return _exact(data, num_bytes, decoder.eof and not decoder.unused_data)

    return Coder(lambda data: zstd.compress(data, 1), decompress)


def _load_zstandard() -> Coder | None:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        return None

    def decompress(coded: bytes, num_bytes: int) -> bytes:
        try:
            _check_frame(coded, zstandard.frame_content_size(coded), num_bytes)
            data = zstandard.ZstdDecompressor().decompress(coded)
        except zstandard.ZstdError as error:
            raise ValueError(f"a damaged plane: {error}") from error
        return _exact(data, num_bytes)

    return Coder(lambda data: zstandard.ZstdCompressor(level=1).compress(data), decompress)


def _load_libzstd() -> Coder | None:
    """The library of the system. First of all, since it alone can be told not to look for matches."""
    try:
        ctypes = importlib.import_module("ctypes")
    except ImportError:
        return None
    for name in _LIBRARIES:
        try:
            coder = _Libzstd(ctypes, _declare(ctypes, ctypes.CDLL(name)))
        except (OSError, AttributeError):  # there is none, or one of before 1.4, of 2019
            continue
        return Coder(coder.compress, coder.decompress)
    return None


def _declare(ctypes: Any, library: Any) -> Any:
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    for function, result, *arguments in (
        ("ZSTD_createCCtx", pointer),
        ("ZSTD_freeCCtx", size, pointer),
        ("ZSTD_CCtx_setParameter", size, pointer, ctypes.c_int, ctypes.c_int),
        ("ZSTD_compress2", size, pointer, pointer, size, text, size),
        ("ZSTD_compressBound", size, size),
        ("ZSTD_createDCtx", pointer),
        ("ZSTD_freeDCtx", size, pointer),
        ("ZSTD_decompressDCtx", size, pointer, pointer, size, text, size),
        ("ZSTD_getFrameContentSize", ctypes.c_ulonglong, text, size),
        ("ZSTD_isError", ctypes.c_uint, size),
        ("ZSTD_getErrorName", text, size),
    ):
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


class _Libzstd(threading.local):
    """Contexts are made once a thread and freed with it; ctypes lets other threads run meanwhile."""

    def __init__(self, ctypes: Any, library: Any) -> None:
        self.ctypes, self.library = ctypes, library
        self.decoder = _Context(library.ZSTD_createDCtx, library.ZSTD_freeDCtx)
        self.matching = _Context(library.ZSTD_createCCtx, library.ZSTD_freeCCtx)
        self.literal = _Context(library.ZSTD_createCCtx, library.ZSTD_freeCCtx)
        # Numbers of zstd.h: compressionLevel; literalCompressionMode, which is experimental and may be refused;
        # targetLength, how far to skip where nothing matches, at its most.
        self._set(self.matching, {100: 1})
        if not self._set(self.literal, {100: 1, 1002: 1, 106: 1 << 17}):
            self.literal = self.matching

    def compress(self, data: bytes) -> bytes:
        sample = _sample(data)
        encoder, matched_bytes = self.matching, len(self._compress(self.matching, sample))
        # Literals take at least a bit a byte.
        if matched_bytes > len(sample) / 8 and len(self._compress(self.literal, sample)) < matched_bytes:
            encoder = self.literal
        return self._compress(encoder, data)

    def decompress(self, coded: bytes, num_bytes: int) -> bytes:
        _check_frame(coded, self.library.ZSTD_getFrameContentSize(coded, len(coded)), num_bytes)
        return _exact(self._call(self.library.ZSTD_decompressDCtx, self.decoder, num_bytes, coded), num_bytes)

    def _compress(self, encoder: _Context, data: bytes) -> bytes:
        return self._call(self.library.ZSTD_compress2, encoder, self.library.ZSTD_compressBound(len(data)), data)

    def _call(self, function: Any, context: _Context, room_bytes: int, data: bytes) -> bytes:
        room = bytearray(room_bytes)
        to = self.ctypes.byref(self.ctypes.c_char.from_buffer(room))
        num_bytes = function(context.address, to, room_bytes, data, len(data))
        if self.library.ZSTD_isError(num_bytes):
            raise ValueError(f"libzstd: {self.library.ZSTD_getErrorName(num_bytes).decode()}")
        return bytes(memoryview(room)[:num_bytes])

    def _set(self, encoder: _Context, parameters: dict[int, int]) -> bool:
        results = [self.library.ZSTD_CCtx_setParameter(encoder.address, *one) for one in parameters.items()]
        return not any(self.library.ZSTD_isError(result) for result in results)


class _Context:
    def __init__(self, create: Any, free: Any) -> None:
        self.free = free
        self.address = create()
        if not self.address:
            raise MemoryError("libzstd has no memory for a context")

    def __del__(self) -> None:
        self.free(self.address)


def _check_frame(coded: bytes, says_bytes: int, num_bytes: int) -> None:
    """Before anything is allocated: decoders trust the size in a frame, and old formats are no business of ours."""
    if coded[:4] != _ZSTD_MAGIC or says_bytes != num_bytes:
        raise ValueError(f"a damaged plane: wanted a zstd frame of {num_bytes} bytes")


def _exact(data: bytes, num_bytes: int, is_whole: bool = True) -> bytes:
    if len(data) != num_bytes or not is_whole:
        raise ValueError(f"a damaged plane: wanted {num_bytes} bytes")
    return data


LOADERS: dict[str, dict[str, Callable[[], Coder | None]]] = {
    "zstd": {"libzstd": _load_libzstd, "compression.zstd": _load_stdlib_zstd, "zstandard": _load_zstandard},
    "huffman": {"huffman": _load_huffman},
}
