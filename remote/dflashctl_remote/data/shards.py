"""The dataset folder: token shards as plain .npy files that are memory-mapped, documents.jsonl, and the manifest.

shard-00000/tokens.npy         uint32 [tokens]     all documents of the shard, one after the other
shard-00000/supervised.npy     bool   [tokens]     the assistant wrote the token
shard-00000/offsets.npy        int64  [documents + 1]  document i is tokens[offsets[i] : offsets[i + 1]]
shard-00000/first_anchors.npy  int64  [documents]  first p with p and p + 1 supervised; -1: none
documents.jsonl                {"id", "category", "num_tokens", "num_supervised"} a line, in the same order
"""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.errors import ArtifactCorrupt, BadInput
from dflashctl_remote.spec.manifest import Manifest, read_manifest, verify

_DOCUMENTS = "documents.jsonl"
SHARD_TOKENS = 1 << 24


@dataclass(frozen=True)
class Document:
    input_ids: npt.NDArray[np.integer[Any]]
    is_supervised: npt.NDArray[np.bool_]
    id: str = ""
    category: str | None = None


class Dataset:
    """A complete dataset folder, read-only. Opening reads the offsets; tokens stay on the disk until used."""

    def __init__(self, folder: Path, info: DatasetInfo, shards: tuple[Path, ...]) -> None:
        self.folder = folder
        self.info = info
        self._tokens = [_mapped(s / "tokens.npy", np.uint32) for s in shards]
        self._supervised = [_mapped(s / "supervised.npy", np.bool_) for s in shards]
        # Of the files that stay mapped: pages beyond a new end read as zeros, or kill whoever reads them.
        self._sizes = {path: path.stat().st_size for s in shards for path in _mapped_files(s)}
        self._shards = shards
        self._offsets = [np.array(_mapped(s / "offsets.npy", np.int64)) for s in shards]
        counts = [len(o) - 1 for o in self._offsets]
        self._first_document = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.lengths: npt.NDArray[np.int64] = np.concatenate([np.diff(o) for o in self._offsets])
        """Tokens of each document."""
        self.first_anchors: npt.NDArray[np.int64] = np.concatenate(
            [np.array(_mapped(s / "first_anchors.npy", np.int64)) for s in shards]
        )
        """First position of each document where a block may start; -1: none."""

    @classmethod
    def open(cls, folder: Path, *, verify_content: bool = False) -> Self:
        """Compare every file's size with the manifest, and its sha256 too if `verify_content` (reads all of it).

        Raises ArtifactIncomplete without a manifest, ArtifactCorrupt at the first difference.
        """
        manifest = read_manifest(folder, "dataset")
        verify(folder, "dataset", content=verify_content)
        info = _info_of(folder, manifest)
        shards = sorted({(folder / entry.path).parent for entry in manifest.files} - {folder})
        dataset = cls(folder, info, tuple(shards))
        found = (len(dataset), int(dataset.lengths.sum()))
        if found != (info.num_documents, info.num_tokens):
            raise ArtifactCorrupt(
                f"{folder}: the manifest says {info.num_documents} documents of {info.num_tokens} tokens, "
                f"the shards hold {found[0]} of {found[1]}"
            )
        return dataset

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, index: int, *, max_tokens: int | None = None) -> Document:
        """The tokens of a document, or its first `max_tokens`, without the names that `document` looks up.

        Raises ArtifactCorrupt if the shard's files are not as long any more as they were when it was opened.
        """
        shard = int(np.searchsorted(self._first_document, index, side="right")) - 1
        self._refuse_changed(self._shards[shard])
        start, end = self._offsets[shard][index - self._first_document[shard] :][:2]
        end = end if max_tokens is None else min(end, start + max_tokens)
        return Document(
            input_ids=np.asarray(self._tokens[shard][start:end], np.int64),
            is_supervised=np.array(self._supervised[shard][start:end], np.bool_),
        )

    def document(self, index: int) -> Document:
        """Raises BadInput if there is no such document."""
        if not 0 <= index < len(self):
            raise BadInput(f"wanted document {index} of {self.folder}, which has 0 to {len(self) - 1}")
        name, category = self.names[index]
        tokens = self.tokens(index)
        return Document(tokens.input_ids, tokens.is_supervised, name, category)

    def _refuse_changed(self, shard: Path) -> None:
        for path in _mapped_files(shard):
            # One that was removed is still mapped, whole.
            if path.exists() and path.stat().st_size != self._sizes[path]:
                raise ArtifactCorrupt(
                    f"{path} has {path.stat().st_size} bytes, and had {self._sizes[path]} when it was opened",
                    hint="make the dataset again, with no run reading it, and resume",
                )

    @cached_property
    def names(self) -> tuple[tuple[str, str | None], ...]:
        """(id, category) of every document; read on first use."""
        with (self.folder / _DOCUMENTS).open("rb") as file:
            records = [json.loads(line) for line in file]
        if len(records) != len(self):
            raise ArtifactCorrupt(f"{self.folder}: {_DOCUMENTS} names {len(records)} of {len(self)} documents")
        return tuple((r["id"], r["category"]) for r in records)


class ShardWriter:
    """Writes the files of a dataset folder, all but the manifest. Holds at most one shard in memory."""

    def __init__(self, folder: Path, *, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._pending: list[Document] = []
        self._num_pending_tokens = 0
        self._num_shards = 0
        self._names: IO[str] = (folder / _DOCUMENTS).open("w", encoding="utf-8")
        self.num_documents = 0
        self.num_tokens = 0
        self.num_supervised = 0
        self.max_document_tokens = 0

    def add(self, document: Document) -> None:
        num_tokens, num_supervised = len(document.input_ids), int(document.is_supervised.sum())
        record = {
            "id": document.id,
            "category": document.category,
            "num_tokens": num_tokens,
            "num_supervised": num_supervised,
        }
        self._names.write(json.dumps(record) + "\n")
        self._pending.append(document)
        self._num_pending_tokens += num_tokens
        self.num_documents += 1
        self.num_tokens += num_tokens
        self.num_supervised += num_supervised
        self.max_document_tokens = max(self.max_document_tokens, num_tokens)
        if self._num_pending_tokens >= self._shard_tokens:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._names:
            if kind is None:
                self._flush()
                self._names.flush()
                os.fsync(self._names.fileno())

    def _flush(self) -> None:
        if not self._pending:
            return
        shard = self._folder / f"shard-{self._num_shards:05d}"
        shard.mkdir()
        lengths = [len(d.input_ids) for d in self._pending]
        _save(shard / "tokens.npy", np.concatenate([d.input_ids for d in self._pending]).astype(np.uint32))
        _save(shard / "supervised.npy", np.concatenate([d.is_supervised for d in self._pending]))
        _save(shard / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        _save(shard / "first_anchors.npy", np.array([first_anchor(d.is_supervised) for d in self._pending]))
        self._num_shards += 1
        self._pending.clear()
        self._num_pending_tokens = 0


def anchor_candidates(is_supervised: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Positions where a block may start: supervised, and so is the next one."""
    candidates = is_supervised.copy()
    candidates[:-1] &= is_supervised[1:]
    candidates[-1:] = False
    return candidates


def first_anchor(is_supervised: npt.NDArray[np.bool_]) -> int:
    """The first anchor candidate, or -1."""
    candidates = anchor_candidates(is_supervised)
    return int(candidates.argmax()) if candidates.any() else -1


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _mapped_files(shard: Path) -> tuple[Path, Path]:
    return shard / "tokens.npy", shard / "supervised.npy"


def _mapped(path: Path, dtype: type[np.generic]) -> npt.NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArtifactCorrupt(f"{path} cannot be read as an array: {error}") from error
    if array.dtype != dtype or array.ndim != 1:
        raise ArtifactCorrupt(f"{path}: wanted one row of {np.dtype(dtype)}, found {array.dtype} {array.shape}")
    return array


def _info_of(folder: Path, manifest: Manifest) -> DatasetInfo:
    try:
        return DatasetInfo.model_validate(manifest.about)
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtifactCorrupt(f"{folder}: the manifest's about.{first['loc'][0]}: {first['msg']}") from error
