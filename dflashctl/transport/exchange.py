"""One question to a host behind SSH and its answer, with the limits, and with the truth about what is not known."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dflashctl.errors import HostUnreachable, LinkLost
from dflashctl.transport.framing import ErrTail, Frame, Reader
from dflashctl.transport.shell import Answer, Script
from dflashctl.transport.talk import Broken, Talk

if TYPE_CHECKING:
    from dflashctl.transport.ssh_connection import Connection

ERR_S = 0.5
"""After the answer, the end of stderr may take so long to arrive."""


class Exchange:
    """`output` gives what the script prints; once that has ended, `answer` has the rest."""

    def __init__(self, script: Script, host: str, connect: Callable[[float], "Connection"]) -> None:
        """`connect`: an open connection, within so many seconds."""
        frame = Frame()
        self._script, self._host, self._connect = script, host, connect
        self._sent = frame.wrap(script)
        self._reader = Reader(frame)
        self._err = ErrTail(frame)

    def answer(self, out: bytes) -> Answer:
        """Once all of the output was taken."""
        reader = self._reader
        assert reader.code is not None
        return Answer(reader.code, out, self._err.text(), num_noise_bytes=reader.num_noise_bytes, noise=reader.noise)

    def output(self, *, silence_s: float, timeout_s: float) -> Iterator[bytes]:
        """Raises HostUnreachable if the script cannot have run, LinkLost if it may have."""
        deadline_s = time.monotonic() + timeout_s
        connection = self._connect(timeout_s)
        try:
            yield from self._ask(connection, silence_s, deadline_s)
            return
        except LinkLost:
            raise
        except HostUnreachable:
            left_s = deadline_s - time.monotonic()
            # A pooled connection that has died meanwhile is replaced; a living host's refusal would come again.
            if connection.is_open or left_s <= 0:
                raise
        yield from self._ask(self._connect(left_s), silence_s, deadline_s)

    def _ask(self, connection: "Connection", silence_s: float, deadline_s: float) -> Iterator[bytes]:
        asked_s = time.monotonic()
        talk = Talk(connection, self._sent, deadline_s - asked_s)
        try:
            while self._reader.code is None:
                piece = talk.get(min(silence_s, deadline_s - time.monotonic()))
                if piece is None:
                    raise self._broken(talk, self._why_over(connection))
                if body := self._take(*piece):
                    yield body
            self._finish_err(talk)
        except queue.Empty as error:
            is_late = time.monotonic() >= deadline_s
            # So that the next question need not find out again.
            connection.close_if_silent_since(asked_s)
            raise self._broken(
                talk, "it took too long" if is_late else f"not a byte came for {silence_s:g} s"
            ) from error
        except Broken as error:
            raise self._broken(talk, str(error)) from error
        finally:
            talk.abandon()

    def _take(self, where: str, new: bytes) -> bytes:
        if where == "err":
            self._err.add(new)
            return b""
        return self._reader.add(new)

    def _finish_err(self, talk: Talk) -> None:
        """It travels beside the answer and may come after it."""
        deadline_s = time.monotonic() + ERR_S
        try:
            while not self._err.has_ended and (piece := talk.get(deadline_s - time.monotonic())) is not None:
                self._take(*piece)
        except queue.Empty:
            pass

    def _why_over(self, connection: "Connection") -> str:
        if not connection.is_open:
            return "the connection was lost"
        if self._reader.has_begun:
            return "its shell was ended"
        told = self._reader.before.decode("utf-8", "replace").strip().splitlines()
        words = f", having said: {told[-1]}" if told else ""
        return f"the login shell ended without an answer{words}; .bashrc or its like must not exit or redirect output"

    def _broken(self, talk: Talk, reason: str) -> HostUnreachable:
        name, host = self._script.name, self._host
        if not talk.abandon():
            return HostUnreachable(
                f"{host} cannot be reached: {reason} before {name} was sent; nothing was run",
                host=host,
                hint=f"try again; if it stays so, dflashctl hosts check {host}",
            )
        return LinkLost(
            f"{name} on {host} gave no complete answer ({reason}): whether it was done is not known",
            host=host,
            hint="ask again once the host can be reached: what is there decides",
        )
