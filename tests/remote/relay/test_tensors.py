"""Tables as the safetensors package reads and writes them, hostile headers, digests of ranges."""

import hashlib
import json
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dflashctl_remote.drafter.checkpoint import save_drafter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.relay.tensors import Tensor, read_table, sha256_of_ranges, width_of
from dflashctl_remote.spec.drafter import DrafterSpec, resolve_drafter

DTYPES = {
    torch.bfloat16: ("BF16", 2),
    torch.float16: ("F16", 2),
    torch.float32: ("F32", 4),
    torch.float64: ("F64", 8),
    torch.int64: ("I64", 8),
    torch.int32: ("I32", 4),
    torch.int16: ("I16", 2),
    torch.int8: ("I8", 1),
    torch.uint8: ("U8", 1),
    torch.bool: ("BOOL", 1),
    torch.float8_e4m3fn: ("F8_E4M3", 1),
    torch.float8_e5m2: ("F8_E5M2", 1),
}
A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 16]}


@contextmanager
def file_of(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("tensors")
    try:
        os.write(descriptor, data)
        yield descriptor
    finally:
        os.close(descriptor)


def table_of(data: bytes) -> tuple[Tensor, ...] | None:
    with file_of(data) as descriptor:
        return read_table(descriptor, len(data))


def packed(header: object, num_bytes: int = 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(num_bytes)


def read_file(path: Path) -> tuple[Tensor, ...]:
    with path.open("rb") as file:
        table = read_table(file.fileno(), path.stat().st_size)
    assert table is not None
    return table


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def test_tensors_lie_where_the_package_put_them(tmp_path):
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.0)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    table, data = read_file(tmp_path / "x.safetensors"), (tmp_path / "x.safetensors").read_bytes()
    assert {one.name for one in table} == tensors.keys()
    assert [one.offset for one in table] == sorted(one.offset for one in table)
    for one in table:
        assert one.shape == tuple(tensors[one.name].shape)
        assert data[one.offset : one.offset + one.size] == bytes_of(tensors[one.name])
    assert {one.name: (one.dtype, width_of(one.dtype)) for one in table if one.name.startswith("torch.")} == {
        str(dtype): expected for dtype, expected in DTYPES.items()
    }


def test_a_drafter_of_ours_is_read(tmp_path, attention_target):
    spec = DrafterSpec(
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        block_size=4,
        tap_layers=(0, 2),
    )
    drafter = Drafter(resolve_drafter(spec, attention_target.shape))
    save_drafter(drafter, tmp_path)
    data, state = (tmp_path / "model.safetensors").read_bytes(), drafter.state_dict()
    table = read_file(tmp_path / "model.safetensors")
    assert {one.name for one in table} == state.keys()
    for one in table:
        assert data[one.offset : one.offset + one.size] == bytes_of(state[one.name])


def test_widths_are_of_elements():
    assert {name: width_of(name) for name in ("F4", "F6_E2M3", "U16", "U32", "U64", "C64", "F8_E8M0", "Q3", "")} == {
        "F4": 1,
        "F6_E2M3": 1,
        "U16": 2,
        "U32": 4,
        "U64": 8,
        "C64": 8,
        "F8_E8M0": 1,
        "Q3": 1,
        "": 1,
    }


def test_a_dtype_of_tomorrow_is_taken_by_its_place():
    assert table_of(packed({"a": A | {"dtype": "F2", "shape": [9]}}, 8)) == (
        Tensor("a", "F2", (9,), 8 + len(json.dumps({"a": A | {"dtype": "F2", "shape": [9]}})), 8),
    )


def test_metadata_is_no_tensor():
    table = table_of(packed({"__metadata__": {"a": "b"}, "b": B, "a": A}))
    assert table is not None
    assert [one.name for one in table] == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x02\0\0", id="shorter than a length"),
        pytest.param(bytes(8), id="no header"),
        pytest.param((1 << 63).to_bytes(8, "little") + b"{}", id="header beyond the file"),
        pytest.param((3).to_bytes(8, "little") + b"{}", id="header one byte beyond the file"),
        pytest.param(packed(b"[]", 0), id="a list"),
        pytest.param(packed(b'"a"', 0), id="text"),
        pytest.param(packed(b"{", 0), id="half an object"),
        pytest.param(packed(b'{"a\xff":1}', 0), id="no UTF-8"),
        pytest.param(packed('{"a":1}'.encode("utf-16"), 0), id="UTF-16"),
        pytest.param(packed(b"[" * 200_000, 0), id="deeper than the stack"),
        pytest.param(packed(b'{"a":' * 200_000, 0), id="objects deeper than the stack"),
        pytest.param(packed({"a": []}), id="an entry that is a list"),
        pytest.param(packed({"a": None}), id="an entry that is null"),
        pytest.param(packed({"a": {}}), id="an entry without fields"),
        pytest.param(packed({"__metadata__": {"a": 1}, "a": A, "b": B}), id="metadata of numbers"),
        pytest.param(packed({"__metadata__": [], "a": A, "b": B}), id="metadata that is a list"),
        pytest.param(packed({"a": A}), id="more bytes than tensors"),
        pytest.param(packed({"a": A, "b": B}, 15), id="a tensor beyond the file"),
        pytest.param(packed({"a": A, "b": B | {"data_offsets": [7, 15]}}), id="overlap"),
        pytest.param(packed({"a": A, "b": A, "c": B}), id="two at one place"),
        pytest.param(packed({"a": A, "b": B | {"data_offsets": [9, 17]}}, 17), id="a hole"),
        pytest.param(packed({"a": A | {"data_offsets": [8, 0]}, "b": B}), id="end before begin"),
        pytest.param(packed({"a": A | {"data_offsets": [-8, 0]}, "b": B}), id="before the data"),
        pytest.param(packed({"a": A | {"data_offsets": [0, 8, 8]}, "b": B}), id="three offsets"),
        pytest.param(packed({"a": A | {"data_offsets": [0.0, 8]}, "b": B}), id="a float for an offset"),
        pytest.param(packed({"a": A | {"data_offsets": [False, 8]}, "b": B}), id="a truth for an offset"),
        pytest.param(packed({"a": A | {"data_offsets": ["0", 8]}, "b": B}), id="text for an offset"),
        pytest.param(packed({"a": A | {"shape": [3]}, "b": B}), id="a shape of another size"),
        pytest.param(packed({"a": A | {"shape": [-1, -2]}, "b": B}), id="a shape below zero"),
        pytest.param(packed({"a": A | {"shape": 2}, "b": B}), id="a shape that is a number"),
        pytest.param(packed({"a": A | {"dtype": 4}, "b": B}), id="a dtype that is a number"),
        pytest.param(packed({"\ud800": A, "b": B}), id="half a surrogate pair"),
        pytest.param(packed(json.dumps({"a": A, "b": A}).replace("b", "a").encode(), 8), id="a name twice"),
        pytest.param(
            packed(b'{"a":{"dtype":"U8","shape":[0],"shape":[1],"data_offsets":[0,1]}}', 1), id="a field twice"
        ),
        pytest.param(packed(b'{"a":' + b"9" * 2_000_000 + b"}"), id="a number of two million digits"),
        pytest.param(packed(b'{"a":NaN}'), id="no number"),
    ],
)
def test_what_is_no_safetensors_file_is_none(data):
    assert table_of(data) is None


def test_a_header_over_100_mb_is_not_read():
    with file_of((100_000_001).to_bytes(8, "little")) as descriptor:
        os.truncate(descriptor, 300_000_000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert read_table(descriptor, 300_000_000) is None
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_file_that_shrank_is_none():
    data = packed({"a": A, "b": B})
    with file_of(data[:20]) as descriptor:
        assert read_table(descriptor, len(data)) is None


headers = st.dictionaries(
    st.text(max_size=3),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "U8", "F4"]),
            "shape": st.lists(st.integers(-1, 4), max_size=2),
            "data_offsets": st.lists(st.integers(-1, 16), min_size=2, max_size=2),
        }
    ),
    max_size=2,
)


@given(headers, st.integers(0, 17), st.sampled_from([b"", b" ", b"\n  ", b"x"]))
@settings(max_examples=300, deadline=None)
def test_the_package_agrees_on_headers(header, num_bytes, tail):
    check_like_the_package(packed(json.dumps(header).encode() + tail, num_bytes))


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_the_package_agrees_on_damage(data):
    out = bytearray(packed({"__metadata__": {"k": "v"}, "b": B, "a": A}))
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(out)))
        new = data.draw(st.one_of(st.binary(max_size=2), st.sampled_from([b"1", b"0", b'"', b"8", b",", b" "])))
        out[start : start + data.draw(st.integers(0, 2))] = new
    check_like_the_package(bytes(out))


def check_like_the_package(data: bytes) -> None:
    """Ours may take a dtype that the package does not know; else both take it, with the same places, or neither."""
    try:
        expected = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        table = table_of(data)
        known = {"F32", "BF16", "U8", "F4"}
        assert table is None or any(one.dtype not in known for one in table)
        return
    table = table_of(data)
    assert table is not None
    found = {one.name: (one.dtype, list(one.shape), data[one.offset : one.offset + one.size]) for one in table}
    assert found == {name: (one["dtype"], one["shape"], bytes(one["data"])) for name, one in expected}


@pytest.mark.parametrize(
    "ranges", [[], [(0, 5_000_000)], [(i * 700_001, 700_001) for i in range(6)] + [(3, 0), (9, 1)]]
)
def test_digests_are_those_of_hashlib(ranges):
    data = random.Random(1).randbytes(5_000_000)
    with file_of(data) as descriptor:
        found = sha256_of_ranges(descriptor, ranges)
    assert found == [hashlib.sha256(data[offset : offset + size]).hexdigest() for offset, size in ranges]


@pytest.mark.parametrize("ranges", [[(0, 11)], [(0, 1), (5, 6)]])
def test_a_range_beyond_the_file_has_no_digest(ranges):
    with file_of(bytes(10)) as descriptor, pytest.raises(EOFError, match="ends 1 bytes early"):
        sha256_of_ranges(descriptor, ranges)
