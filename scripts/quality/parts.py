"""Files in parts, for machines to which only so much travels at a time: one archive, compressed, cut, and joined again.

Weights are compressed as they are (xz over pairs of bytes), so that what comes out is bit for bit what went in.
"""

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

PART_BYTES = 48 * 2**20
INDEX = "index.json"
# bf16 weights: two bytes repeat in a block more often than one does, and no text is in them.
_PAIRS = {"id": lzma.FILTER_LZMA2, "lc": 0, "lp": 1, "pb": 1}


def write_parts(
    paths: Sequence[str], folder: Path, *, root: Path, part_bytes: int = PART_BYTES, preset: int = 6
) -> list[str]:
    """Pack `paths`, relative to `root`, into `folder`/part-NN and an index; the names of the parts.

    `preset`: 0 is quick, 6 took five minutes for 260 MB of bf16 weights, which became 55 % of that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part-*"):
        old.unlink()
    packed = io.BytesIO()
    with (
        lzma.open(packed, "wb", format=lzma.FORMAT_XZ, filters=[_PAIRS | {"preset": preset}]) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for path in paths:
            archive.add(root / path, arcname=path)
    content = packed.getvalue()
    parts = {}
    for number, start in enumerate(range(0, len(content), part_bytes)):
        piece = content[start : start + part_bytes]
        name = f"part-{number:02d}"
        (folder / name).write_bytes(piece)
        parts[name] = hashlib.sha256(piece).hexdigest()
    index = {"parts": parts, "sha256": hashlib.sha256(content).hexdigest()}
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return list(parts)


def join_parts(folder: Path, *, root: Path) -> list[str]:
    """Unpack below `root` what `write_parts` packed; the names of the files.

    Raises ValueError: a part missing, or other bytes than were packed.
    """
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    content = bytearray()
    for name, sha256 in index["parts"].items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"wanted {len(index['parts'])} parts in {folder}, {name} is not there yet")
        piece = path.read_bytes()
        if hashlib.sha256(piece).hexdigest() != sha256:
            raise ValueError(f"{path} holds other bytes than were packed: carry it again")
        content += piece
    if hashlib.sha256(content).hexdigest() != index["sha256"]:
        raise ValueError(f"the parts in {folder} do not join to what was packed")
    with lzma.open(io.BytesIO(bytes(content))) as stream, tarfile.open(fileobj=stream, mode="r") as archive:
        members = archive.getmembers()
        archive.extractall(root, members, filter="data")
    return [member.name for member in members if member.isfile()]
