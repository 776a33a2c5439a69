"""What was begun in a bucket, kept on this machine, so that a later try goes on with it: one line of JSON an event."""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.transport.stores import StoredFile


@dataclass(frozen=True)
class Part:
    etag: str
    """As the store named it, without quotes; with this it is asked to put the object together."""
    size_bytes: int
    sample: tuple[int, str] | None = None
    """Length of its beginning and that one's sha256, to compare with what is read back."""


@dataclass
class Begun:
    """Of one file. Changed only by the journal."""

    version: str
    size_bytes: int
    sha256: str | None
    """What is in the object's metadata: given when an upload begins, or never."""
    part_bytes: int = 0
    upload_id: str | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    """From 0 on."""
    etag: str | None = None
    """Of the object that was put in place."""

    def is_of(self, file: StoredFile, part_bytes: int) -> bool:
        is_same = (self.version, self.size_bytes) == (file.version, file.size_bytes)
        is_cut_alike = self.upload_id is None or self.part_bytes == part_bytes
        return is_same and is_cut_alike and (self.sha256 is None or file.sha256 in (None, self.sha256))


class Journal:
    """One for each place in a bucket. Holding it is the lock: raises ConfigError if another process has it."""

    def __init__(self, folder: Path, endpoint: str, bucket: str, prefix: str, name: str) -> None:
        identity = hashlib.sha256("\n".join((endpoint, bucket, prefix)).encode()).hexdigest()[:24]
        self.path = folder / f"{identity}.jsonl"
        self.files: dict[str, Begun] = {}
        self._writing = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._held = os.open(folder / f"{identity}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot keep a journal in {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._held)
            raise ConfigError(
                f"another dflashctl on this machine is writing to {name}", hint="wait for it, or stop it"
            ) from error
        self._read()
        self._file = self.path.open("a", encoding="utf-8")

    def began(self, path: str, begun: Begun) -> None:
        self._tell(
            {
                "began": path,
                "version": begun.version,
                "size_bytes": begun.size_bytes,
                "sha256": begun.sha256,
                "part_bytes": begun.part_bytes,
                "upload_id": begun.upload_id,
            },
            is_synced=True,
        )

    def sent(self, path: str, number: int, part: Part) -> None:
        self._tell(
            {"sent": path, "part": number, "etag": part.etag, "size_bytes": part.size_bytes, "sample": part.sample}
        )

    def placed(self, path: str, begun: Begun, etag: str) -> None:
        whole = {"version": begun.version, "size_bytes": begun.size_bytes, "sha256": begun.sha256}
        self._tell({"placed": path, "etag": etag, **whole})

    def forgot(self, path: str) -> None:
        self._tell({"forgot": path})

    def finished(self, paths: Iterable[str]) -> None:
        """Leaves what was begun of other files, under the same place in the bucket."""
        for path in paths:
            if path in self.files:
                self.forgot(path)
        if not self.files:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()
        os.close(self._held)

    def _tell(self, event: dict[str, Any], *, is_synced: bool = False) -> None:
        with self._writing:
            self._fold(event)
            try:
                self._file.write(json.dumps(event) + "\n")
                self._file.flush()
                if is_synced:
                    os.fsync(self._file.fileno())
            except OSError as error:
                raise ArtifactError(
                    f"cannot write the journal {self.path}: {error.strerror}", hint="make room on that disk"
                ) from error

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                self._fold(json.loads(line))
            except (ValueError, KeyError, TypeError):
                # The line that was being written when the process ended; what it told, the store still tells.
                continue
        # Else the next line would continue a torn one.
        aside = self.path.with_suffix(".part")
        aside.write_bytes(b"\n".join([*lines, b""]))
        aside.replace(self.path)

    def _fold(self, event: dict[str, Any]) -> None:
        if "began" in event or "placed" in event:
            path = event.get("began") or event["placed"]
            begun = Begun(event["version"], event["size_bytes"], event["sha256"])
            begun.part_bytes = event.get("part_bytes", 0)
            begun.upload_id, begun.etag = event.get("upload_id"), event.get("etag")
            self.files[path] = begun
        elif "sent" in event:
            sample = event["sample"] and (int(event["sample"][0]), str(event["sample"][1]))
            part = Part(event["etag"], event["size_bytes"], sample)
            self.files[event["sent"]].parts[int(event["part"])] = part
        else:
            self.files.pop(event["forgot"], None)
