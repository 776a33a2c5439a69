"""Places that keep files but run nothing, to read from or write to: an S3 bucket, a Hugging Face repository.

All methods may be called by several threads at once, but `begin` and `finish`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dflashctl.errors import ArtifactError


class SourceChanged(ArtifactError):
    """A file is not the one any more that was listed; what was read of it before must not be used."""


class UploadLost(ArtifactError):
    """The store dropped what had been sent of a file; `begin` tells anew what is there."""


@dataclass(frozen=True)
class StoredFile:
    path: str
    """Relative to what was asked for, with forward slashes; never absolute, never with `..`."""
    size_bytes: int
    version: str
    """Equal as long as the content is: an ETag, a commit and object id."""
    sha256: str | None = None
    """If the store tells it and it is to be believed."""
    is_all: bool = False
    """It is itself what was asked for, and no file of a folder."""


class FileSource(Protocol):
    @property
    def name(self) -> str:
        """For people: s3://bucket/prefix, hf://org/name@revision."""
        ...

    def files(self) -> tuple[StoredFile, ...]:
        """In order of path. Raises ArtifactError if there is nothing, ConfigError, HostUnreachable."""
        ...

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        """Exactly so many bytes. Tries again by itself where that helps.

        Raises SourceChanged, ArtifactError (gone, denied), HostUnreachable.
        """
        ...

    def close(self) -> None: ...


class FileSink(Protocol):
    @property
    def name(self) -> str: ...

    def part_bytes(self, size_bytes: int) -> int:
        """Of what size the parts of a file of this size are; the last may be shorter. An empty file has one, empty."""
        ...

    def begin(self, files: tuple[StoredFile, ...]) -> Mapping[str, frozenset[int]]:
        """What of each file's parts is there already, from an earlier try with the same versions.

        Of files that are complete there, all parts. Raises ConfigError, HostUnreachable.
        """
        ...

    @property
    def occupied(self) -> tuple[str, ...]:
        """Paths under which `begin` found something else than will be written."""
        ...

    def write(self, file: StoredFile, part: int, data: bytes) -> None:
        """Part 0 is the first. Raises ArtifactError (denied, full), UploadLost, HostUnreachable."""
        ...

    def finish(self, sha256s: Mapping[str, str]) -> None:
        """Put all files together, the manifest last, each with its sha256 beside it; compare what the store says.

        Raises ArtifactError if that is not what was sent, UploadLost.
        """
        ...

    def close(self) -> None: ...
