"""The manifest of a finished folder: written last and atomically, so that its presence means complete."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.errors import ArtifactCorrupt, ArtifactIncomplete

MANIFEST_NAME = "manifest.json"

Kind = Literal["checkpoint", "dataset", "responses", "evaluation"]


class FileEntry(Spec):
    path: str
    """Relative to the folder, with forward slashes."""
    size_bytes: int
    sha256: str


class Manifest(Spec):
    schema_version: Literal[1] = 1
    kind: Kind
    created_at_s: float
    """Unix time."""
    bundle_sha: str
    files: tuple[FileEntry, ...]
    about: dict[str, Any]
    """What it is: step, run, loss, number of documents: facts that a reader wants without opening the files."""


def write_manifest(folder: Path, kind: Kind, *, bundle_sha: str, about: dict[str, Any]) -> Manifest:
    """Hash every file under `folder`, then write the manifest beside them by rename."""
    entries = tuple(
        FileEntry(path=p.relative_to(folder).as_posix(), size_bytes=p.stat().st_size, sha256=sha256_of(p))
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MANIFEST_NAME
    )
    manifest = Manifest(kind=kind, created_at_s=time.time(), bundle_sha=bundle_sha, files=entries, about=about)
    write_atomically(folder / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
    return manifest


def read_manifest(folder: Path, kind: Kind) -> Manifest:
    """The manifest of a complete folder of this kind.

    Raises ArtifactIncomplete without one, ArtifactCorrupt if it cannot be read or is of another kind.
    """
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        raise ArtifactIncomplete(f"no {kind} at {folder}: there is no such folder")
    if not path.is_file():
        raise ArtifactIncomplete(
            f"{folder} is not a complete {kind}: it has no {MANIFEST_NAME}, so it was never finished",
            hint="use an older complete one, or let the command that writes it run to its end",
        )
    return parse_manifest(path.read_bytes(), folder, kind)


def parse_manifest(content: bytes | str, folder: Path, kind: Kind) -> Manifest:
    """What stood in a folder's manifest. Raises ArtifactCorrupt."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        path = folder / MANIFEST_NAME
        raise ArtifactCorrupt(f"{path} cannot be read as a manifest: {error.errors()[0]['msg']}") from error
    if manifest.kind != kind:
        raise ArtifactCorrupt(f"{folder} holds a {manifest.kind}, wanted a {kind}")
    return manifest


def verify(folder: Path, kind: Kind, *, content: bool = True) -> Manifest:
    """Compare every file's size and sha256 with the manifest; raises ArtifactCorrupt at the first difference.

    Without `content` the sha256, which reads everything, is left out.
    """
    manifest = read_manifest(folder, kind)
    for entry in manifest.files:
        path = folder / entry.path
        if not path.is_file():
            raise ArtifactCorrupt(f"{folder}: {entry.path} is in the manifest and not on the disk")
        if path.stat().st_size != entry.size_bytes:
            raise ArtifactCorrupt(
                f"{folder}: {entry.path} has {path.stat().st_size} bytes, the manifest says {entry.size_bytes}"
            )
        if content and sha256_of(path) != entry.sha256:
            raise ArtifactCorrupt(f"{folder}: {entry.path} differs from its sha256 in the manifest")
    return manifest


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write aside, sync, rename: a reader sees the old text or the whole new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, sort_keys=True) + "\n")
