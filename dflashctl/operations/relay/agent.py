"""The agents at the ends of a relay, as the operator's side talks to them. See dflashctl_remote/relay/agent.py."""

import os
import queue
import secrets
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflashctl.errors import ArtifactError, ConfigError, DflashctlError, HostUnreachable, JobFailed
from dflashctl.transport.bulk import ByteStream
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Script
from dflashctl_remote.relay import wire

Role = Literal["chief", "reader", "pusher", "keeper", "writer"]
ASK_S = 120.0
HASH_S, HASH_BYTES_PER_S = 600.0, 10 << 20
"""An agent that hashes says nothing until the end; one that lives no longer is noticed by its link."""
PING_S = 5.0
END_S = 3.0
"""So long an agent that lives may take to end; over a dead link none will."""
_SCRIPT = read_script(Path(__file__).parent, "agent.sh")


def hashing_s(num_bytes: int) -> float:
    """So long reading so much may take, on a disk that is slow and busy."""
    return HASH_S + num_bytes / HASH_BYTES_PER_S


@dataclass(frozen=True)
class End:
    """A host at one end of a relay."""

    host: str
    workdir: str
    """As written: absolute or below `~/` there."""
    python: str
    bundle: str
    """Folder of the bundle there."""
    open_stream: Callable[[Script, str], ByteStream]

    def script(self, role: Role, sentinel: str) -> Script:
        values = (("python", self.python), ("bundle", self.bundle), ("role", role), ("sentinel", sentinel))
        return Script(f"relay {role}", _SCRIPT, values)

    def start(self, role: Role, heard: "Callable[[dict[str, Any], Any], None] | None" = None) -> "Agent":
        """Raises HostUnreachable, JobFailed."""
        sentinel = secrets.token_hex(16)
        return Agent(self.host, role, self.open_stream(self.script(role, sentinel), sentinel), heard)


class AgentRefused(DflashctlError):
    """An agent's own word that something cannot be. `kind` says what, for programs."""

    def __init__(self, host: str, told: dict[str, Any]) -> None:
        super().__init__(f"{host}: {told.get('text', 'it refused')}")
        self.host = host
        self.kind = str(told.get("kind", ""))
        self.errno = told.get("errno")

    def as_error(self) -> DflashctlError:
        """What a user is told, with the exit code that fits."""
        if self.kind == "writers":
            return HostUnreachable(self.message, host=self.host, hint="try again in a minute")
        if self.kind in ("incomplete", "corrupt", "missing", "link", "path", "kind"):
            return ArtifactError(self.message)
        if self.kind == "exists":
            return ConfigError(self.message, hint="--replace puts the new one in its place")
        if self.kind == "space":
            return JobFailed(self.message, host=self.host, hint="free space there, or prune older checkpoints")
        return JobFailed(self.message, host=self.host)


class Agent:
    """A running agent. Questions may come from several threads; while one waits for its answer the others wait too."""

    def __init__(
        self, host: str, role: Role, stream: ByteStream, heard: Callable[[dict[str, Any], Any], None] | None
    ) -> None:
        self.host = host
        self.role = role
        self.stream = stream
        self.writing = threading.Lock()
        """Held while a message goes, so that a sign of life never falls into the middle of one."""
        self._is_closed = False
        self._heard = heard
        self._asking = threading.Lock()
        self._answers: queue.Queue[tuple[dict[str, Any], Any] | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, name=f"relay-{role}", daemon=True)
        # A reader's output is bytes for another: it is read by the lane alone.
        if role != "reader":
            self._listener.start()

    def ask(self, op: str, payload: Any, *, timeout_s: float = ASK_S) -> Any:
        """Raises AgentRefused, HostUnreachable."""
        with self._asking:
            self.tell(op, payload)
            while True:
                fields, told = self._next(timeout_s, op)
                if fields.get("error"):
                    raise AgentRefused(self.host, told)
                if fields.get("op") == op:
                    return told

    def tell(self, op: str, payload: Any, **fields: Any) -> None:
        """Without an answer. Raises HostUnreachable."""
        self.send(wire.message({"op": op, **fields}, payload))

    def send(self, data: bytes) -> None:
        try:
            with self.writing:
                if self._is_closed:
                    raise BrokenPipeError
                wire.write_all(self.stream.stdin_fd, data)
        except OSError as error:
            raise self.lost() from error

    def ping(self) -> None:
        """Not while a message is on its way: that is a sign of life itself. Waits for nobody."""
        if not self.writing.acquire(blocking=False):
            return
        try:
            poll = select.poll()
            poll.register(self.stream.stdin_fd, select.POLLOUT)
            # A pipe that takes anything takes a ping.
            if not self._is_closed and poll.poll(0):
                wire.write_all(self.stream.stdin_fd, wire.header(op="ping"))
        except OSError:
            # Whoever next has something to say finds out.
            pass
        finally:
            self.writing.release()

    def lost(self) -> HostUnreachable:
        return self.stream.error("the relay")

    def close(self) -> None:
        """Nothing may be written by others any more. The agent ends by itself when it finds its input at an end."""
        if not self.writing.acquire(timeout=END_S):
            self.stream.cut()
            self.writing.acquire()
        try:
            if self._is_closed:
                return
            self._is_closed = True
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.stream.stdin_fd, inheritable=False)
            os.close(nothing)
        finally:
            self.writing.release()
        if self._listener.ident is not None:
            self._listener.join(END_S)
            if self._listener.is_alive():
                self.stream.cut()
                self._listener.join()
        self.stream.close()

    def _next(self, timeout_s: float, op: str) -> tuple[dict[str, Any], Any]:
        if self.role == "reader":
            try:
                return wire.read_message(self.stream.stdout_fd)
            except (EOFError, OSError, ValueError) as error:
                raise self.lost() from error
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise self.stream.error(f"the relay's question ({op})") from None
        if answer is None:
            self._answers.put(None)
            raise self.lost()
        return answer

    def _listen(self) -> None:
        try:
            while True:
                fields, payload = wire.read_message(self.stream.stdout_fd)
                if self._heard is not None and ("sha" in fields or "id" in fields):
                    self._heard(fields, payload)
                else:
                    self._answers.put((fields, payload))
        except (EOFError, OSError, ValueError, KeyError, TypeError):
            # It has gone, or talks nonsense: to nobody, from now on.
            pass
        finally:
            self._answers.put(None)
            if self._heard is not None:
                with suppress(Exception):
                    self._heard({"gone": 1}, None)


class Pinger:
    """Tells all agents every few seconds that somebody is there."""

    def __init__(self) -> None:
        self._agents: list[Agent] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        threading.Thread(target=self._run, name="relay-ping", daemon=True).start()

    def add(self, agent: Agent) -> Agent:
        with self._lock:
            self._agents.append(agent)
        return agent

    def drop(self, agent: Agent) -> None:
        with self._lock:
            if agent in self._agents:
                self._agents.remove(agent)

    def close(self) -> None:
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(PING_S):
            with self._lock:
                for agent in self._agents:
                    agent.ping()
