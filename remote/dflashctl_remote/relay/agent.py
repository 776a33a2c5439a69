"""One end of a relay on a host: started over ssh, speaks only when asked, ends when the operator falls silent."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from dflashctl_remote.relay import wire

SILENCE_S = 40
"""The operator says something every few seconds; who hears nothing for so long is talking to nobody."""
STALL_S = 60
"""A payload of which nothing comes or goes for so long will never come to its end."""
ANSWER_S = 300
"""An answer that takes longer says so itself."""
PIECE_BYTES = 1 << 18
END_S = 5
"""So long an agent may take to tidy up before it is ended."""


class Refused(Exception):
    """What was asked for cannot be. `kind` is for the operator's program, the text for people."""

    def __init__(self, kind: str, text: str, **about: Any) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.about = about


class Line:
    """The agent's side of the conversation. Answers may come from several threads."""

    def __init__(self, asked: int, answers: int) -> None:
        self.asked = asked
        self.answers = answers
        self.lock = threading.Lock()

    def hear(self) -> tuple[dict[str, Any], Any]:
        """The next question that is not only a sign of life. Raises EOFError when the operator has gone."""
        while True:
            watch(SILENCE_S)
            # Of 100,000 files the names alone take a slow link minutes.
            fields, payload = wire.read_message(self.asked, lambda: watch(SILENCE_S))
            watch(ANSWER_S)
            if fields.get("op") != "ping":
                return fields, payload

    def say(self, payload: Any = None, **fields: Any) -> None:
        text = wire.header(**fields) if payload is None else wire.message(fields, payload)
        view = memoryview(text)
        with self.lock:
            for at in range(0, len(view), PIECE_BYTES):
                if at:
                    # So long an answer takes a slow link minutes: it is gone only if nothing of it goes.
                    watch(ANSWER_S)
                wire.write_all(self.answers, view[at : at + PIECE_BYTES])

    def reply(self, questions: dict[str, Callable[[Any], Any]], op: str, asked: Any) -> None:
        """By the function of that name; one that gives None has nothing to say. Raises Refused."""
        if op not in questions:
            raise Refused("op", f"unknown question {op!r}")
        told = questions[op](asked)
        if told is not None:
            self.say(told, op=op)

    def refuse(self, problem: Refused, **fields: Any) -> None:
        self.say({"kind": problem.kind, "text": problem.text, **problem.about}, error=1, **fields)


IS_AGENT = threading.Event()
"""Set in a process that is an agent, and nothing else."""


def watch(seconds: int) -> None:
    """Ends an agent at once unless it is called again in time: a link that is cut is told by nobody."""
    if IS_AGENT.is_set():
        signal.alarm(seconds)


def reason(error: OSError) -> str:
    return error.strerror or str(error)


def expand(path: str) -> str:
    return os.path.expanduser(path) if path == "~" or path.startswith("~/") else path


def within(path: str) -> str:
    """A path of a tree, if it is one: relative, and never out of it."""
    if not is_path(path) or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise Refused("path", f"{path!r} leads out of its folder, or is no path")
    return path


def is_path(path: Any) -> bool:
    """Whether a file could have that name at all."""
    try:
        return isinstance(path, str) and path != "" and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def leads_out(path: str, said: str) -> bool:
    """Whether what a link at a path of a tree says, leads out of that tree, by its letters alone."""
    target = os.path.normpath(os.path.join(os.path.dirname(path), said))
    return not is_path(said) or os.path.isabs(said) or target == ".." or target.startswith("../")


def main(role: str, sentinel: str) -> int:
    from dflashctl_remote.relay import chief, keeper, reader, writer

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    line = Line(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    # Whatever prints by mistake must not be taken for an answer.
    os.dup2(2, 1)
    wire.write_all(line.answers, (sentinel + " ready\n").encode())
    roles: dict[str, Any] = {
        "chief": chief.Chief,
        "keeper": keeper.Keeper,
        "reader": reader.Reader,
        "writer": writer.Writer,
        "pusher": reader.Reader,
    }
    agent = roles[role](line)

    def fall_silent(*_: Any) -> None:
        # Tidying up may hang, too.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(END_S)
        agent.end()
        os._exit(1)

    signal.signal(signal.SIGALRM, fall_silent)
    IS_AGENT.set()
    problem: BaseException | None = None
    try:
        while True:
            fields, payload = line.hear()
            try:
                agent.answer(fields, payload)
            except Refused as refused:
                line.refuse(refused, op=fields.get("op"))
            except OSError as error:
                where = error.filename if isinstance(error.filename, str) else ""
                text = f"{where}: {reason(error)}" if where else reason(error)
                line.refuse(Refused("io", text, errno=error.errno), op=fields.get("op"))
    except EOFError:
        pass
    except BaseException as error:
        problem = error
        raise
    finally:
        agent.end()
        if problem is None:
            sys.stderr.flush()
    return 0
