"""Ranges of the files of a hub, at one commit. The token goes to the hub alone, not to where it redirects."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urljoin

import httpx

from dflashctl.errors import ArtifactError, DflashctlError
from dflashctl.transport.hub_place import Hub, HubPlace, origin
from dflashctl.transport.hub_refusals import PASSING, Patience, asked_wait_s, busy, no_answer, refusal
from dflashctl.transport.stores import SourceChanged, StoredFile

MOST_REDIRECTS = 6
MOST_UNRANGED_BYTES = 64 << 20
"""Up to this size a file is read from its start where the other side knows no ranges; what is not LFS is smaller."""
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


@dataclass(frozen=True)
class _Shelf:
    """Where the hub said that a file lies: an address that is good for an hour or so, and the ETag there."""

    url: str
    etag: str | None = None


class _AskAgain(Exception):
    def __init__(self, problem: DflashctlError, asked_s: float | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.asked_s = asked_s


class RangeReader:
    """By several threads at once. `place` is pinned: its revision is a commit."""

    def __init__(self, hub: Hub, place: HubPlace, wait: Callable[[float], None]) -> None:
        self._hub = hub
        self._place = place
        self._wait = wait
        self._client = httpx.Client(timeout=httpx.Timeout(30.0, connect=15.0, pool=None), follow_redirects=False)
        self._shelves: dict[str, _Shelf] = {}
        self._lock = threading.Lock()

    def read(self, path: str, file: StoredFile, offset: int, length: int) -> bytes:
        """`path` is in the repository. A body that breaks off is read on from there; see FileSource for the rest."""
        assert offset >= 0 and length >= 0 and offset + length <= file.size_bytes, (file, offset, length)
        got = bytearray()
        patience = Patience(self._wait)
        while len(got) < length:
            num_before = len(got)
            try:
                self._read_on(path, file, offset, length, got)
                problem, asked_s = self._error(path, "ends too early", "try again"), None
            except httpx.TransportError as error:
                problem, asked_s = no_answer(self._hub, error), None
            except _AskAgain as again:
                problem, asked_s = again.problem, again.asked_s
            if len(got) < length:
                if len(got) == num_before:
                    self._forget(path)
                patience.pause(problem, asked_s)
        if length == file.size_bytes:
            self._check_git(path, file, got)
        return bytes(got)

    def close(self) -> None:
        self._client.close()

    def _read_on(self, path: str, file: StoredFile, offset: int, length: int, got: bytearray) -> None:
        first, last = offset + len(got), offset + length - 1
        with self._answer(path, file, first, last) as answer:
            skip = self._start(path, file, answer, first, last)
            for data in answer.iter_raw():
                wanted = data[skip : skip + length - len(got)]
                skip = max(0, skip - len(data))
                got += wanted
                if len(got) == length and answer.status_code == 200:
                    return

    @contextmanager
    def _answer(self, path: str, file: StoredFile, first: int, last: int) -> Iterator[httpx.Response]:
        """The answer that holds bytes, at the end of all redirects."""
        shelf = self._shelves.get(path)
        url, is_told = (self._url(path), False) if shelf is None else (shelf.url, True)
        for _ in range(MOST_REDIRECTS):
            with self._client.stream("GET", url, headers=self._headers(url, first, last)) as answer:
                if not answer.has_redirect_location:
                    self._judge(path, answer, file)
                    if not is_told:
                        self._check_version(path, file, _tag(answer.headers.get("ETag")))
                    self._put_on_shelf(path, url, answer)
                    yield answer
                    return
                if self._hub.is_home_of(url):
                    is_told = self._check_told(path, file, answer) or is_told
                url = self._follow(path, url, answer)
        raise self._error(path, "is redirected without end", "try another hub")

    def _url(self, path: str) -> str:
        from huggingface_hub import hf_hub_url

        place = self._place
        return str(
            hf_hub_url(
                place.repository, path, repo_type=place.kind, revision=place.revision, endpoint=self._hub.endpoint
            )
        )

    def _headers(self, url: str, first: int, last: int) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers

        token = self._hub.token if self._hub.is_home_of(url) else None
        # Of compressed bytes there are no ranges.
        return {
            **build_hf_headers(token=token or False, library_name="dflashctl"),
            "Range": f"bytes={first}-{last}",
            "Accept-Encoding": "identity",
        }

    def _judge(self, path: str, answer: httpx.Response, file: StoredFile) -> None:
        """Raises what a status other than 200 and 206 means."""
        status = answer.status_code
        if status in (200, 206):
            if self._hub.is_home_of(str(answer.url)):
                self._check_told(path, file, answer)
            return
        if status in (412, 416):
            raise self._changed(path, f"the range asked for is refused with status {status}")
        place = replace(self._place, path=path)
        if status in PASSING:
            asked_s = asked_wait_s(answer.headers)
            raise _AskAgain(busy(self._hub, place, status, asked_s), asked_s)
        if self._hub.is_home_of(str(answer.url)):
            problem = refusal(self._hub, place, status, answer.headers)
            raise ArtifactError(problem.message, hint=problem.hint)
        # Signed addresses run out, and the hub gives a new one.
        self._forget(path)
        raise _AskAgain(
            self._error(path, f"is refused with status {status} where the hub points to", "try again later")
        )

    def _check_told(self, path: str, file: StoredFile, answer: httpx.Response) -> bool:
        """Whether the hub said what it is that it gives. Raises SourceChanged if that is not what was listed."""
        commit = answer.headers.get("X-Repo-Commit")
        if commit is not None and commit != self._place.revision:
            raise self._changed(path, f"it is given from commit {commit[:40]!a}")
        size = answer.headers.get("X-Linked-Size")
        if size is not None and size != str(file.size_bytes):
            raise self._changed(path, f"its size is {size[:20]!a} bytes")
        tag = _tag(answer.headers.get("X-Linked-ETag"))
        if tag is None:
            return False
        self._check_version(path, file, tag)
        return True

    def _check_version(self, path: str, file: StoredFile, tag: str | None) -> None:
        if tag is None:
            raise self._error(path, "comes without an ETag, so that it is not known what it is", "try another hub")
        if tag != file.version.partition(":")[2]:
            raise self._changed(path, "its ETag is another one")

    def _put_on_shelf(self, path: str, url: str, answer: httpx.Response) -> None:
        """Not to ask the hub for every range. Raises SourceChanged if what lies there was exchanged."""
        if self._hub.is_home_of(url):
            return
        etag = answer.headers.get("ETag")
        with self._lock:
            known = self._shelves.get(path)
            if known is not None and known.url == url and known.etag is not None and etag != known.etag:
                raise self._changed(path, "what lies at its address was exchanged")
            self._shelves[path] = _Shelf(url, etag)

    def _forget(self, path: str) -> None:
        with self._lock:
            self._shelves.pop(path, None)

    def _follow(self, path: str, url: str, answer: httpx.Response) -> str:
        try:
            target = urljoin(url, answer.headers["Location"])
            httpx.URL(target)
            scheme = origin(target)[0]
        except (ValueError, httpx.InvalidURL):
            raise self._error(path, "is redirected to what is no address", "try another hub") from None
        if scheme not in ("http", "https") or (scheme == "http" and origin(url)[0] == "https"):
            raise self._error(
                path, f"is redirected to an address of {scheme[:20]!a}, which is not https", "try another hub"
            )
        return target

    def _start(self, path: str, file: StoredFile, answer: httpx.Response, first: int, last: int) -> int:
        """How many bytes of the body come before the first that is wanted."""
        size = file.size_bytes
        if answer.status_code == 200:
            if answer.headers.get("Content-Length", str(size)) != str(size):
                raise self._changed(path, "its size is another one")
            if first > 0 and size > MOST_UNRANGED_BYTES:
                raise self._error(path, "is only given as a whole, not in ranges", "try another hub or a clone")
            return first
        told = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if told is None or int(told[1]) != first or not first <= int(told[2]) <= last:
            raise self._error(path, f"is given in another range than bytes {first} to {last}", "try another hub")
        if int(told[3]) != size:
            raise self._changed(path, f"its size is {told[3]} bytes")
        return 0

    def _check_git(self, path: str, file: StoredFile, got: bytearray) -> None:
        """What git keeps itself has no sha256, but the name of a blob is a hash of all of it."""
        kind, _, oid = file.version.partition(":")
        if kind != "git":
            return
        blob = hashlib.sha1(b"blob %d\0" % len(got), usedforsecurity=False)
        blob.update(got)
        if blob.hexdigest() != oid:
            raise self._changed(path, "its bytes do not have the hash that was listed")

    def _changed(self, path: str, found: str) -> SourceChanged:
        place = replace(self._place, path=path)
        return SourceChanged(f"{place} is not what was listed any more: {found}", hint="start again from a new list")

    def _error(self, path: str, found: str, hint: str) -> DflashctlError:
        return ArtifactError(f"{replace(self._place, path=path)} {found}", hint=hint)


def _tag(text: str | None) -> str | None:
    """An ETag without its quotes; a weak one is as good here, as no bytes are asked for in a coding."""
    return None if text is None else text.removeprefix("W/").strip('"')
