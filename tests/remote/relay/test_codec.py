"""Round trips of every coder this interpreter has; those of packages that are not there are skipped."""

import ast
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflashctl_remote.relay import codec

WIDTHS = (1, 2, 4, 8)
NAMES = ("libzstd", "compression.zstd", "zstandard", "huffman")
ZSTD = NAMES[:3]
BUNDLE = Path(codec.__file__).parents[2]

methods = st.sampled_from(codec.available())
widths = st.sampled_from(WIDTHS)


@st.composite
def chunks(draw) -> bytes:
    """Short ones of any bytes, and long ones that are noise, constant, text or numbers close to one another."""
    short = draw(st.binary(max_size=70))
    kind = draw(st.sampled_from(("short", "noise", "zeros", "few", "floats")))
    num = draw(st.integers(0, 70_000))
    dice = random.Random(draw(st.integers(0, 9)))
    long = {
        "short": lambda: b"",
        "noise": lambda: dice.randbytes(num),
        "zeros": lambda: bytes(num),
        "few": lambda: bytes(dice.choices(b"abc", k=num)),
        "floats": lambda: floats(num // 4, seed=num),
    }[kind]()
    return long + short


def floats(num: int, seed: int = 0) -> bytes:
    dice = random.Random(seed)
    return struct.pack(f"<{num}f", *(dice.gauss(0, 0.02) for _ in range(num)))


def bf16(num: int, seed: int = 0) -> bytes:
    """The upper halves of as many floats: 2 bytes each."""
    whole = floats(num, seed)
    out = bytearray(2 * num)
    out[0::2], out[1::2] = whole[2::4], whole[3::4]
    return bytes(out)


def changed(data: bytes, every: int, seed: int = 0) -> bytes:
    """Every so many bytes one is another."""
    dice, out = random.Random(seed), bytearray(data)
    for place in range(0, len(data), every):
        out[place] ^= dice.randrange(1, 256)
    return bytes(out)


def coder_of(name: str, monkeypatch: pytest.MonkeyPatch) -> codec.Coder:
    if name == "compression.zstd" and sys.version_info < (3, 14):
        # The same module for older interpreters.
        monkeypatch.setitem(sys.modules, name, pytest.importorskip("backports.zstd"))
    if name not in codec.coders():
        pytest.skip(f"no {name} here")
    return codec.coders()[name]


@given(chunks(), widths, methods)
@settings(deadline=None)
def test_round_trip(data, width, method):
    stored = codec.encode(data, width, method=method)
    assert codec.decode(stored, len(data), width) == data
    assert len(stored) <= len(data) + 7 + 5 * width


@given(chunks(), widths, methods, st.integers(1, 5000), st.integers(0, 9))
@settings(deadline=None)
def test_round_trip_against_a_base(data, width, method, every, seed):
    base = changed(data, every, seed)
    stored = codec.encode(data, width, base, method=method)
    assert codec.decode(stored, len(data), width, base) == data


@pytest.mark.parametrize("method", codec.available())
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, (1 << 16) * 8 - 1, (1 << 16) * 8 + 1])
def test_every_length_comes_back(method, width, num_bytes):
    data = random.Random(num_bytes).randbytes(num_bytes)
    for base in (None, data, changed(data, 3), bytes(num_bytes)):
        stored = codec.encode(data, width, base, method=method)
        assert codec.decode(stored, num_bytes, width, base) == data


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_is_taken(kind):
    data = floats(1000)
    stored = codec.encode(kind(data), 4, kind(changed(data, 9)), method="huffman")
    assert codec.decode(kind(stored), len(data), 4, kind(changed(data, 9))) == data


@pytest.mark.parametrize("method", codec.available())
def test_bf16_weights_shrink_to_seven_tenths(method):
    data = bf16(200_000)
    assert len(codec.encode(data, 2, method=method)) < 0.7 * len(data)


@pytest.mark.parametrize("method", codec.available())
def test_noise_is_stored_as_it_is(method):
    data = random.Random(1).randbytes(1 << 20)
    stored = codec.encode(data, 4, method=method)
    assert len(stored) == len(data) + 27
    assert codec.decode(stored, len(data), 4) == data


@pytest.mark.parametrize("method", codec.available())
def test_the_same_again_costs_a_few_bytes(method):
    data = floats(200_000)
    assert len(codec.encode(data, 4, data, method=method)) == 27 + 4
    assert len(codec.encode(bytes(1 << 20), 8, method=method)) == 47 + 8


@pytest.mark.parametrize("method", codec.available())
def test_a_small_change_is_small(method):
    data = bf16(400_000)
    assert len(codec.encode(changed(data, 2000), 2, data, method=method)) < 0.02 * len(data)


@pytest.mark.parametrize("method", codec.available())
def test_a_chunk_changed_in_places_comes_back(method):
    data = floats(300_000)
    base = data[:500_000] + changed(data[500_000:510_000], 7) + data[510_000:-9] + b"otherwise"
    stored = codec.encode(data, 4, base, method=method)
    assert codec.decode(stored, len(data), 4, base) == data
    assert len(stored) < 20_000


@pytest.mark.parametrize("method", codec.available())
def test_a_base_that_has_nothing_in_common_does_no_harm(method):
    data, base = bf16(200_000, seed=1), random.Random(2).randbytes(400_000)
    alone, against = codec.encode(data, 2, method=method), codec.encode(data, 2, base, method=method)
    assert len(against) == len(alone)


def test_measure_gives_the_ratio_of_encode():
    data = bf16(20_000)
    ratio, seconds = codec.measure(data, 2, method="huffman")
    assert ratio == len(codec.encode(data, 2, method="huffman")) / len(data)
    assert seconds > 0
    assert codec.measure(b"", 2, method="huffman")[0] == 17


def test_unknown_methods_and_widths_are_refused():
    with pytest.raises(ValueError, match="found 'lz4'"):
        codec.encode(b"", 2, method="lz4")
    with pytest.raises(ValueError, match="and 3"):
        codec.encode(b"", 3, method="huffman")


def test_a_base_of_another_length_is_refused():
    stored = codec.encode(bytes(8), 2, method="huffman")
    for call in (lambda: codec.encode(bytes(8), 2, b"1", method="huffman"), lambda: codec.decode(stored, 8, 2, b"1")):
        with pytest.raises(ValueError, match="wanted a base of 8 bytes, found 1"):
            call()


@pytest.mark.parametrize("method", codec.available())
def test_another_base_than_was_encoded_against_is_found(method):
    data = bf16(5000)
    stored = codec.encode(changed(data, 100), 2, data, method=method)
    with pytest.raises(ValueError, match="another base"):
        codec.decode(stored, len(data), 2, changed(data, 4999))
    with pytest.raises(ValueError, match="there is none here"):
        codec.decode(stored, len(data), 2)


@pytest.mark.parametrize("name", NAMES)
@given(data=chunks().filter(len))
@settings(max_examples=30, deadline=None)
def test_every_coder_comes_back(name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        coder = coder_of(name, monkeypatch)
        assert coder.decompress(coder.compress(data), len(data)) == data


@pytest.mark.parametrize("reader", ZSTD)
@pytest.mark.parametrize("writer", ZSTD)
def test_zstd_of_one_is_read_by_another(writer, reader, monkeypatch):
    wrote, reads = coder_of(writer, monkeypatch), coder_of(reader, monkeypatch)
    for data in (b"a", bytes(300_000), bf16(200_000)[1::2], floats(50_000), changed(bytes(1 << 20), 999)):
        assert reads.decompress(wrote.compress(data), len(data)) == data


def test_huffman_is_plain_deflate():
    plane = bf16(50_000)[1::2]
    assert zlib.decompress(codec.coders()["huffman"].compress(plane), -15) == plane


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_bytes", [0, 1, 999, 1001, 1 << 30])
def test_coders_refuse_another_size(name, num_bytes, monkeypatch):
    coder = coder_of(name, monkeypatch)
    with pytest.raises(ValueError, match="a damaged plane"):
        coder.decompress(coder.compress(b"abc" * 333 + b"a"), num_bytes)


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_is_refused_before_it_goes_off(name, monkeypatch):
    coder = coder_of(name, monkeypatch)
    bomb = coder.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="a damaged plane"):
            coder.decompress(bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ZSTD)
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param("28b52ffd00b8010000", id="no size, a window of 8 GiB"),
        pytest.param("28b52ffdc0b8ffffffffffffff7f010000", id="a size of 8 EiB"),
        pytest.param("28b52ffd80b8e80300001d7d00", id="a window of 8 GiB, cut short"),
        pytest.param("502a4d180400000000000000", id="a frame to skip"),
        pytest.param("27b52ffde0e803000000000000010000", id="an old format"),
        pytest.param("28b52ffd", id="nothing after the magic"),
        pytest.param("", id="nothing"),
    ],
)
def test_hostile_frames_are_refused(name, frame, monkeypatch):
    with pytest.raises(ValueError):
        coder_of(name, monkeypatch).decompress(bytes.fromhex(frame), 1000)


@pytest.mark.parametrize("name", NAMES)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damage_in_a_plane_is_a_value_error_or_of_the_right_size(name, data):
    plane = b"abcabd" * 50 + bytes(300) + bytes(range(200))
    with pytest.MonkeyPatch.context() as monkeypatch:
        coder = coder_of(name, monkeypatch)
        coded = mutated(data, coder.compress(plane))
        with suppress(ValueError):
            assert len(coder.decompress(coded, len(plane))) == len(plane)


@given(st.data(), methods, widths, st.booleans())
@settings(max_examples=300, deadline=None)
def test_damage_is_a_value_error_or_does_no_harm(data, method, width, has_base):
    original = bf16(600) + bytes(300) + b"odd"
    base = changed(original, 50) if has_base else None
    stored = mutated(data, codec.encode(original, width, base, method=method))
    with suppress(ValueError):
        assert codec.decode(stored, len(original), width, base) == original


@given(st.binary(max_size=200), st.integers(0, 1 << 30), widths)
@settings(deadline=None)
def test_noise_is_no_chunk(noise, size, width):
    with pytest.raises(ValueError):
        codec.decode(b"\x01\x00" + noise, size + 300, width)


def mutated(data: st.DataObject, stored: bytes) -> bytes:
    """Bytes set, cut out or put in, at up to four places."""
    out = bytearray(stored)
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, len(out)))
        out[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    return bytes(out)


@pytest.mark.parametrize("method", codec.available())
def test_threads_do_not_mix_up_their_chunks(method):
    wanted = [bf16(30_000, seed) for seed in range(8)]

    def round_trip(data: bytes) -> bytes:
        return bytes(codec.decode(codec.encode(data, 2, method=method), len(data), 2))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(round_trip, wanted * 4)) == wanted * 4


@pytest.mark.parametrize("module", ["codec", "tensors"])
def test_the_source_is_of_python_3_8(module):
    ast.parse((Path(codec.__file__).parent / f"{module}.py").read_text(), feature_version=(3, 8))


def test_it_runs_without_packages():
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from dflashctl_remote.relay import codec, tensors\n"
        "data = bytes(range(256)) * 99 + b'odd'\n"
        "for method in codec.available():\n"
        "    assert codec.decode(codec.encode(data, 4, method=method), len(data), 4) == data\n"
        "assert not any('site-packages' in (getattr(m, '__file__', '') or '') for m in list(sys.modules.values()))\n"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(BUNDLE)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
