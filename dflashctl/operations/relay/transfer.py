"""Moving a tree from one host to another: one try after another until it is there whole, or cannot be.

What is on the target decides what is left to do: the keeper's journal, never a memory of this process.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dflashctl.errors import ArtifactError, DflashctlError, HostUnreachable, JobFailed
from dflashctl.operations.relay.agent import Agent, AgentRefused, End, Pinger, hashing_s
from dflashctl.operations.relay.lane import DirectLane, Lane, SourceBad, Stopped, TargetBad
from dflashctl.operations.relay.pace import MOST_LANES, Pace
from dflashctl.operations.relay.pair import Ear, Pair
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.tree import Chunk, Frontier, Known, Tree, cut, tree_of
from dflashctl.operations.relay.tries import Again, Overtaken, Say, until_done
from dflashctl.operations.relay.wanted import Job, Wanted

BUSY_S = 2.0
OPEN_S = 180.0
STOP_S = 3.0
"""So long a lane may take to stop; then its links are cut."""
HASH_BYTES = 256 << 20


@dataclass(frozen=True)
class Moved:
    dest: str
    total_bytes: int
    sent_bytes: int
    kept_bytes: int
    num_files: int
    num_lanes: int
    num_tries: int
    elapsed_s: float
    rtt_s: tuple[float, float]
    hows: Mapping[str, int]
    """Bytes of the files by how they came: raw, planes, base, zeros, same."""


class _KnownBad(Exception):
    """What the target was to have already is not there, or is something else."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def move(
    source: End,
    target: End,
    job: Job,
    progress: Progress,
    say: Say,
    *,
    direct: tuple[str, ...] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Moved | None:
    """Until the tree has its final name on the target. None: it had it before.

    `direct`: what the source's own machine types to come to a shell on the target; None: through this one, as it is
    done if the target cannot be reached like that.

    Raises ArtifactError, JobFailed, ConfigError, HostUnreachable.
    """

    uses_known = True

    def attempt(number: int) -> Moved | None:
        nonlocal direct, uses_known
        try:
            with contextlib.ExitStack() as stack:
                return _Try(source, target, progress, say, pause, stack, direct, uses_known=uses_known).run(job, number)
        except _KnownBad as bad:
            say(f"{bad.text}: all is sent in full")
            uses_known = False
            raise Overtaken from bad
        except AgentRefused as refused:
            if refused.kind != "direct" or direct is None:
                raise
            say(f"{refused.message}; the bytes go through this machine instead")
            direct = None
            # What has come straight counts, and the journal on the target knows of it.
            raise Overtaken from refused

    return until_done(attempt, progress, say, pause)


def look(source: End, target: End, job: Job) -> tuple[Wanted, Tree, Known] | None:
    """What `move` would do, and nothing of it done. Raises as `move`."""
    with contextlib.ExitStack() as stack:
        chief = source.start("chief")
        stack.callback(chief.close)
        keeper = target.start("keeper")
        stack.callback(keeper.close)
        try:
            wanted = job.choose(chief, keeper)
            if wanted is None:
                return None
            tree, known, _ = job.prepare(chief, keeper, _scan(chief, wanted))
        except AgentRefused as refused:
            raise refused.as_error() from refused
        return wanted, tree, known


def _scan(chief: Agent, wanted: Wanted) -> Tree:
    asked = {"path": wanted.source, "is_checkpoint": wanted.is_checkpoint, "with_state": wanted.with_state}
    return tree_of(chief.ask("scan", asked, timeout_s=600.0))


class _Try:
    """One try: agents at both ends, lanes between them."""

    def __init__(
        self,
        source: End,
        target: End,
        progress: Progress,
        say: Say,
        pause: Callable[[float], None],
        stack: contextlib.ExitStack,
        direct: tuple[str, ...] | None,
        *,
        uses_known: bool,
    ) -> None:
        self._uses_known = uses_known
        self._source, self._target, self._direct = source, target, direct
        self._progress, self._say, self._pause, self._stack = progress, say, pause, stack
        self._lock = threading.Condition()
        self._due: list[Chunk] = []
        self._lanes: list[tuple[Lane | DirectLane, threading.Thread]] = []
        self._is_over = False
        """No chunk is taken any more, no lane begun."""
        self._threads: list[threading.Thread] = []
        self._problem: BaseException | None = None
        self._sha256s: dict[str, str] = {}
        self._num_left = 0
        self._early: Pair | None = None
        """The first lane's, which connects while both ends are looked at."""
        self._wanted: Wanted

    def run(self, job: Job, num_tries: int) -> Moved | None:
        pinger = Pinger()
        self._stack.callback(pinger.close)
        if self._direct is None:
            self._early = Pair(self._source, self._target, pinger)
            self._stack.callback(self._drop_early)
        chief, keeper = self._start_both("chief", "keeper", pinger)
        rtt_s = (_rtt(chief), _rtt(keeper))
        wanted = job.choose(chief, keeper)
        if wanted is None:
            return None
        self._wanted = wanted
        found = _scan(chief, wanted)
        tree, known, sha256s = job.prepare(chief, keeper, found)
        root = self._pinned(chief, tree)
        chunks = cut(tree, self._source.host, known if self._uses_known else None)
        opened = self._open(keeper, tree)
        done = set(opened["done"])
        self._begin(chunks, done, tree)
        expected = dict(sha256s)
        asker = threading.Thread(
            target=self._ask_sha256s, args=(chief, tree, expected), name="relay-sha256", daemon=True
        )
        asker.start()
        frontier = Frontier(tree)
        reached = [pair for chunk in chunks if chunk.key in done for pair in frontier.add(chunk)]
        empty = [(file.path, 0) for file in tree.files if not file.size]
        keeper.tell("reach", list(dict(reached).items()) + empty)

        def on_done(chunk: Chunk, how: str) -> None:
            with self._lock:
                moved = frontier.add(chunk)
                self._num_left -= 1
                self._lock.notify_all()
            self._progress.came(how, chunk.size)
            try:
                if moved:
                    keeper.tell("reach", moved)
            except HostUnreachable as error:
                self._fail(error)

        self._stack.callback(self._stop_lanes)
        self._run_lanes(tree, root, str(opened["part"]), max(rtt_s), on_done, pinger)
        self._stop_lanes()
        self._progress.phase = "verifying"
        self._await_sha256s(tree, asker, expected)
        self._compare(tree, chunks, expected, keeper, chief, root)
        self._progress.phase = "publishing"
        self._publish(keeper, tree)
        snapshot = self._progress.snapshot()
        return Moved(
            dest=str(opened["dest"]),
            total_bytes=tree.total_bytes,
            sent_bytes=snapshot.sent_bytes,
            kept_bytes=snapshot.kept_bytes,
            num_files=len(tree.files),
            num_lanes=snapshot.num_lanes,
            num_tries=num_tries,
            elapsed_s=snapshot.elapsed_s,
            rtt_s=rtt_s,
            hows=snapshot.hows,
        )

    # ---- agents

    def _start_both(self, one: Any, other: Any, pinger: Pinger) -> tuple[Agent, Agent]:
        """At the source and at the target, at once."""
        with ThreadPoolExecutor(2) as threads:
            futures = [
                threads.submit(self._source.start, one, self._heard_chief),
                threads.submit(self._target.start, other, self._heard_keeper),
            ]
        agents, problem = [], None
        for future in futures:
            try:
                agent = pinger.add(future.result())
                agents.append(agent)
                self._stack.callback(agent.close)
                self._stack.callback(pinger.drop, agent)
            except DflashctlError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return agents[0], agents[1]

    def _heard_chief(self, fields: dict[str, Any], _: Any) -> None:
        if fields.get("gone"):
            # With it goes the pin: what is still read may be pruned under the readers' hands.
            self._fail(HostUnreachable("the relay's agent at the source has gone", host=self._source.host))

    def _heard_keeper(self, fields: dict[str, Any], told: Any) -> None:
        if fields.get("gone"):
            self._fail(HostUnreachable("the relay's agent at the target has gone", host=self._target.host))
            return
        with self._lock:
            for path, sha256, text in told:
                self._sha256s[path] = sha256 or f"unreadable: {text}"
            self._lock.notify_all()

    def _fail(self, problem: BaseException) -> None:
        """The first counts."""
        with self._lock:
            self._problem = self._problem or problem
            self._lock.notify_all()

    def _pinned(self, chief: Agent, tree: Tree) -> str:
        """Where to read from, so that pruning takes nothing away meanwhile."""
        if not self._wanted.is_checkpoint:
            return tree.root
        asked = {"root": tree.root, "workdir": self._source.workdir, "files": [file.path for file in tree.files]}
        told = chief.ask("pin", asked)
        if not told["pinned"]:
            self._say(f"{self._source.host}: {tree.root} could not be pinned against pruning ({told['why']})")
        return str(told["root"])

    def _open(self, keeper: Agent, tree: Tree) -> dict[str, Any]:
        asked = {
            "dest": self._wanted.dest,
            "replace": self._wanted.replace,
            "files": [[file.path, file.size, file.mode, file.mtime_ns] for file in tree.files],
            "dirs": tree.dirs,
            "links": tree.links,
            "texts": self._texts(tree),
            "need_bytes": tree.need_bytes,
            "about": {**self._wanted.about, "total_bytes": tree.total_bytes},
        }
        is_told = False
        while True:
            try:
                told: dict[str, Any] = keeper.ask("open", asked, timeout_s=OPEN_S)
            except AgentRefused as refused:
                if is_told and refused.kind == "exists":
                    raise Overtaken from refused
                raise
            if not told["busy"]:
                return told
            if not is_told:
                self._say(
                    f"{self._target.host}: another relay is at work there, or the end of an earlier one; waiting for it"
                )
            is_told = True
            self._pause(BUSY_S)

    def _texts(self, tree: Tree) -> dict[str, str]:
        return {"manifest.json": tree.manifest} if self._wanted.is_checkpoint and tree.manifest is not None else {}

    # ---- lanes

    def _begin(self, chunks: tuple[Chunk, ...], done: set[str], tree: Tree) -> None:
        self._due = [chunk for chunk in reversed(chunks) if chunk.key not in done]
        self._num_left = len(self._due)
        kept = sum(chunk.size for chunk in chunks if chunk.key in done)
        progress = self._progress
        with progress.lock:
            progress.total_bytes, progress.done_bytes = tree.total_bytes, kept
            progress.kept_bytes = kept if not progress.sent_bytes else progress.kept_bytes
            progress.phase = "moving"
        progress.begin()

    def _take(self) -> Chunk | None:
        with self._lock:
            return self._due.pop() if self._due and self._problem is None and not self._is_over else None

    def _run_lanes(self, tree: Tree, root: str, part: str, rtt_s: float, on_done: Any, pinger: Pinger) -> None:
        if not self._num_left:
            return
        files = [list(file.version) for file in tree.files]
        paths = [file.path for file in tree.files]

        def add() -> None:
            try:
                lane = self._open_lane(root, files, part, paths, on_done, pinger)
            except BaseException as error:  # noqa: BLE001  it is told to the one that waits
                # One lane is enough to go on with.
                if not self._lanes and not self._is_over:
                    self._fail(error)
                return
            try:
                lane.run()
            except BaseException as error:  # noqa: BLE001
                if not self._is_over:
                    self._fail(error)
            finally:
                with self._lock:
                    self._lock.notify_all()

        def start() -> None:
            thread = threading.Thread(target=add, name=f"relay-lane-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

        pace = Pace(self._wanted.num_lanes, rtt_s, self._num_left)
        for _ in range(pace.num_first):
            start()
        while True:
            with self._lock:
                self._lock.wait(0.5)
                self._raise_problem()
                if not self._num_left:
                    return
                is_dead = not any(thread.is_alive() for thread in self._threads)
                num_opened = len(self._lanes)
            if is_dead:
                raise HostUnreachable("the relay's lanes have ended", host=self._target.host)
            if pace.wants_more(time.monotonic(), self._progress.sent_bytes, num_opened, len(self._threads)):
                start()

    def _open_lane(
        self, root: str, files: list[Any], part: str, paths: list[str], on_done: Any, pinger: Pinger
    ) -> Lane | DirectLane:
        lane: Lane | DirectLane
        if self._direct is not None:
            ear = Ear()
            pusher = pinger.add(self._source.start("pusher", ear))
            try:
                self._push(pusher, self._direct, root, files, part, paths)
            except BaseException:
                pusher.close()
                raise
            lane = DirectLane(pusher, self._take, on_done, self._progress, self._wanted.encode)
        else:
            pair = self._take_early() or Pair(self._source, self._target, pinger)
            ear = pair.ear
            agents = pair.take(root, files, part, paths)
            lane = Lane(*agents, self._take, on_done, self._progress, self._wanted.encode)
        ear.give_to(lane.heard)
        with self._lock:
            is_late = self._is_over
            if not is_late:
                self._lanes.append((lane, threading.current_thread()))
                self._progress.num_lanes = len(self._lanes)
        if is_late:
            lane.close()
            raise Stopped
        return lane

    def _take_early(self) -> Pair | None:
        with self._lock:
            pair, self._early = self._early, None
        return pair

    def _drop_early(self) -> None:
        pair = self._take_early()
        if pair is not None:
            pair.close()

    def _push(
        self, pusher: Agent, argv: tuple[str, ...], root: str, files: list[Any], part: str, paths: list[str]
    ) -> None:
        sentinel = secrets.token_hex(16)
        script = f"{{\n{self._target.script('writer', sentinel).source()}\n}}; exit\n"
        asked = {"argv": argv, "script": script, "sentinel": sentinel, "open": {"part": part, "files": paths}}
        told = pusher.ask("direct", asked)
        pusher.ask("open", {"root": root, "files": files, "methods": told["methods"]})

    def _stop_lanes(self) -> None:
        """Those that are only being opened close by themselves."""
        with self._lock:
            self._is_over = True
            lanes, self._lanes = self._lanes, []
        for lane, _ in lanes:
            lane.stop()
        end_s = time.monotonic() + STOP_S
        for lane, thread in lanes:
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                lane.cut()
                thread.join()
        with ThreadPoolExecutor(MOST_LANES) as threads:
            list(threads.map(lambda pair: pair[0].close(), lanes))

    def _raise_problem(self) -> None:
        if self._problem is None:
            return
        told = self._told_problem(self._problem)
        if told is self._problem:
            raise told
        raise told from self._problem

    def _told_problem(self, problem: BaseException) -> BaseException:
        if isinstance(problem, SourceBad):
            if problem.why == "changed":
                return Again(f"{self._source.host}: {problem.text}")
            return ArtifactError(
                f"{self._source.host}: {problem.text} while it was relayed ({problem.why})",
                hint="relay what is finished; nothing has been published",
            )
        if isinstance(problem, TargetBad) and problem.is_base:
            return _KnownBad(f"{self._target.host}: an earlier checkpoint is not what it was ({problem})")
        if isinstance(problem, TargetBad):
            return JobFailed(
                f"{self._target.host}: {self._wanted.dest} could not be written: {problem}",
                host=self._target.host,
                hint="what has come is kept: make room, and relay again",
            )
        return problem

    # ---- the end

    def _ask_sha256s(self, chief: Agent, tree: Tree, expected: dict[str, str]) -> None:
        """Of the files whose sha256 nobody has told, by reading them again at the source."""
        batch: list[str] = []
        size = 0
        try:
            for file in (*tree.files, None):
                if file is not None and file.path in expected:
                    continue
                if file is not None:
                    batch.append(file.path)
                    size += file.size
                if batch and (file is None or size >= HASH_BYTES or len(batch) >= 512):
                    told = chief.ask("hash", {"root": tree.root, "paths": batch}, timeout_s=hashing_s(size))
                    with self._lock:
                        expected.update(zip(batch, told, strict=True))
                    batch, size = [], 0
        except DflashctlError as error:
            self._fail(error)

    def _await_sha256s(self, tree: Tree, asker: threading.Thread, expected: dict[str, str]) -> None:
        """Those of both ends."""
        with self._lock:
            while len(self._sha256s) < len(tree.files) or len(expected) < len(tree.files):
                self._raise_problem()
                self._lock.wait(0.5)
        asker.join()

    def _compare(
        self,
        tree: Tree,
        chunks: tuple[Chunk, ...],
        expected: Mapping[str, str],
        keeper: Agent,
        chief: Agent,
        root: str,
    ) -> None:
        """What the target has read back, with what it should be. Raises ArtifactError, Again."""
        wrong = [file.path for file in tree.files if self._sha256s[file.path] != expected[file.path]]
        if not wrong:
            return
        size = next(file.size for file in tree.files if file.path == wrong[0])
        own = chief.ask("hash", {"root": root, "paths": wrong[:1]}, timeout_s=hashing_s(size))[0]
        is_changed = own != expected[wrong[0]]
        if is_changed and self._wanted.is_checkpoint:
            keeper.ask("drop", {})
            raise ArtifactError(
                f"{self._source.host}: {tree.root}/{wrong[0]} is not what its manifest says (sha256 {own[:12]}..., "
                f"not {expected[wrong[0]][:12]}...)",
                hint="relay another checkpoint; nothing was published",
            )
        bad = set(wrong)
        keys = [chunk.key for chunk in chunks if any(tree.files[index].path in bad for index, _, _ in chunk.pieces)]
        keeper.ask("forget", {"keys": keys})
        if is_changed:
            raise Again(f"{self._source.host}: {root}/{wrong[0]} was changed")
        raise Again(f"{self._target.host}: {wrong[0]} did not come as it was sent")

    def _publish(self, keeper: Agent, tree: Tree) -> None:
        keeper.ask("writers", {})
        keeper.ask(
            "publish",
            {
                "texts": self._texts(tree),
                "files": [[file.path, file.size, file.mode, file.mtime_ns] for file in tree.files],
                "links": tree.links,
                "only": tree.files[0].path if tree.is_file else "",
                "workdir": self._target.workdir if self._wanted.is_checkpoint else "",
                "about": dict(self._wanted.about),
            },
            timeout_s=900.0,
        )


def _rtt(agent: Agent) -> float:
    """Of a question that needs no work, the quickest of three."""
    times = []
    for _ in range(3):
        began_s = time.monotonic()
        agent.ask("rtt", {})
        times.append(time.monotonic() - began_s)
    return min(times)
