"""Reading from a bucket: a FileSource (see stores.py) whose version of a file is its ETag."""

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dflashctl.errors import ArtifactError, HostUnreachable
from dflashctl.transport.s3 import S3Client
from dflashctl.transport.s3_bucket import Bucket, Listed, bare, is_sha256, quoted, refuse_key, sha256_in
from dflashctl.transport.s3_errors import status_of
from dflashctl.transport.s3_keys import SIDECAR_NAME, clash_among, key_of, problem_of
from dflashctl.transport.stores import SourceChanged, StoredFile

NUM_READS = 5
"""Of one range, if connections are cut in the middle; what fails before the answer begins, boto3 tries again."""
PAUSE_S = 0.5
NUM_THREADS = 16
_MAX_SIDECAR_BYTES = 256 * 2**20


class S3Source:
    """Closes the client that it is given. An object of exactly the key `prefix` is one file; else a tree is meant."""

    def __init__(
        self, client: S3Client, bucket: str, prefix: str, name: str, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._bucket = Bucket(client, bucket)
        self._prefix = prefix
        self._name = name
        self._pause = pause
        self._is_one_object = False

    @property
    def name(self) -> str:
        return self._name

    def files(self) -> tuple[StoredFile, ...]:
        one = self._object_of_that_key()
        self._is_one_object = one is not None
        if one is not None:
            return (one,)
        listed = {listed.key: listed for listed in self._tree()}
        sidecar = listed.pop(key_of(self._prefix, SIDECAR_NAME), None)
        by_path = {self._path_of(found): found for found in listed.values()}
        clash = clash_among(list(by_path))
        if clash is not None:
            raise refuse_key(self._name, key_of(self._prefix, clash), "it is a folder of others as well")
        if not by_path:
            raise ArtifactError(f"{self._name}: there is nothing", hint="check the key; it is written as in the bucket")
        told = {} if sidecar is None else read_sidecar(self._bucket, sidecar, self._name)
        return self._with_sha256s(sorted(by_path.items()), told)

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        assert offset >= 0 and offset + length <= file.size_bytes
        cut = ""
        for attempt in range(NUM_READS):
            if attempt:
                self._pause(PAUSE_S * 2 ** (attempt - 1))
            data = self._read_once(file, offset, length)
            if isinstance(data, bytes):
                return data
            cut = data
        endpoint = self._bucket.endpoint
        raise HostUnreachable(
            f"cannot read {self._name}/{file.path}: of {length} bytes, {endpoint} {cut}, {NUM_READS} times",
            host=endpoint,
            hint="run the command again; it goes on where it stopped",
        )

    def close(self) -> None:
        self._bucket.client.close()

    def _object_of_that_key(self) -> StoredFile | None:
        if not self._prefix or self._prefix.endswith("/"):
            return None
        found = self._head(self._prefix)
        # A folder, in stores that keep folders.
        if found is None or str(found.get("ContentType", "")).startswith("application/x-directory"):
            return None
        path = self._prefix.rpartition("/")[2]
        etag = self._bucket.etag_in(found, f"look at {self._name}")
        return StoredFile(path, int(found["ContentLength"]), etag, sha256_in(found), is_all=True)

    def _tree(self) -> Iterable[Listed]:
        folder = self._prefix.rstrip("/")
        for found in self._bucket.objects(f"{folder}/" if folder else "", f"list {self._name}"):
            if not (found.key.endswith("/") and found.size_bytes == 0):
                yield found

    def _path_of(self, found: Listed) -> str:
        folder = self._prefix.rstrip("/")
        path = found.key.removeprefix(f"{folder}/") if folder else found.key
        problem = problem_of(path)
        if problem is not None:
            raise refuse_key(self._name, found.key, problem)
        return path

    def _with_sha256s(self, found: list[tuple[str, Listed]], told: dict[str, dict[str, Any]]) -> tuple[StoredFile, ...]:
        def stored(item: tuple[str, Listed]) -> StoredFile:
            path, listed = item
            beside = told.get(path, {})
            if beside.get("etag") == listed.etag:
                sha256 = str(beside["sha256"])
            else:
                head = self._head(listed.key)
                if head is None or self._bucket.etag_in(head, f"look at {self._name}/{path}") != listed.etag:
                    raise SourceChanged(
                        f"{self._name}/{path} has changed while it was listed", hint="run the command again"
                    )
                sha256 = sha256_in(head) or ""
            return StoredFile(path, listed.size_bytes, listed.etag, sha256 or None)

        with ThreadPoolExecutor(NUM_THREADS, "s3-head") as threads:
            return tuple(threads.map(stored, found))

    def _head(self, key: str) -> dict[str, Any] | None:
        return self._bucket.ask_if_there(self._bucket.client.head_object, f"look at {self._name}", Key=key)

    def _read_once(self, file: StoredFile, offset: int, length: int) -> bytes | str:
        """The bytes, or how the connection ended before there were so many."""
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        where = f"{self._name}/{file.path}"
        answer = self._bucket.ask(
            self._bucket.client.get_object,
            f"read {where}",
            Key=self._prefix if self._is_one_object else key_of(self._prefix, file.path),
            Range=f"bytes={offset}-{offset + length - 1}",
            IfMatch=quoted(file.version),
        )
        body = answer["Body"]
        try:
            self._check_answer(answer, file, offset, length)
            data = bytes(body.read(length))
        except (HTTPClientError, IncompleteReadError):
            return "cut the connection within them"
        finally:
            body.close()
        return data if len(data) == length else f"sent {len(data)}"

    def _check_answer(self, answer: dict[str, Any], file: StoredFile, offset: int, length: int) -> None:
        """Stores there are that take no notice of If-Match or of the range."""
        where = f"{self._name}/{file.path}"
        if bare(str(answer.get("ETag", ""))) != file.version:
            raise SourceChanged(f"{where} has changed since it was listed", hint="run the command again")
        status, is_whole = status_of(answer), offset == 0 and length == file.size_bytes
        got, wanted = answer.get("ContentRange"), f"bytes {offset}-{offset + length - 1}/{file.size_bytes}"
        # rclone sends the range that was asked for, and says so, but with status 200.
        if status == 206 or got:
            if got != wanted:
                raise ArtifactError(f"{where}: asked for {wanted}, {self._bucket.endpoint} answered with {got}")
        elif not is_whole:
            raise ArtifactError(
                f"{where}: asked for a part, {self._bucket.endpoint} answered with HTTP {status} and not 206",
                hint="a proxy between does so, or a store that cannot read parts: neither can be relayed from",
            )
        if answer.get("ContentLength") != length:
            raise ArtifactError(
                f"{where}: asked for {length} bytes, {self._bucket.endpoint} announced {answer.get('ContentLength')}"
            )


def read_sidecar(bucket: Bucket, listed: Listed, name: str) -> dict[str, dict[str, Any]]:
    """Of each path what dflashctl wrote of it: sha256, and the etag that the object had then.

    Raises ArtifactError if somebody else wrote it.
    """
    where = f"{name}/{SIDECAR_NAME}"
    if listed.size_bytes > _MAX_SIDECAR_BYTES:
        raise ArtifactError(f"{where} has {listed.size_bytes} bytes, too many for what dflashctl writes there")
    data = bucket.read(listed.key, f"read {where}", etag=listed.etag, offset=0, length=listed.size_bytes)
    try:
        files = json.loads(data)["files"]
        kept = {str(path): {"sha256": told["sha256"], "etag": told["etag"]} for path, told in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{where} cannot be read as what dflashctl writes there", hint="remove that object, then run it again"
        ) from error
    return {path: told for path, told in kept.items() if is_sha256(told["sha256"])}
