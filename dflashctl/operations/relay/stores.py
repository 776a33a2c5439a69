"""Between a store that runs nothing (S3, a hub) and a host: the store's end of the relay is here, in threads."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dflashctl.errors import ArtifactError, ConfigError, HostUnreachable
from dflashctl.operations.relay.agent import Agent, AgentRefused, End, Pinger
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.transfer import Moved
from dflashctl.operations.relay.tree import Chunk, Frontier, SourceFile, Tree, cut, tree_of
from dflashctl.transport.stores import FileSink, FileSource, StoredFile
from dflashctl_remote.relay import wire
from dflashctl_remote.relay.agent import Refused, within

Say = Callable[[str], None]
OpenSink = Callable[[bool], tuple[FileSink, str]]
"""Given whether one file is sent; gives where to, and under which name if it is one."""
NUM_LANES = 4
"""A store answers late: so many pieces are under way at once, 8 MiB each, or a part."""
SHA_S = 900.0
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Brought:
    """A tree that came from a store, or went to one."""

    moved: Moved
    num_unproven: int
    """Files whose sha256 nobody had told before: proven by size and by the store's own word alone."""


def down(
    source: FileSource, target: End, dest: str, progress: Progress, say: Say, *, replace: bool, about: Any
) -> Brought:
    """From a store to a host: chunks that are there already are not read again.

    Raises SourceChanged, ArtifactError, JobFailed, ConfigError, HostUnreachable.
    """
    try:
        with contextlib.ExitStack() as stack:
            return _Down(source, target, dest, progress, stack).run(say, replace=replace, about=about)
    except AgentRefused as refused:
        raise refused.as_error() from refused
    finally:
        progress.pause()


class _Down:
    def __init__(
        self, source: FileSource, target: End, dest: str, progress: Progress, stack: contextlib.ExitStack
    ) -> None:
        self._source, self._target, self._dest = source, target, dest
        self._progress, self._stack = progress, stack
        self._lock = threading.Condition()
        self._told: dict[str, str] = {}
        self._acks: dict[int, str] = {}
        self._pieces: dict[str, list[tuple[int, int, str]]] = {}

    def run(self, say: Say, *, replace: bool, about: Any) -> Brought:
        stored = self._source.files()
        tree = _tree_of(self._source.name, stored)
        pinger = Pinger()
        self._stack.callback(pinger.close)
        keeper = self._started("keeper", pinger, self._heard)
        opened = keeper.ask(
            "open",
            {
                "dest": self._dest,
                "replace": replace,
                "files": [[file.path, file.size, file.mode, file.mtime_ns] for file in tree.files],
                "dirs": [],
                "links": [],
                "texts": {},
                "need_bytes": tree.total_bytes,
                "about": {**about, "total_bytes": tree.total_bytes},
            },
        )
        if opened["busy"]:
            raise ConfigError(
                f"another relay to {self._dest} is at work on {self._target.host}", hint="wait for its end"
            )
        chunks = cut(tree, self._source.name)
        done = set(opened["done"])
        due = [chunk for chunk in chunks if chunk.key not in done]
        kept = sum(chunk.size for chunk in chunks if chunk.key in done)
        with self._progress.lock:
            self._progress.total_bytes = tree.total_bytes
            self._progress.done_bytes = self._progress.kept_bytes = kept
            self._progress.phase, self._progress.num_lanes = "moving", min(NUM_LANES, max(1, len(due)))
        self._progress.begin()
        frontier = Frontier(tree)
        reached = dict(pair for chunk in chunks if chunk.key in done for pair in frontier.add(chunk))
        keeper.tell("reach", [*reached.items(), *((file.path, 0) for file in tree.files if not file.size)])
        self._fill(due, tree, stored, str(opened["part"]), keeper, frontier, pinger)
        self._progress.phase = "verifying"
        num_unproven = self._prove(tree, stored, keeper)
        self._progress.phase = "publishing"
        keeper.ask("writers", {})
        keeper.ask(
            "publish",
            {
                "texts": {},
                "files": [[file.path, file.size, file.mode, file.mtime_ns] for file in tree.files],
                "links": [],
                "only": tree.files[0].path if tree.is_file else "",
                "workdir": "",
                "about": about,
            },
            timeout_s=SHA_S,
        )
        return Brought(_moved(str(opened["dest"]), tree, self._progress), num_unproven)

    def _started(self, role: Any, pinger: Pinger, heard: Any) -> Agent:
        agent = pinger.add(self._target.start(role, heard))
        self._stack.callback(agent.close)
        self._stack.callback(pinger.drop, agent)
        return agent

    def _heard(self, fields: dict[str, Any], told: Any) -> None:
        with self._lock:
            if fields.get("sha"):
                self._told[told["path"]] = told["sha256"] or f"unreadable: {told.get('text', '')}"
            elif "id" in fields:
                self._acks[fields["id"]] = told["text"] if fields.get("bad") else ""
            self._lock.notify_all()

    def _fill(
        self,
        due: list[Chunk],
        tree: Tree,
        stored: tuple[StoredFile, ...],
        part: str,
        keeper: Agent,
        frontier: Frontier,
        pinger: Pinger,
    ) -> None:
        coming: Iterator[Chunk] = iter(due)
        paths = [file.path for file in tree.files]

        def lane(writer: Agent) -> None:
            while True:
                with self._lock:
                    chunk = next(coming, None)
                if chunk is None:
                    return
                data = b"".join(self._source.read(stored[index], at, length) for index, at, length in chunk.pieces)
                self._write(writer, chunk, data, paths)
                with self._lock:
                    moved = frontier.add(chunk)
                self._progress.add(done_bytes=chunk.size, sent_bytes=chunk.size)
                if moved:
                    keeper.tell("reach", moved)

        writers = []
        for _ in range(min(NUM_LANES, len(due))):
            writer = self._started("writer", pinger, self._heard)
            writer.ask("open", {"part": part, "files": paths})
            writers.append(writer)
        with ThreadPoolExecutor(NUM_LANES) as threads:
            for future in [threads.submit(lane, writer) for writer in writers]:
                future.result()
        for writer in writers:
            writer.close()

    def _write(self, writer: Agent, chunk: Chunk, data: bytes, paths: list[str]) -> None:
        at = 0
        for index, offset, length in chunk.pieces:
            digest = hashlib.sha256(memoryview(data)[at : at + length]).hexdigest()
            with self._lock:
                self._pieces.setdefault(paths[index], []).append((offset, length, digest))
            at += length
        place = {**chunk.question(), "key": chunk.key}
        head = wire.message({"op": "write", "id": chunk.number}, place) + wire.header(
            id=chunk.number, how="raw", n=len(data)
        )
        writer.send(head + data + wire.header(id=chunk.number, ok=1))
        with self._lock:
            while chunk.number not in self._acks:
                if not self._lock.wait(120.0):
                    raise writer.lost()
            problem = self._acks[chunk.number]
        if problem:
            raise ArtifactError(f"{self._target.host}: {self._dest} could not be written: {problem}")

    def _prove(self, tree: Tree, stored: tuple[StoredFile, ...], keeper: Agent) -> int:
        """Against the sha256 that the store told, else against what was read of it here. How many had neither."""
        with self._lock:
            while len(self._told) < len(tree.files):
                if not self._lock.wait(SHA_S):
                    raise HostUnreachable(
                        f"{self._target.host} does not say what it has read back", host=self._target.host
                    )
        num_unproven = 0
        for file in stored:
            found = self._told[file.path]
            if file.sha256 is not None:
                if found != file.sha256:
                    keeper.ask("drop", {})
                    raise ArtifactError(
                        f"{self._source.name}: {file.path} has sha256 {found[:12]}..., not {file.sha256[:12]}... as told",
                        hint="what it holds is damaged, or was changed; nothing was published",
                    )
                continue
            num_unproven += 1
            ranges = self._pieces.get(file.path, [])
            if ranges:
                asked = {"path": file.path, "ranges": [[offset, length] for offset, length, _ in ranges]}
                digests = keeper.ask("ranges", asked, timeout_s=SHA_S)
                if digests != [digest for _, _, digest in ranges]:
                    keeper.ask("drop", {})
                    raise ArtifactError(f"{self._target.host}: {file.path} reads back other than it was sent")
        return num_unproven


def up(source: End, path: str, open_sink: OpenSink, progress: Progress) -> Brought:
    """From a host to a store: parts that are there already are not sent again. Raises as `down`."""
    try:
        with contextlib.ExitStack() as stack:
            return _Up(source, open_sink, progress, stack).run(path)
    except AgentRefused as refused:
        raise refused.as_error() from refused
    finally:
        progress.pause()


class _Up:
    def __init__(self, source: End, open_sink: OpenSink, progress: Progress, stack: contextlib.ExitStack) -> None:
        self._source, self._open_sink, self._progress, self._stack = source, open_sink, progress, stack
        self._lock = threading.Lock()
        self._sink: FileSink

    def run(self, path: str) -> Brought:
        pinger = Pinger()
        self._stack.callback(pinger.close)
        chief = pinger.add(self._source.start("chief"))
        self._stack.callback(chief.close)
        self._stack.callback(pinger.drop, chief)
        asked = {"path": path, "is_checkpoint": False, "with_state": True}
        tree = tree_of(chief.ask("scan", asked, timeout_s=SHA_S))
        if tree.links:
            raise ConfigError(f"{path} has symbolic links ({tree.links[0][0]}), which a store does not keep")
        paths = [file.path for file in tree.files]
        digests = dict(
            zip(paths, chief.ask("hash", {"root": tree.root, "paths": paths}, timeout_s=3600.0), strict=True)
        )
        self._check(tree, digests)
        self._sink, only = self._open_sink(tree.is_file)
        self._stack.callback(self._sink.close)
        names = [only] if tree.is_file else paths
        stored = tuple(
            StoredFile(name, file.size, digests[file.path], digests[file.path])
            for name, file in zip(names, tree.files, strict=True)
        )
        have = self._sink.begin(stored)
        parts = list(self._parts(tree, stored, have))
        with self._progress.lock:
            kept = tree.total_bytes - sum(length for _, _, _, length in parts)
            self._progress.total_bytes = tree.total_bytes
            self._progress.done_bytes = self._progress.kept_bytes = kept
            self._progress.phase, self._progress.num_lanes = "moving", min(NUM_LANES, max(1, len(parts)))
        self._progress.begin()
        self._send(parts, tree, stored, pinger)
        self._progress.phase = "verifying"
        self._sink.finish({file.path: str(file.sha256) for file in stored})
        return Brought(_moved(self._sink.name, tree, self._progress), 0)

    def _check(self, tree: Tree, digests: Mapping[str, str]) -> None:
        """A tree with a manifest is what that says, or goes nowhere."""
        if tree.manifest is None:
            return
        try:
            entries = {str(entry["path"]): str(entry["sha256"]) for entry in json.loads(tree.manifest)["files"]}
        except (ValueError, KeyError, TypeError):
            return
        for path, sha in entries.items():
            if path in digests and digests[path] != sha:
                raise ArtifactError(f"{self._source.host}: {tree.root}/{path} is not what its manifest says")

    def _parts(
        self, tree: Tree, stored: tuple[StoredFile, ...], have: Mapping[str, frozenset[int]]
    ) -> Iterator[tuple[int, int, int, int]]:
        """File, part, offset, length."""
        for index, file in enumerate(tree.files):
            size = self._sink.part_bytes(file.size)
            for part, offset in enumerate(range(0, max(1, file.size), size)):
                if part not in have.get(stored[index].path, frozenset()):
                    yield index, part, offset, min(size, file.size - offset)

    def _send(
        self, parts: list[tuple[int, int, int, int]], tree: Tree, stored: tuple[StoredFile, ...], pinger: Pinger
    ) -> None:
        coming = iter(parts)
        readers = []
        for _ in range(min(NUM_LANES, len(parts))):
            reader = pinger.add(self._source.start("reader"))
            self._stack.callback(reader.close)
            self._stack.callback(pinger.drop, reader)
            reader.ask("open", {"root": tree.root, "files": [list(file.version) for file in tree.files], "methods": []})
            readers.append(reader)

        def lane(reader: Agent) -> None:
            while True:
                with self._lock:
                    item = next(coming, None)
                if item is None:
                    return
                index, part, offset, length = item
                data = _read(reader, index, offset, length) if length else b""
                self._sink.write(stored[index], part, data)
                self._progress.add(done_bytes=length, sent_bytes=length)

        with ThreadPoolExecutor(NUM_LANES) as threads:
            for future in [threads.submit(lane, reader) for reader in readers]:
                future.result()


def _read(reader: Agent, index: int, offset: int, length: int) -> bytes:
    reader.tell("read", {"pieces": [[index, offset, length]], "width": 1, "size": length, "encode": "no"}, id=0)
    try:
        told, data = _hear(reader), b""
        if "how" in told:
            size = int(told.get("n", 0))
            data = wire.read_exactly(reader.stream.stdout_fd, size) if told["how"] == "raw" else bytes(length)
            told = _hear(reader)
        if told.get("bad"):
            why = json.loads(wire.read_exactly(reader.stream.stdout_fd, int(told["n"])))
            raise ArtifactError(f"{reader.host}: {why['text']} while it was relayed", hint="relay what is finished")
    except (EOFError, OSError, ValueError) as error:
        raise reader.lost() from error
    return data


def _hear(reader: Agent) -> dict[str, Any]:
    return wire.parse(wire.read_exactly(reader.stream.stdout_fd, wire.HEADER_BYTES))


def _tree_of(name: str, stored: tuple[StoredFile, ...]) -> Tree:
    """Raises ArtifactError for a name that leads out of its folder: stores hold any."""
    for file in stored:
        try:
            within(file.path)
        except Refused as refused:
            raise ArtifactError(f"{name}: {refused.text}") from refused
    files = tuple(SourceFile(file.path, file.size_bytes, 0, file.version, 0o644) for file in stored)
    is_file = len(files) == 1 and "/" not in files[0].path and name.rstrip("/").endswith("/" + files[0].path)
    return Tree(name, is_file, files, need_bytes=sum(file.size for file in files))


def _moved(dest: str, tree: Tree, progress: Progress) -> Moved:
    seen = progress.snapshot()
    return Moved(
        dest=dest,
        total_bytes=tree.total_bytes,
        sent_bytes=seen.sent_bytes,
        kept_bytes=seen.kept_bytes,
        num_files=len(tree.files),
        num_lanes=seen.num_lanes,
        num_tries=1,
        elapsed_s=seen.elapsed_s,
        rtt_s=(0.0, 0.0),
        hows={"raw": seen.sent_bytes},
    )
