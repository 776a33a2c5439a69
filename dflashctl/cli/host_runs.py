"""Runs on any host, through its shell: listed, followed and ended from here. Starting one is host_start.py."""

import sys
import time
from functools import partial
from typing import Any

from dflashctl.artifacts import RunRef
from dflashctl.cli.follow import Watcher
from dflashctl.cli.options import author
from dflashctl.cli.output import Output
from dflashctl.cli.places import gate
from dflashctl.cli.run_report import report
from dflashctl.config.folders import state_folder
from dflashctl.errors import (
    ArtifactError,
    ConfigError,
    DflashctlError,
    HostUnreachable,
    Interrupted,
    JobFailed,
    NotAllAnswered,
)
from dflashctl.facts.host_runs import HostRun, HostRuns, run_on, runs_on
from dflashctl.facts.host_stream import EventFeed, follow, read_piece
from dflashctl.facts.run_state import START_S, RunState
from dflashctl.operations.supervised import StopProof
from dflashctl.stages.train.last_seen import recall, remember
from dflashctl.stages.train.place import Place
from dflashctl.transport.tail import parse_lines
from dflashctl.views.job import Lines
from dflashctl.views.training import TrainingBoard

WATCHED_BYTES = 512 * 1024
"""Some 700 steps of what went before are shown."""
LIST_S = 20.0
"""Hosts that have not answered by then are listed as they were last seen."""


def list_runs(places: list[Place], out: Output) -> None:
    """The runs of all places as far as they answer. Raises NotAllAnswered, when they are shown, if some did not."""
    from dflashctl.transport.fan_out import fan_out
    from dflashctl.views.tables import runs, runs_head

    folder = state_folder()
    by_host = {place.host: place for place in places}
    told: list[RunState] = []
    problems: list[DflashctlError] = []
    shells = [place.shell for place in places]
    if not out.is_json:
        out.results.print(runs_head())
    for host, found in fan_out(shells, lambda shell: _ask(by_host[shell.name]), LIST_S):
        asked = by_host[host].workdir
        states: tuple[RunState, ...] = ()
        if not isinstance(found, DflashctlError):
            remember(folder, asked, found, time.time())
            states = found.states
        else:
            problems.append(found)
            if isinstance(found, HostUnreachable):
                states = recall(folder, host, asked)
        told += states
        # As they answer: a host that is slow or dead keeps nobody from seeing the others.
        if not out.is_json and states:
            clock = {} if isinstance(found, DflashctlError) else {host: found.now_s}
            out.results.print(runs(states, clock, is_part=True))
        elif not out.is_json and not isinstance(found, DflashctlError):
            out.results.print(f"  {host}: no run in {asked}", markup=False, soft_wrap=True)
    if out.is_json:
        told.sort(key=lambda state: (state.run.host, state.run.run_id))
        out.result(told)
    if problems:
        raise NotAllAnswered(problems)


def watch(place: Place, run_id: str, out: Output) -> None:
    """Show a run until no process of it is left. Ctrl-C leaves it running."""
    run = readable(place, run_id).run
    watcher = Watcher(out, board := TrainingBoard(f"{run_id} on {place.host}", time.time))
    feed = EventFeed(run.events_path)
    waits_until_s = time.monotonic() + START_S
    try:
        with watcher.shown():
            for piece in follow(
                place.shell, run, "events.jsonl", offset=-WATCHED_BYTES, say=watcher.remark, with_gpus=out.is_live
            ):
                for event in feed.add(piece):
                    watcher.add(event)
                if piece.gpus:
                    board.gpus = piece.gpus
                if not piece.has_process and time.monotonic() > waits_until_s:
                    break
    except KeyboardInterrupt as error:
        raise Interrupted(f"watching ended, and run {run_id} goes on", hint=run.command("watch")) from error
    report(readable(place, run_id), out)


def readable(place: Place, run_id: str) -> RunState:
    """Raises ArtifactError for a run whose state cannot be read."""
    state = find(place, run_id).state
    if state.state == "unreadable":
        raise ArtifactError(
            f"run {run_id} on {place.host} cannot be read: {state.detail}", hint=state.run.command("logs --raw")
        )
    return state


def find(place: Place, run_id: str) -> HostRun:
    return run_on(place.shell, place.workdir, run_id, options=place.options)


def _ask(place: Place) -> HostRuns:
    return runs_on(place.shell, place.workdir, options=place.options)


def logs(place: Place, run_id: str, lines: int, out: Output, *, is_raw: bool, follows: bool) -> None:
    """The end of a run's account or of what it printed, and with `follows` all that comes after it."""
    run = find(place, run_id).state.run
    name = "log" if is_raw else "events.jsonl"
    told, end = _last_lines(place, run, name, lines)
    shown = Lines(every_s=0.0)
    if not follows:
        if is_raw:
            text = [line.decode("utf-8", "replace").rstrip("\n") for line in told]
            out.result(text, "\n".join(text))
            return
        events = parse_lines(b"".join(told), run.events_path)
        out.result(events, "\n".join(_texts(events, shown)))
        return
    if out.is_json and is_raw:
        raise ConfigError("what a process prints is followed as it is, not as JSON", hint="leave out --json or --raw")
    show = _print_raw if is_raw else _print_json if out.is_json else partial(_print_lines, run, shown)
    show(b"".join(told))
    held = b""
    for piece in follow(place.shell, run, name, offset=end, say=out.say):
        if is_raw:
            show(piece.content)
            continue
        whole, newline, held = (held + piece.content).rpartition(b"\n")
        show(whole + newline)


def stop(place: Place, run_id: str, grace_s: float, out: Output, touch: tuple[str, ...], *, is_dry_run: bool) -> None:
    """The ladder: ask, wait, end, prove. What stands at the end is what the host says."""
    from dflashctl.operations.stop import stop as end_run

    found = find(place, run_id)
    folder = found.state.run.folder
    if is_dry_run:
        steps = (
            f"write {folder}/stop.requested",
            f"send SIGTERM to process {found.state.pid} if it is still the one of token.json",
            f"wait at most {grace_s:g} s for its checkpoint",
            "send SIGKILL to what is left of it: its group, and what carries its marker",
            "prove that no process, port or GPU memory of it is left",
        )
        out.result({"state": found.state, "steps": steps}, "would, and did nothing:", *(f"  {step}" for step in steps))
        return
    gate(place, found, "train stop", touch)
    try:
        proof = end_run(place.shell, str(folder), who=author(), grace_s=grace_s, say=out.say)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"nobody waits any more for run {run_id} on {place.host} to end; a stop that was asked for goes on there",
            hint=found.state.run.command("stop"),
        ) from error
    state = find(place, run_id).state
    out.result(
        {"state": state, "proof": proof},
        f"run {run_id} on {place.host} {proof.outcome}; {_left(proof)}",
        f"  it is {_said(state)}; go on with: {state.run.command('resume')}",
    )
    if proof.ports_held or proof.gpus_held:
        raise JobFailed(
            f"run {run_id} has ended, and {_left(proof)}", host=place.host, hint=f"dflashctl hosts check {place.host}"
        )


def _left(proof: StopProof) -> str:
    held = [f"port {port}" for port in proof.ports_held] + [f"memory of GPU {uuid}" for uuid in proof.gpus_held]
    if held:
        return f"no process of it is left, but {' and '.join(held)} is still held by a process not known as its own"
    return "no process of it is left, nor a port or GPU memory that it held"


def _said(state: RunState) -> str:
    return state.state + (f" ({state.detail})" if state.detail else "")


def _last_lines(place: Place, run: RunRef, name: str, lines: int) -> tuple[list[bytes], int]:
    """The last whole lines of a stream, with their line ends, and the offset after them."""
    span = max(64 * 1024, lines * 512)
    while True:
        content, first, end = b"", None, -span
        while True:
            piece = read_piece(place.shell, run, name, end)
            if piece is None:
                continue
            first = piece.at if first is None else first
            content += piece.content
            end = piece.at + len(piece.content)
            if not piece.content or end >= piece.end:
                break
        whole, newline, rest = content.rpartition(b"\n")
        found = (whole + newline).splitlines(keepends=True)
        if len(found) > lines or not first or span >= end:
            return found[-lines:], end - len(rest)
        span *= 4


def _print_raw(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _print_json(content: bytes) -> None:
    """An event is a line of JSON already."""
    _print_raw(b"".join(line + b"\n" for line in content.split(b"\n") if line.strip()))


def _print_lines(run: RunRef, shown: Lines, content: bytes) -> None:
    for line in _texts(parse_lines(content, run.events_path), shown):
        print(line)
    sys.stdout.flush()


def _texts(events: list[Any], shown: Lines) -> list[str]:
    """Events as lines with the host's time of day, as this machine's time zone has it."""
    told = ((event, shown.line_of(event)) for event in events)
    return [
        f"{time.strftime('%H:%M:%S', time.localtime(event.at_s))} {line}" for event, line in told if line is not None
    ]
