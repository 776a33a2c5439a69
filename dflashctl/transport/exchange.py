"""One question to a host behind SSH and its answer, with the limits, and with the truth about what is not known."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dflashctl.errors import HostUnreachable, LinkLost
from dflashctl.transport.framing import ErrTail, Frame, Reader
from dflashctl.transport.shell import Script
from dflashctl.transport.talk import Talk

if TYPE_CHECKING:
    from dflashctl.transport.ssh_connection import Connection

ERR_S = 0.5
"""After the answer, the end of stderr may take so long to arrive."""


class Exchange:
    """`output` gives what the script prints; when it has ended, `reader` has the exit code and `err` the stderr."""

    def __init__(self, script: Script, host: str, connect: Callable[[float], "Connection"]) -> None:
        """`connect`: an open connection, within so many seconds."""
        frame = Frame()
        self._script, self._host, self._connect = script, host, connect
        self._sent = frame.wrap(script)
        self.reader = Reader(frame)
        self.err = ErrTail(frame)

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
        talk = Talk(connection, self._sent, deadline_s - time.monotonic())
        try:
            while self.reader.code is None:
                piece = talk.get(min(silence_s, deadline_s - time.monotonic()))
                if piece is None:
                    reason = "its login shell ended" if connection.is_open else "the connection was closed"
                    raise self._broken(talk, reason)
                if body := self._take(piece[0], piece[1]):
                    yield body
            self._finish_err(talk)
        except queue.Empty as error:
            late = time.monotonic() >= deadline_s
            raise self._broken(talk, "the time is over" if late else f"not a byte came for {silence_s:g} s") from error
        except (HostUnreachable, GeneratorExit, KeyboardInterrupt):
            raise
        except Exception as error:
            raise self._broken(talk, str(error) or type(error).__name__) from error
        finally:
            talk.abandon()

    def _take(self, where: str, new: bytes) -> bytes:
        if where == "err":
            self.err.add(new)
            return b""
        return self.reader.add(new)

    def _finish_err(self, talk: Talk) -> None:
        """It travels beside the answer and may come after it."""
        deadline_s = time.monotonic() + ERR_S
        try:
            while not self.err.has_ended and (piece := talk.get(deadline_s - time.monotonic())) is not None:
                self._take(*piece)
        except queue.Empty:
            pass

    def _broken(self, talk: Talk, reason: str) -> HostUnreachable:
        name, host = self._script.name, self._host
        if not talk.abandon():
            return HostUnreachable(
                f"{host} cannot be reached: {reason} before {name} was sent; nothing was run",
                host=host,
                hint="try again; if it stays so, dflashctl hosts check",
            )
        return LinkLost(
            f"{name} on {host} gave no complete answer ({reason}): whether it was done is not known",
            host=host,
            hint="ask again once the host can be reached: what is there decides",
        )
