"""One relay from the command line: the hosts, the board while it runs, and the words at its end."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.live import Live

from dflashctl.cli.options import inventory_of
from dflashctl.cli.output import Output
from dflashctl.cli.places import places_of, without_secrets
from dflashctl.config.protection import require_touch
from dflashctl.config.schema import nearest
from dflashctl.config.ssh import ssh_settings
from dflashctl.defaults import LOCAL
from dflashctl.errors import ConfigError, DflashctlError, Interrupted
from dflashctl.operations.relay import history
from dflashctl.operations.relay.agent import End
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.transfer import Moved, move
from dflashctl.operations.relay.wanted import Job
from dflashctl.stages.relay.checkpoint import Checkpoint, CheckpointJob, parse_name
from dflashctl.stages.relay.ends import both, end_of
from dflashctl.stages.relay.path import Location, PathJob, parse_location, refuse_both_stores
from dflashctl.stages.train.place import Place
from dflashctl.transport.bulk import ByteStream, open_stream
from dflashctl.transport.pool import Pool
from dflashctl.transport.shell import Script
from dflashctl.transport.talk import COMMAND
from dflashctl.views.relay import board, line, moved_text, plain

T = TypeVar("T")
ENCODINGS = ("auto", "always", "no")
LINE_S = 10.0
"""Between lines where there is no terminal."""


class Relay:
    """What relays of one command share: inventory, connections, options."""

    def __init__(
        self, hosts: Path | None, out: Output, touch: tuple[str, ...], encode: str, num_lanes: int | None
    ) -> None:
        if encode not in ENCODINGS:
            raise ConfigError(f"--encode {encode!r}: wanted {', '.join(ENCODINGS)}")
        self.out = out
        self.encode, self.num_lanes, self.touch = encode, num_lanes, touch
        self._hosts = hosts
        self.inventory = inventory_of(hosts)
        self._settings = ssh_settings(without_secrets(self.inventory))
        self._pool = Pool()
        self._begun: history.Record | None = None
        self._title = ""
        """Of the board, once it is known better than from what was typed."""

    def host(self, given: str | None, default: str | None, option: str, key: str) -> str:
        """Raises ConfigError."""
        name = given or default
        if name is None:
            raise ConfigError(f"relay: no {option} was given, and hosts.yaml has no relay.{key}", hint=f"{option} HOST")
        self.inventory.lookup(name)
        return name

    def ends(self, source: str, target: str, workdirs: tuple[str | None, str | None] = (None, None)) -> tuple[End, End]:
        """Both at once. Raises as `end`."""
        one, other = (
            partial(self.end, host, workdir) for host, workdir in ((source, workdirs[0]), (target, workdirs[1]))
        )
        return both(one, other)

    def end(self, host: str, workdir: str | None = None) -> End:
        """Connected, with the bundle in place. Raises HostUnreachable, JobFailed."""
        (place,) = places_of([host], self._hosts, Path(workdir) if workdir is not None else None, pool=self._pool)
        python = place.spec.python
        return end_of(host, python, place.workdir, place.shell, self._open)

    def _open(self, host: str, script: Script, sentinel: str) -> ByteStream:
        return open_stream(host, self.inventory.content, self._settings, self._pool, script, sentinel)

    def checkpoint(
        self,
        name: str | None,
        source: str | None,
        target: str | None,
        source_workdir: str | None,
        target_workdir: str | None,
        *,
        with_state: bool,
        replace: bool,
        is_dry_run: bool,
    ) -> None:
        relay = self.inventory.content.relay
        one = self.host(source, relay.source, "--from", "source")
        other = self.host(target, relay.destination, "--to", "destination")
        if one == other and source_workdir == target_workdir:
            raise ConfigError(f"relay: {one} is source and destination at once")
        run, which = parse_name(name)
        self.gate(other, replace)
        ends = self.ends(one, other, (source_workdir, target_workdir))
        again = ["--from", one, "--to", other, *self._flags(with_state, replace)]
        for option, end, given in zip(
            ("--from-workdir", "--to-workdir"), ends, (source_workdir, target_workdir), strict=True
        ):
            # That of this machine is where one types, and that may be elsewhere the next time.
            again += [] if given is None and end.host != LOCAL else [option, end.workdir]

        def remember(chosen: Checkpoint) -> None:
            self._title = chosen.label
            if chosen.why:
                self.out.say(f"{chosen.label}: {chosen.why}")
            self.remember("ckpt", f"{one}:{chosen.label}", other, ["ckpt", chosen.label, *again])

        job = CheckpointJob(
            one, other, ends[0].workdir, ends[1].workdir, run, which, with_state, replace, self.encode, self.num_lanes,
            on_chosen=remember,
        )  # fmt: skip
        if is_dry_run:
            job.on_chosen = None
            self._show_plan(job, ends)
            return
        moved = self.carry_out(job, ends, name or "checkpoint")
        self._tell(job, moved, job.chosen.label if job.chosen else "checkpoint", other, job.dest)

    def path(self, source: str, dest: str, *, replace: bool, is_dry_run: bool) -> None:
        names = frozenset(self.inventory.names)
        one, other = parse_location(source, names), parse_location(dest, names)
        refuse_both_stores(one, other)
        if one.is_store or other.is_store:
            from dflashctl.cli.store_relay import relay_store

            relay_store(self, one, other, replace=replace, is_dry_run=is_dry_run)
            return
        self.gate(other.host, replace)
        ends = self.ends(one.host, other.host)
        job = PathJob(one, other, replace=replace, encode=self.encode, num_lanes=self.num_lanes)
        if is_dry_run:
            self._show_plan(job, ends)
            return
        self.remember_path(one, other, replace=replace)
        moved = self.carry_out(job, ends, str(one))
        self._tell(job, moved, str(one), other.host, other.path)

    def gate(self, host: str, replace: bool, what: str = "relay --replace") -> None:
        """What is there is a protected host's own: only what is named may be put in its place."""
        spec = self.inventory.lookup(host)
        if replace:
            require_touch(what, host=host, is_host_protected=spec.protected, run="", given=self.touch)

    def _show_plan(self, job: Job, ends: tuple[End, End]) -> None:
        from dflashctl.operations.relay.transfer import look

        found = look(*ends, job)
        if found is None:
            self.out.result({"is_there": True}, "it is there already; nothing would be sent")
            return
        wanted, tree, known = found
        data = {"wanted": wanted, "files": [file.path for file in tree.files], "total_bytes": tree.total_bytes}
        text = [
            f"{ends[0].host}:{wanted.source} -> {ends[1].host}:{wanted.dest}",
            f"{len(tree.files)} files, {tree.total_bytes} bytes; "
            f"{len(known.same)} tensors are there already, of {len(known.base)} only the difference may be sent",
            *(f"  {plain(file.path)}  {file.size}" for file in tree.files[:50]),
            *([f"  and {len(tree.files) - 50} more"] if len(tree.files) > 50 else []),
        ]
        self.out.result(data, "\n".join(text))

    def carry_out(self, job: Job, ends: tuple[End, End], what: str) -> Moved | None:
        """Raises what `move` raises, Interrupted after Ctrl-C."""
        progress = Progress()
        return self.carried(
            what,
            (ends[0].host, ends[1].host),
            progress,
            lambda: move(*ends, job, progress, self.out.say, direct=self._direct(ends[0].host, ends[1].host)),
        )

    def _direct(self, source: str, target: str) -> tuple[str, ...] | None:
        """What the source types to come to the target, if hosts.yaml says that it can."""
        for route in self.inventory.content.relay.direct:
            if (route.source, route.destination) == (source, target):
                options = (
                    "-oBatchMode=yes",
                    "-oCompression=no",
                    "-oConnectTimeout=10",
                    "-oServerAliveInterval=5",
                    "-oClearAllForwardings=yes",
                )
                return ("ssh", *options, "-oCiphers=^aes128-gcm@openssh.com", "-T", route.ssh, COMMAND)
        return None

    def carried(self, what: str, legs: tuple[str, str], progress: Progress, act: Callable[[], T]) -> T:
        """With a board while it lasts, and a line in the history. Raises Interrupted after Ctrl-C."""
        try:
            with self._shown(what, *legs, progress):
                moved = act()
        except KeyboardInterrupt as error:
            self._end_of("interrupted", progress, "")
            is_late = progress.snapshot().phase == "publishing"
            what_is = "it may have its final name" if is_late else "nothing has its final name"
            raise Interrupted(
                f"interrupted; what has come stays there, {what_is}", hint="dflashctl relay resume"
            ) from error
        except DflashctlError as error:
            self._end_of("failed", progress, error.message)
            raise
        self._end_of("done", progress, "")
        return moved

    @contextlib.contextmanager
    def _shown(self, what: str, source: str, target: str, progress: Progress) -> Iterator[None]:
        if self.out.is_live:
            with Live(console=self.out.progress, refresh_per_second=4, get_renderable=lambda: board(
                self._title or what, source, target, progress.snapshot()
            ), transient=True):  # fmt: skip
                yield
            return
        over = threading.Event()

        def tell() -> None:
            while not over.wait(LINE_S):
                self.out.say(line(source, target, progress.snapshot()))

        thread = threading.Thread(target=tell, name="relay-lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _tell(self, job: Any, moved: Moved | None, what: str, host: str, dest: str) -> None:
        if moved is None:
            self.out.result(
                {"is_there": True, "dest": job.dest if isinstance(job, CheckpointJob) else dest, "sent_bytes": 0},
                f"{what} is on {host} already, and the same: nothing was sent",
            )
            return
        self.out.result({"is_there": False, **moved.__dict__}, moved_text(what, host, moved))

    # ---- history

    def remember_path(self, source: Location, dest: Location, *, replace: bool) -> None:
        words = ["path", source.absolute(), dest.absolute(), *self._flags(False, replace)]
        self.remember("path", str(source), str(dest), words)

    def remember(self, kind: history.Kind, source: str, dest: str, what: list[str]) -> None:
        """From now on `relay list` knows of it."""
        how = ["--encode", self.encode]
        how += [] if self.num_lanes is None else ["--connections", str(self.num_lanes)]
        how += [] if self.inventory.file is None else ["--hosts", str(self.inventory.file.absolute())]
        how += [word for name in self.touch for word in ("--touch", name)]
        self._begun = history.begun(kind, source, dest, tuple(what), tuple(how))
        history.note(self._begun)

    def _flags(self, with_state: bool, replace: bool) -> list[str]:
        return ["--with-state"] * with_state + ["--replace"] * replace

    def _end_of(self, outcome: history.Outcome, progress: Progress, text: str) -> None:
        if self._begun is not None:
            seen = progress.snapshot()
            record = dataclasses.replace(
                self._begun,
                outcome=outcome,
                text=text,
                total_bytes=seen.total_bytes,
                sent_bytes=seen.sent_bytes,
            )
            history.note(record)

    def list(self, target: str | None) -> None:
        from dflashctl.views.relay import relay_tables

        host = target or self.inventory.content.relay.destination
        there: dict[str, Any] = {"unfinished": [], "received": []}
        problem = ""
        if host is not None:
            self.inventory.lookup(host)
            try:
                end = self.end(host)
                agent = end.start("keeper")
                try:
                    there = agent.ask("list", {"workdir": end.workdir})
                finally:
                    agent.close()
            except DflashctlError as error:
                problem = error.message
        begun = history.records()
        self.out.result(
            {"begun_here": begun, "host": host, **there, "problem": problem}, *relay_tables(begun, host, there)
        )
        if problem:
            self.out.say(problem)


def unfinished(name: str | None) -> list[str] | None:
    """The arguments of a relay that did not come to its end; None: it did. Raises ConfigError."""
    begun = history.records()
    left = [record for record in begun if record.outcome not in ("done", "moving")]
    if name is None:
        if not left:
            raise ConfigError("no relay is unfinished", hint="dflashctl relay list")
        return list(left[-1].arguments)
    for record in begun:
        if record.name == name:
            if record.outcome == "moving" and record.process is not None:
                raise ConfigError(
                    f"relay {name} is at work, in process {record.process.pid}", hint="wait for its end, or end it"
                )
            return None if record.outcome == "done" else list(record.arguments)
    near = nearest(name, tuple(record.name for record in begun))
    raise ConfigError(f"there is no relay {name}", hint=f"did you mean {near}?" if near else "dflashctl relay list")


__all__ = ["Place", "Relay", "unfinished"]
