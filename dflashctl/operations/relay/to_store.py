"""From a host to a store: agents read there, and parts are sent from here."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.operations.relay.agent import Agent, End, Pinger
from dflashctl.operations.relay.crew import share_out
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.stores import NUM_LANES, SHA_S, Brought, begin, moved_of, sha256s_in
from dflashctl.operations.relay.tree import Tree, tree_of
from dflashctl.operations.relay.tries import Say, until_done
from dflashctl.transport.stores import FileSink, StoredFile, UploadLost
from dflashctl_remote.relay import wire

OpenSink = Callable[[bool], tuple[FileSink, str]]
"""Given whether one file is sent; gives where to, and under which name if it is one."""
Part = tuple[int, int, int, int]
"""File, number, offset, length."""


def up(
    source: End,
    path: str,
    open_sink: OpenSink,
    progress: Progress,
    say: Say,
    *,
    replace: bool,
    pause: Callable[[float], None] = time.sleep,
) -> Brought:
    """Parts that are there already are not sent again. Raises as `from_store.down`."""
    digests: dict[tuple[Any, ...], str] = {}
    has_lost = False

    def once(number: int) -> Brought:
        with contextlib.ExitStack() as stack:
            return _Up(source, open_sink, progress, say, stack, digests).run(number, path, replace or number > 1)

    def attempt(number: int) -> Brought:
        nonlocal has_lost
        try:
            return once(number)
        except UploadLost as error:
            if has_lost:
                raise
            has_lost = True
            say(f"{error.message}; that is sent again")
            return once(number)

    return until_done(attempt, progress, say, pause, helps=lambda error: error.host == source.host)


class _Up:
    def __init__(
        self,
        source: End,
        open_sink: OpenSink,
        progress: Progress,
        say: Say,
        stack: contextlib.ExitStack,
        digests: dict[tuple[Any, ...], str],
    ) -> None:
        self._source, self._open_sink, self._progress, self._say = source, open_sink, progress, say
        self._stack = stack
        self._digests = digests
        """sha256 by what of a file changes when its content does."""
        self._lock = threading.Lock()
        self._sink: FileSink
        self._pinger = Pinger()
        stack.callback(self._pinger.close)

    def run(self, number: int, path: str, replace: bool) -> Brought:
        chief = self._pinger.add(self._source.start("chief"))
        self._stack.callback(chief.close)
        self._stack.callback(self._pinger.drop, chief)
        asked = {"path": path, "is_checkpoint": False, "with_state": True}
        tree = tree_of(chief.ask("scan", asked, timeout_s=SHA_S))
        self._refuse_what_cannot_be(tree)
        digests = self._hashed(chief, tree)
        self._check(tree, digests)
        self._sink, only = self._open_sink(tree.is_file)
        self._stack.callback(self._sink.close)
        names = [only] if tree.is_file else [file.path for file in tree.files]
        stored = tuple(
            StoredFile(name, file.size, digests[file.path], digests[file.path])
            for name, file in zip(names, tree.files, strict=True)
        )
        have = self._sink.begin(stored)
        if self._sink.occupied and not replace:
            raise ConfigError(
                f"{self._sink.name} holds {self._sink.occupied[0]} already, and it is not the same",
                hint="--replace puts the new one in its place",
            )
        parts = list(self._parts(tree, stored, have))
        begin(self._progress, tree, tree.total_bytes - sum(length for _, _, _, length in parts), len(parts))
        self._send(parts, tree, stored)
        self._progress.phase = "verifying"
        self._sink.finish({file.path: str(file.sha256) for file in stored})
        return Brought(moved_of(self._sink.name, tree, self._progress, number))

    def _refuse_what_cannot_be(self, tree: Tree) -> None:
        if tree.links:
            raise ConfigError(f"{tree.root} has symbolic links ({tree.links[0][0]}), which a store does not keep")
        if not tree.files:
            raise ArtifactError(f"{self._source.host}: {tree.root} holds no file, and a store keeps no folders")
        filled = {path.rpartition("/")[0] for path in (*tree.dirs, *(file.path for file in tree.files))}
        empty = [folder for folder in tree.dirs if folder not in filled]
        if empty:
            self._say(f"{tree.root} has empty folders ({empty[0]}), which a store does not keep")

    def _hashed(self, chief: Agent, tree: Tree) -> dict[str, str]:
        self._progress.phase = "hashing"
        due = [file for file in tree.files if file.version not in self._digests]
        told = chief.ask("hash", {"root": tree.root, "paths": [file.path for file in due]}, timeout_s=3600.0)
        self._digests.update(zip((file.version for file in due), told, strict=True))
        return {file.path: self._digests[file.version] for file in tree.files}

    def _check(self, tree: Tree, digests: Mapping[str, str]) -> None:
        """A tree with a manifest is what that says, or goes nowhere."""
        for path, sha in (sha256s_in(tree.manifest or "") or {}).items():
            if path not in digests:
                raise ArtifactError(f"{self._source.host}: {tree.root} is incomplete: its manifest has {path}")
            if digests[path] != sha:
                raise ArtifactError(f"{self._source.host}: {tree.root}/{path} is not what its manifest says")

    def _parts(self, tree: Tree, stored: tuple[StoredFile, ...], have: Mapping[str, frozenset[int]]) -> Iterator[Part]:
        for index, file in enumerate(tree.files):
            size = self._sink.part_bytes(file.size)
            for part, offset in enumerate(range(0, max(1, file.size), size)):
                if part not in have.get(stored[index].path, frozenset()):
                    yield index, part, offset, min(size, file.size - offset)

    def _send(self, parts: list[Part], tree: Tree, stored: tuple[StoredFile, ...]) -> None:
        def begun(_: int) -> Agent:
            reader = self._pinger.add(self._source.start("reader"))
            self._stack.callback(reader.close)
            self._stack.callback(self._pinger.drop, reader)
            reader.ask("open", {"root": tree.root, "files": [list(file.version) for file in tree.files], "methods": []})
            return reader

        def carry(reader: Agent, item: Part) -> None:
            index, part, offset, length = item
            self._sink.write(stored[index], part, _read(reader, index, offset, length) if length else b"")
            self._progress.add(sent_bytes=length)
            self._progress.came("raw", length)

        num_lanes = min(NUM_LANES, len(parts))
        if not num_lanes:
            return
        with ThreadPoolExecutor(num_lanes) as threads:
            readers = list(threads.map(begun, range(num_lanes)))

        def wake() -> None:
            for reader in readers:
                reader.stream.cut()

        share_out(parts, [partial(carry, reader) for reader in readers], wake)


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
