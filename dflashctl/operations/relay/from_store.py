"""From a store to a host: pieces are read here, and written there by agents, which also read them back."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dflashctl.errors import ArtifactError, ConfigError, JobFailed
from dflashctl.operations.relay.agent import Agent, AgentRefused, End, Pinger, Role
from dflashctl.operations.relay.crew import share_out
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.stores import MANIFEST, NUM_LANES, SHA_S, Brought, begin, moved_of, sha256s_in
from dflashctl.operations.relay.transfer import BUSY_S, OPEN_S
from dflashctl.operations.relay.tree import Chunk, Frontier, SourceFile, Tree, cut
from dflashctl.operations.relay.tries import Say, until_done
from dflashctl.transport.stores import FileSource, StoredFile
from dflashctl_remote.relay import wire
from dflashctl_remote.relay.agent import Refused, within

ACK_S = 120.0
MOST_MANIFEST_BYTES = 64 << 20
Heard = Callable[[dict[str, Any], Any], None]


def down(
    source: FileSource,
    target: End,
    dest: str,
    progress: Progress,
    say: Say,
    *,
    replace: bool,
    about: Mapping[str, Any],
    pause: Callable[[float], None] = time.sleep,
) -> Brought | None:
    """Chunks that are on the target already are not read again. None: the same is there.

    Raises SourceChanged, ArtifactError, JobFailed, ConfigError, HostUnreachable.
    """
    digests: dict[str, list[str]] = {}

    def attempt(number: int) -> Brought | None:
        with contextlib.ExitStack() as stack:
            return _Down(source, target, dest, progress, say, pause, stack, digests).run(number, replace, about)

    # A store that does not answer has been asked often enough by then.
    return until_done(attempt, progress, say, pause, helps=lambda error: error.host == target.host)


class _Down:
    def __init__(
        self,
        source: FileSource,
        target: End,
        dest: str,
        progress: Progress,
        say: Say,
        pause: Callable[[float], None],
        stack: contextlib.ExitStack,
        digests: dict[str, list[str]],
    ) -> None:
        self._source, self._target, self._dest = source, target, dest
        self._progress, self._say, self._pause, self._stack = progress, say, pause, stack
        self._changed = threading.Condition()
        self._told: dict[str, str] = {}
        self._acks: dict[int, str] = {}
        self._is_gone = False
        """An agent at the target."""
        self._is_filled = False
        self._digests = digests
        """sha256 of the pieces of chunks that this process has read, by the chunk's key."""
        self._pinger = Pinger()
        stack.callback(self._pinger.close)

    def run(self, number: int, replace: bool, about: Mapping[str, Any]) -> Brought | None:
        stored = self._source.files()
        tree = _tree_of(self._source.name, stored)
        sha256s = self._sha256s(stored)
        keeper = self._started("keeper", self._heard_keeper)
        if not replace and self._is_there(keeper, tree, sha256s):
            return None
        opened = self._open(keeper, tree, replace, about)
        chunks = cut(tree, self._source.name)
        done = set(opened["done"])
        due = [chunk for chunk in chunks if chunk.key not in done]
        kept = [chunk for chunk in chunks if chunk.key in done]
        begin(self._progress, tree, sum(chunk.size for chunk in kept), len(due))
        frontier = Frontier(tree)
        reached = dict(pair for chunk in kept for pair in frontier.add(chunk))
        keeper.tell("reach", [*reached.items(), *((file.path, 0) for file in tree.files if not file.size)])
        self._fill(due, tree, stored, str(opened["part"]), keeper, frontier)
        self._progress.phase = "verifying"
        self._await_sha256s(tree, keeper)
        num_unproven = self._prove(tree, chunks, sha256s, keeper)
        self._progress.phase = "publishing"
        keeper.ask("writers", {}, timeout_s=OPEN_S)
        asked = {"texts": {}, "files": _rows(tree), "links": [], "workdir": "", "about": dict(about)}
        keeper.ask("publish", {**asked, "only": tree.files[0].path if tree.is_file else ""}, timeout_s=SHA_S)
        return Brought(moved_of(str(opened["dest"]), tree, self._progress, number), num_unproven)

    # ---- before

    def _sha256s(self, stored: tuple[StoredFile, ...]) -> dict[str, str]:
        """As the store tells, or a manifest in the tree. Raises ArtifactError if that names what is not there."""
        known = {file.path: file.sha256 for file in stored if file.sha256 is not None}
        manifest = next((file for file in stored if file.path == MANIFEST), None)
        if manifest is None or manifest.size_bytes > MOST_MANIFEST_BYTES:
            return known
        text = self._source.read(manifest, 0, manifest.size_bytes).decode("utf-8", "replace")
        told = sha256s_in(text) or {}
        missing = sorted(told.keys() - {file.path for file in stored})
        if missing:
            raise ArtifactError(
                f"{self._source.name} is incomplete: {missing[0]} is in its {MANIFEST} and not there",
                hint="it was not brought there whole",
            )
        return {**told, **known}

    def _is_there(self, keeper: Agent, tree: Tree, sha256s: Mapping[str, str]) -> bool:
        """Whether the same is there under the final name. Raises ConfigError if it cannot be told, or is not."""
        look = keeper.ask("look", {"dest": self._dest})
        if look["kind"] == "nothing":
            return False
        num_untold = sum(file.path not in sha256s for file in tree.files)
        if not num_untold and self._is_same(keeper, str(look["dest"]), tree, sha256s):
            return True
        why = f"the store tells no sha256 of {num_untold} files to compare" if num_untold else "is not the same"
        raise ConfigError(
            f"{look['dest']} on {self._target.host} is there already, and {why}",
            hint="--replace puts the new one in its place",
        )

    def _is_same(self, keeper: Agent, place: str, tree: Tree, sha256s: Mapping[str, str]) -> bool:
        try:
            theirs = keeper.ask("scan", {"path": place, "is_checkpoint": False, "with_state": False}, timeout_s=600.0)
            sizes = [(row[0], row[1]) for row in theirs["files"]]
            wanted = [(sizes[0][0] if tree.is_file and sizes else file.path, file.size) for file in tree.files]
            if theirs["is_file"] != tree.is_file or sizes != sorted(wanted) or theirs["links"]:
                return False
            paths = [path for path, _ in sizes]
            digests = keeper.ask("hash", {"root": theirs["root"], "paths": paths}, timeout_s=3600.0)
        except AgentRefused:
            # What no relay would leave there.
            return False
        return bool(digests == [sha256s[file.path] for file in sorted(tree.files, key=lambda file: file.path)])

    def _open(self, keeper: Agent, tree: Tree, replace: bool, about: Mapping[str, Any]) -> dict[str, Any]:
        asked = {
            "dest": self._dest,
            "replace": replace,
            "files": _rows(tree),
            "dirs": [],
            "links": [],
            "texts": {},
            "need_bytes": tree.total_bytes,
            "about": {**about, "total_bytes": tree.total_bytes},
        }
        is_told = False
        while True:
            told: dict[str, Any] = keeper.ask("open", asked, timeout_s=OPEN_S)
            if not told["busy"]:
                return told
            if not is_told:
                self._say(f"{self._target.host}: another relay is at work there; waiting for its end")
            is_told = True
            self._pause(BUSY_S)

    # ---- agents

    def _started(self, role: Role, heard: Heard) -> Agent:
        agent = self._pinger.add(self._target.start(role, heard))
        self._stack.callback(agent.close)
        self._stack.callback(self._pinger.drop, agent)
        return agent

    def _heard_keeper(self, fields: dict[str, Any], told: Any) -> None:
        with self._changed:
            if fields.get("gone"):
                self._is_gone = True
            elif fields.get("sha"):
                for path, sha256, text in told:
                    self._told[path] = sha256 or f"unreadable: {text}"
            self._changed.notify_all()

    def _heard_writer(self, fields: dict[str, Any], told: Any) -> None:
        with self._changed:
            if fields.get("gone") and not self._is_filled:
                self._is_gone = True
            elif "id" in fields:
                self._acks[fields["id"]] = told["text"] if fields.get("bad") else ""
            self._changed.notify_all()

    def _wait(self, is_so: Callable[[], bool], timeout_s: float, agent: Agent) -> None:
        """Under the lock. Raises HostUnreachable."""
        end_s = time.monotonic() + timeout_s
        while not is_so():
            if self._is_gone or time.monotonic() > end_s:
                raise agent.lost()
            self._changed.wait(1.0)

    # ---- bytes

    def _fill(
        self,
        due: list[Chunk],
        tree: Tree,
        stored: tuple[StoredFile, ...],
        part: str,
        keeper: Agent,
        frontier: Frontier,
    ) -> None:
        paths = [file.path for file in tree.files]

        def begun(_: int) -> Agent:
            writer = self._started("writer", self._heard_writer)
            writer.ask("open", {"part": part, "files": paths})
            return writer

        def carry(writer: Agent, chunk: Chunk) -> None:
            pieces = [self._source.read(stored[index], at, length) for index, at, length in chunk.pieces]
            self._digests[chunk.key] = [hashlib.sha256(piece).hexdigest() for piece in pieces]
            self._write(writer, chunk, b"".join(pieces))
            with self._changed:
                moved = frontier.add(chunk)
            self._progress.add(sent_bytes=chunk.size)
            self._progress.came("raw", chunk.size)
            if moved:
                keeper.tell("reach", moved)

        num_lanes = min(NUM_LANES, len(due))
        if not num_lanes:
            return
        with ThreadPoolExecutor(num_lanes) as threads:
            writers = list(threads.map(begun, range(num_lanes)))

        def wake() -> None:
            for writer in writers:
                writer.stream.cut()

        share_out(due, [partial(carry, writer) for writer in writers], wake)
        self._is_filled = True
        for writer in writers:
            writer.close()

    def _write(self, writer: Agent, chunk: Chunk, data: bytes) -> None:
        place = {**chunk.question(), "key": chunk.key}
        head = wire.message({"op": "write", "id": chunk.number}, place)
        head += wire.header(id=chunk.number, how="raw", n=len(data))
        writer.send(head + data + wire.header(id=chunk.number, ok=1))
        with self._changed:
            self._wait(lambda: chunk.number in self._acks, ACK_S, writer)
            problem = self._acks[chunk.number]
        if problem:
            raise JobFailed(
                f"{self._target.host}: {self._dest} could not be written: {problem}",
                host=self._target.host,
                hint="what has come is kept: make room, and relay again",
            )

    # ---- the proof

    def _await_sha256s(self, tree: Tree, keeper: Agent) -> None:
        with self._changed:
            while (num_before := len(self._told)) < len(tree.files):
                # As long as they come one after the other it is only slow.
                self._wait(partial(self._has_told_more, num_before), SHA_S, keeper)

    def _has_told_more(self, num_before: int) -> bool:
        return len(self._told) > num_before

    def _prove(self, tree: Tree, chunks: tuple[Chunk, ...], sha256s: Mapping[str, str], keeper: Agent) -> int:
        """Against the sha256 that was told, else against what was read of it here. How many had none told."""
        for file in tree.files:
            found, wanted = self._told[file.path], sha256s.get(file.path, self._told[file.path])
            if found.startswith("unreadable"):
                raise JobFailed(
                    f"{self._target.host}: {file.path} cannot be read back ({found})", host=self._target.host
                )
            if found != wanted:
                keeper.ask("drop", {})
                raise ArtifactError(
                    f"{self._source.name}: {file.path} has sha256 {found[:12]}..., not {wanted[:12]}... as told",
                    hint="what it holds is damaged, or was changed; nothing was published",
                )
        untold = {index for index, file in enumerate(tree.files) if file.path not in sha256s}
        for index, pieces in self._read_here(chunks, untold).items():
            asked = {"path": tree.files[index].path, "ranges": [list(place) for place in pieces]}
            if keeper.ask("ranges", asked, timeout_s=SHA_S) != list(pieces.values()):
                keeper.ask("drop", {})
                raise JobFailed(
                    f"{self._target.host}: {tree.files[index].path} reads back other than it was sent",
                    host=self._target.host,
                    hint="run the command again; if it happens again suspect that disk",
                )
        return len(untold)

    def _read_here(self, chunks: tuple[Chunk, ...], files: set[int]) -> dict[int, dict[tuple[int, int], str]]:
        """Of these files, by offset and length, the sha256 of what this process has read."""
        read: dict[int, dict[tuple[int, int], str]] = {}
        for chunk in chunks:
            for (index, offset, length), digest in zip(chunk.pieces, self._digests.get(chunk.key, ()), strict=False):
                if index in files:
                    read.setdefault(index, {})[offset, length] = digest
        return read


def _rows(tree: Tree) -> list[list[Any]]:
    return [[file.path, file.size, file.mode, file.mtime_ns] for file in tree.files]


def _tree_of(name: str, stored: tuple[StoredFile, ...]) -> Tree:
    """Raises ArtifactError for a name that leads out of its folder: stores hold any."""
    for file in stored:
        try:
            within(file.path)
        except Refused as refused:
            raise ArtifactError(f"{name}: {refused.text}") from refused
    files = tuple(SourceFile(file.path, file.size_bytes, 0, file.version, 0o644) for file in stored)
    is_file = len(files) == 1 and stored[0].is_all
    return Tree(name, is_file, files, need_bytes=sum(file.size for file in files))
