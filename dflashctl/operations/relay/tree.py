"""What is moved: files with what must not change while they are read, folders, links. And how it is cut into chunks."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CHUNK_BYTES = 8 << 20
OWN_CHUNK_BYTES = 1 << 20
MOST_PIECES = 2048
"""A chunk of small files has no more than these."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file; offsets and sizes in bytes."""

    width: int
    offset: int
    size: int
    name: str
    dtype: str


@dataclass(frozen=True)
class SourceFile:
    path: str
    size: int
    mtime_ns: int
    inode: int | str
    """Or whatever else a store calls a version."""
    mode: int
    tensors: tuple[Tensor, ...] = ()
    content: str = ""
    """Its sha256, where somebody has vouched for it: then it is the same file however often it is touched."""

    @property
    def version(self) -> tuple[Any, ...]:
        return (self.path, self.size, self.mtime_ns, self.inode)

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.path, self.size, self.content) if self.content else self.version


@dataclass(frozen=True)
class Tree:
    root: str
    """At the source."""
    is_file: bool
    """Then there is one file, and its name at the target may be another."""
    files: tuple[SourceFile, ...]
    dirs: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    manifest: str | None = None
    need_bytes: int = 0
    """Room that it takes; holes take none."""

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)


def tree_of(told: Mapping[str, Any]) -> Tree:
    """From an agent's scan."""
    files = tuple(
        SourceFile(path, size, mtime_ns, inode, mode, tuple(Tensor(*tensor) for tensor in tensors))
        for path, size, mtime_ns, inode, mode, tensors in told["files"]
    )
    links = tuple((path, said) for path, said in told["links"])
    return Tree(
        told["root"], told["is_file"], files, tuple(told["dirs"]), links, told["manifest"], int(told["need_bytes"])
    )


@dataclass(frozen=True)
class Place:
    """Where bytes that both ends have lie: absolute paths there, and the offset of a tensor's first byte."""

    source_path: str
    source_offset: int
    target_path: str
    target_offset: int


@dataclass(frozen=True)
class Known:
    """What of a tree the target has in some form, by (path, tensor's name)."""

    same: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    """Equal bytes are there: copied within the target."""
    whole: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    """The same of whole files, by (path, nothing)."""
    base: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    """Earlier bytes are at both ends: the difference is sent."""


@dataclass(frozen=True)
class Chunk:
    number: int
    key: str
    """By what it holds: equal in a later try as long as its files have not changed."""
    pieces: tuple[tuple[int, int, int], ...]
    """File, offset, length."""
    width: int
    size: int
    kind: str
    """plain, base (of a difference) or same (nothing is sent)."""
    places: tuple[Place, ...] = ()
    """One for each piece, where the kind is not plain."""

    def question(self) -> dict[str, Any]:
        return {"pieces": self.pieces, "width": self.width, "size": self.size}

    def source_bases(self) -> list[tuple[str, int, int]]:
        return [(p.source_path, p.source_offset, piece[2]) for p, piece in zip(self.places, self.pieces, strict=True)]

    def target_bases(self) -> list[tuple[str, int, int]]:
        return [(p.target_path, p.target_offset, piece[2]) for p, piece in zip(self.places, self.pieces, strict=True)]


@dataclass(frozen=True)
class _Segment:
    """Bytes of one file that are treated alike."""

    file: int
    offset: int
    size: int
    width: int
    kind: str = "plain"
    place: Place | None = None


def cut(tree: Tree, origin: str, known: Known | None = None) -> tuple[Chunk, ...]:
    """Chunks in the order of the files. `origin`: the source's name, so that a relay from elsewhere shares no chunk."""
    chunks: list[Chunk] = []
    pieces: list[tuple[int, int, int]] = []
    places: list[Place] = []
    alike: tuple[int, str] = (0, "")
    size = 0

    def close() -> None:
        nonlocal pieces, places, size
        if pieces:
            held = [(*tree.files[index].identity, offset, length) for index, offset, length in pieces]
            key = hashlib.sha256(json.dumps([origin, tree.root, held]).encode()).hexdigest()[:20]
            chunks.append(Chunk(len(chunks), key, tuple(pieces), alike[0], size, alike[1], tuple(places)))
        pieces, places, size = [], [], 0

    last = -1
    for segment in _segments(tree, known or Known()):
        # A file of some size has chunks of its own: those of others stay the same when it changes.
        if segment.file != last and max(tree.files[segment.file].size, tree.files[last].size) >= OWN_CHUNK_BYTES:
            close()
        last = segment.file
        at = 0
        while at < segment.size:
            if (segment.width, segment.kind) != alike or size >= CHUNK_BYTES or len(pieces) >= MOST_PIECES:
                close()
                alike = (segment.width, segment.kind)
            length = min(segment.size - at, CHUNK_BYTES - size)
            pieces.append((segment.file, segment.offset + at, length))
            if segment.place is not None:
                place = segment.place
                places.append(
                    Place(place.source_path, place.source_offset + at, place.target_path, place.target_offset + at)
                )
            at, size = at + length, size + length
    close()
    return tuple(chunks)


def _segments(tree: Tree, known: Known) -> Iterator[_Segment]:
    for index, file in enumerate(tree.files):
        if (file.path, "") in known.whole:
            if file.size:
                yield _Segment(index, 0, file.size, 1, "same", known.whole[file.path, ""])
            continue
        at = 0
        for tensor in file.tensors:
            if tensor.offset > at:
                yield _Segment(index, at, tensor.offset - at, 1)
            name = (file.path, tensor.name)
            if name in known.same:
                yield _Segment(index, tensor.offset, tensor.size, tensor.width, "same", known.same[name])
            elif name in known.base:
                yield _Segment(index, tensor.offset, tensor.size, tensor.width, "base", known.base[name])
            else:
                yield _Segment(index, tensor.offset, tensor.size, tensor.width)
            at = tensor.offset + tensor.size
        if file.size > at:
            yield _Segment(index, at, file.size - at, 1)


class Frontier:
    """Of each file, up to where it has come without a gap: so far it can be read back. Used under a lock of others."""

    def __init__(self, tree: Tree) -> None:
        self._files = tree.files
        self._at = [0] * len(tree.files)
        self._ends: list[dict[int, int]] = [{} for _ in tree.files]

    def add(self, chunk: Chunk) -> list[tuple[str, int]]:
        """Files that have come further with it, and how far."""
        moved: dict[int, int] = {}
        for index, offset, length in chunk.pieces:
            self._ends[index][offset] = offset + length
            while self._at[index] in self._ends[index]:
                self._at[index] = moved[index] = self._ends[index].pop(self._at[index])
        return [(self._files[index].path, to) for index, to in moved.items()]
