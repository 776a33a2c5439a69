"""Writing to a bucket: a FileSink (see stores.py) in parts, with a journal, so that a later try goes on.

Small files are put at once. Bigger ones become objects in `finish`, and manifests last of all: where one is, all is.
Over 400 lines, since the states of a file on its way are told here and nowhere else.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflashctl.config.folders import state_folder
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.transport.s3 import S3Client
from dflashctl.transport.s3_bucket import Bucket, Listed, md5_hex
from dflashctl.transport.s3_journal import Begun, Journal, Part
from dflashctl.transport.s3_keys import MAX_KEY_BYTES, SIDECAR_NAME, clash_among, key_of, problem_of
from dflashctl.transport.s3_proof import Sent, prove
from dflashctl.transport.s3_source import read_sidecar
from dflashctl.transport.s3_there import look
from dflashctl.transport.stores import StoredFile, UploadLost
from dflashctl_remote.spec.manifest import MANIFEST_NAME

SMALL_BYTES = 8 * 2**20
"""Below this a file is put whole."""
PART_BYTES = 8 * 2**20
MIN_PART_BYTES = 5 * 2**20
MAX_PARTS = 10_000
SAMPLE_BYTES = 64 * 2**10
NUM_THREADS = 8
_MIB = 2**20


@dataclass
class _Item:
    """A file on its way. The lock is for beginning its upload, and for its end."""

    file: StoredFile
    key: str
    sizes: dict[int, int]
    """Of its parts."""
    is_held: bool
    """It is a manifest: nobody may see it before the others are there."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    data: bytes | None = None
    """Of one that is held and is put at once."""
    md5: str | None = None
    """Of one that was put at once."""
    etag: str | None = None
    """Of the object, once it is there and proved."""
    has_sha256: bool = False
    """In the object's metadata."""
    is_lost: bool = False

    @property
    def is_small(self) -> bool:
        return self.file.size_bytes < SMALL_BYTES


class S3Sink:
    """Closes the client that it is given. What was sent stays there on failure, to go on with; `abort` drops it.

    A manifest that is there and will be another is deleted before anything else of the tree changes.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        prefix: str,
        name: str,
        *,
        state: Path | None = None,
        base_part_bytes: int = PART_BYTES,
    ) -> None:
        assert base_part_bytes >= MIN_PART_BYTES
        self._bucket = Bucket(client, bucket)
        self._prefix = prefix.rstrip("/")
        self._name = name
        self._state = (state_folder() if state is None else state) / "relay" / "s3"
        self._base_part_bytes = base_part_bytes
        self._opened: Journal | None = None
        self._items: dict[str, _Item] = {}
        self._beside: dict[str, dict[str, str]] = {}
        self._occupied: tuple[str, ...] = ()
        self._stale_manifests: list[str] = []
        self._deleting = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    def part_bytes(self, size_bytes: int) -> int:
        if size_bytes < SMALL_BYTES:
            return SMALL_BYTES
        wanted = -(-size_bytes // MAX_PARTS)
        return max(self._base_part_bytes, -(-wanted // _MIB) * _MIB)

    def begin(self, files: tuple[StoredFile, ...]) -> Mapping[str, frozenset[int]]:
        items = [self._item(file) for file in files]
        self._refuse_what_cannot_be(items)
        self._items = {item.file.path: item for item in items}
        there = self._listing()
        self._journal()
        sidecar = there.get(key_of(self._prefix, SIDECAR_NAME))
        self._beside = {} if sidecar is None else read_sidecar(self._bucket, sidecar, self._name)
        with ThreadPoolExecutor(NUM_THREADS, "s3-begin") as threads:
            parts = dict(threads.map(lambda item: self._parts_there(item, there.get(item.key)), items))
        self._occupied = tuple(path for path, item in self._items.items() if not item.etag and item.key in there)
        self._stale_manifests = [item.key for item in items if item.is_held and not item.etag and item.key in there]
        return parts

    @property
    def occupied(self) -> tuple[str, ...]:
        return self._occupied

    def write(self, file: StoredFile, part: int, data: bytes) -> None:
        item = self._items[file.path]
        assert len(data) == item.sizes[part]
        if item.etag is not None:
            return
        if not item.is_held:
            self._delete_stale_manifests()
        if not item.is_small:
            self._send_part(item, part, data)
            return
        self._refuse_if_other(item, file.sha256, hashlib.sha256(data).hexdigest())
        if item.is_held:
            item.data = data
        else:
            self._put(item, data)

    def finish(self, sha256s: Mapping[str, str]) -> None:
        for path, item in self._items.items():
            begun = self._journal().files.get(path)
            for known in (item.file.sha256, None if begun is None else begun.sha256):
                self._refuse_if_other(item, known, sha256s[path])
        self._delete_stale_manifests()
        held = sorted((i for i in self._items.values() if i.is_held), key=lambda i: -i.file.path.count("/"))
        self._place([item for item in self._items.values() if not item.is_held], sha256s)
        self._put_sidecar(sha256s)
        for item in held:
            self._place([item], sha256s)
        self._journal().finished(self._items)
        self._close_journal()

    def abort(self, files: Iterable[StoredFile]) -> None:
        """Drop what was sent of these files and is no object yet: the store keeps it else, and may charge for it."""
        for file in files:
            self._drop(file.path)

    def close(self) -> None:
        self._close_journal()
        self._bucket.client.close()

    def _item(self, file: StoredFile) -> _Item:
        part_bytes = self.part_bytes(file.size_bytes)
        num_parts = max(1, -(-file.size_bytes // part_bytes))
        sizes = {n: min(part_bytes, file.size_bytes - n * part_bytes) for n in range(num_parts)}
        is_held = file.path.rpartition("/")[2] == MANIFEST_NAME
        return _Item(file, key_of(self._prefix, file.path), sizes, is_held)

    def _refuse_what_cannot_be(self, items: list[_Item]) -> None:
        for item in items:
            problem = problem_of(item.file.path)
            if problem is None and item.file.path == SIDECAR_NAME:
                problem = "dflashctl writes an object of that name itself"
            if problem is None and len(item.key.encode()) > MAX_KEY_BYTES:
                problem = f"its key would have more than {MAX_KEY_BYTES} bytes"
            if problem is not None:
                raise ConfigError(f"{item.file.path!r} cannot be written to {self._name}: {problem}")
        paths = [item.file.path for item in items]
        clash = clash_among(paths)
        if clash is not None:
            raise ConfigError(f"{clash!r} cannot be written to {self._name}: it is a file and a folder at once")
        assert len(set(paths)) == len(paths)

    def _listing(self) -> dict[str, Listed]:
        folder = f"{self._prefix}/" if self._prefix else ""
        return {found.key: found for found in self._bucket.objects(folder, f"list {self._name}")}

    def _parts_there(self, item: _Item, listed: Listed | None) -> tuple[str, frozenset[int]]:
        path, journal = item.file.path, self._journal()
        begun = journal.files.get(path)
        if begun is not None and not begun.is_of(item.file, self.part_bytes(item.file.size_bytes)):
            # Nobody will go on with that: the file is another now.
            self._drop(path)
            begun = None
        there = look(
            self._bucket,
            item.file,
            item.key,
            self._where(item),
            listed=listed,
            beside=self._beside.get(path, {}),
            begun=begun,
            sizes=item.sizes,
        )
        item.etag, item.has_sha256 = there.etag, there.has_sha256
        if there.is_upload_gone:
            journal.forgot(path)
        elif there.etag is None and begun is not None:
            begun.parts = dict(there.parts)
        return path, frozenset(item.sizes if there.etag is not None else there.parts)

    def _send_part(self, item: _Item, number: int, data: bytes) -> None:
        begun, md5 = self._upload_of(item), md5_hex(data)
        known = begun.parts.get(number)
        if known is not None and (known.etag, known.size_bytes) == (md5, len(data)):
            return
        answer = self._bucket.ask_if_there(
            self._bucket.client.upload_part,
            f"write {self._where(item)}",
            Key=item.key,
            UploadId=begun.upload_id,
            PartNumber=number + 1,
            Body=data,
            ContentMD5=_base64(md5),
        )
        if answer is None:
            raise self._lost(item)
        sample = data[:SAMPLE_BYTES]
        etag = self._bucket.etag_in(answer, f"write {self._where(item)}")
        part = Part(etag, len(data), (len(sample), hashlib.sha256(sample).hexdigest()))
        with item.lock:
            if not item.is_lost:
                self._journal().sent(item.file.path, number, part)

    def _upload_of(self, item: _Item) -> Begun:
        journal, path = self._journal(), item.file.path
        with item.lock:
            if item.is_lost:
                raise self._why_lost(item)
            begun = journal.files.get(path)
            if begun is not None and begun.upload_id is not None:
                return begun
            answer = self._bucket.ask(
                self._bucket.client.create_multipart_upload,
                f"write {self._where(item)}",
                Key=item.key,
                **_metadata(item.file.sha256),
            )
            fresh = Begun(item.file.version, item.file.size_bytes, item.file.sha256)
            fresh.part_bytes = self.part_bytes(item.file.size_bytes)
            fresh.upload_id = self._bucket.field_in(answer, "UploadId", f"write {self._where(item)}")
            journal.began(path, fresh)
            return journal.files[path]

    def _put(self, item: _Item, data: bytes) -> None:
        item.md5 = md5_hex(data)
        sha256 = hashlib.sha256(data).hexdigest()
        answer = self._bucket.ask(
            self._bucket.client.put_object,
            f"write {self._where(item)}",
            Key=item.key,
            Body=data,
            ContentMD5=_base64(item.md5),
            **_metadata(sha256),
        )
        begun = Begun(item.file.version, item.file.size_bytes, sha256)
        etag = self._bucket.etag_in(answer, f"write {self._where(item)}")
        self._journal().placed(item.file.path, begun, etag)
        item.has_sha256 = True

    def _place(self, items: list[_Item], sha256s: Mapping[str, str]) -> None:
        """Make objects of them, and prove those that were not proved before."""
        new = [item for item in items if item.etag is None]
        if not new:
            return
        with ThreadPoolExecutor(NUM_THREADS, "s3-finish") as threads:
            list(threads.map(self._make_object, new))
            there = self._listing() if len(new) > 1 else {}
            # Of those that a list would prove, the biggest is read back all the same.
            there.pop(max(new, key=lambda item: item.file.size_bytes if item.is_small else -1).key, None)
            list(threads.map(lambda item: self._prove(item, there.get(item.key), sha256s[item.file.path]), new))

    def _make_object(self, item: _Item) -> None:
        if item.data is not None:
            self._put(item, item.data)
        if item.md5 is not None:
            return
        begun = self._journal().files.get(item.file.path)
        if item.is_small or begun is None or begun.parts.keys() != item.sizes.keys():
            raise ArtifactError(
                f"{self._where(item)}: not all of its parts were sent, so it is not put together",
                hint="run the command again",
            )
        answer = self._bucket.ask_if_there(
            self._bucket.client.complete_multipart_upload,
            f"put {self._where(item)} together",
            Key=item.key,
            UploadId=begun.upload_id,
            MultipartUpload={
                "Parts": [{"PartNumber": n + 1, "ETag": f'"{begun.parts[n].etag}"'} for n in sorted(begun.parts)]
            },
        )
        # If an answer is lost boto3 asks again, of an upload that is none any more: the proof decides.
        item.is_lost = answer is None

    def _prove(self, item: _Item, listed: Listed | None, sha256: str) -> None:
        begun = self._journal().files[item.file.path]
        proof = prove(
            self._bucket,
            Sent(item.key, self._where(item), item.file.size_bytes, sha256),
            listed,
            parts=begun.parts,
            part_bytes=self.part_bytes(item.file.size_bytes),
            md5=item.md5,
        )
        if proof.problem is not None:
            self._drop(item.file.path)
            if item.is_lost:
                # What is there is of somebody else, or of an earlier day.
                raise self._why_lost(item)
            self._delete(item.key, f"delete {self._where(item)}, which is not what was sent")
            raise ArtifactError(
                f"{self._where(item)} is not what was sent: {proof.problem}; it was deleted",
                hint="run the command again; if it happens again the store, or a proxy, is not to be trusted",
            )
        item.etag, item.has_sha256 = proof.etag, proof.has_sha256
        if item.md5 is None:
            self._journal().placed(item.file.path, begun, proof.etag)

    def _put_sidecar(self, sha256s: Mapping[str, str]) -> None:
        """Of a tree in which some objects' metadata do not tell their sha256."""
        placed = {path: item for path, item in self._items.items() if item.etag is not None}
        files = {path: {"sha256": sha256s[path], "etag": str(item.etag)} for path, item in placed.items()}
        if all(item.has_sha256 or self._beside.get(path) == files[path] for path, item in placed.items()):
            return
        body = (json.dumps({"files": self._beside | files}, indent=1, sort_keys=True) + "\n").encode()
        self._bucket.ask(
            self._bucket.client.put_object,
            f"write {self._name}/{SIDECAR_NAME}",
            Key=key_of(self._prefix, SIDECAR_NAME),
            Body=body,
            ContentMD5=_base64(md5_hex(body)),
        )

    def _delete_stale_manifests(self) -> None:
        with self._deleting:
            while self._stale_manifests:
                key = self._stale_manifests[-1]
                self._delete(key, f"delete the manifest of what was in {self._name} before")
                self._stale_manifests.pop()

    def _delete(self, key: str, wanted: str) -> None:
        self._bucket.ask_if_there(self._bucket.client.delete_object, wanted, Key=key)

    def _drop(self, path: str) -> None:
        """An upload that nobody will go on with."""
        begun = self._journal().files.get(path)
        if begun is None:
            return
        if begun.upload_id is not None:
            self._bucket.ask_if_there(
                self._bucket.client.abort_multipart_upload,
                f"drop what was sent of {self._name}/{path}",
                Key=key_of(self._prefix, path),
                UploadId=begun.upload_id,
            )
        self._journal().forgot(path)

    def _journal(self) -> Journal:
        if self._opened is None:
            endpoint = str(self._bucket.client.meta.endpoint_url)
            self._opened = Journal(self._state, endpoint, self._bucket.name, self._prefix, self._name)
        return self._opened

    def _close_journal(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _where(self, item: _Item) -> str:
        return f"{self._name}/{item.file.path}"

    def _lost(self, item: _Item) -> UploadLost:
        with item.lock:
            if not item.is_lost:
                item.is_lost = True
                self._journal().forgot(item.file.path)
        return self._why_lost(item)

    def _why_lost(self, item: _Item) -> UploadLost:
        return UploadLost(
            f"{self._where(item)}: the store has dropped what was sent of it",
            hint="run the command again: that file is sent from its beginning",
        )

    def _refuse_if_other(self, item: _Item, wanted: str | None, found: str) -> None:
        if wanted not in (None, found):
            self._drop(item.file.path)
            raise ArtifactError(
                f"{item.file.path}: its sha256 was to be {wanted} and is {found}, so {self._name} is not complete",
                hint="it changed while it was read, or is damaged: verify it where it comes from",
            )


def _metadata(sha256: str | None) -> dict[str, Any]:
    return {} if sha256 is None else {"Metadata": {"sha256": sha256}}


def _base64(md5: str) -> str:
    return base64.b64encode(bytes.fromhex(md5)).decode()
