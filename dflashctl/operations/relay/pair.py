"""A reader at the source and a writer at the target, on their way: connecting takes as long as everything before it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dflashctl.errors import DflashctlError
from dflashctl.operations.relay.agent import Agent, End, Pinger

Heard = Callable[[dict[str, Any], Any], None]


class Ear:
    """Keeps what a writer says until there is somebody to hear it."""

    def __init__(self) -> None:
        self._hear: Heard | None = None
        self._waiting: list[tuple[dict[str, Any], Any]] = []

    def __call__(self, fields: dict[str, Any], payload: Any) -> None:
        if self._hear is None:
            self._waiting.append((fields, payload))
        else:
            self._hear(fields, payload)

    def give_to(self, hear: Heard) -> None:
        self._hear = hear
        for told in self._waiting:
            hear(*told)


class Pair:
    """Both are started at once, by threads of its own; whoever takes them closes them."""

    def __init__(self, source: End, target: End, pinger: Pinger) -> None:
        self.ear = Ear()
        self._pinger = pinger
        threads = ThreadPoolExecutor(2, thread_name_prefix="relay-pair")
        self._futures = [
            threads.submit(self._started, source, "reader"),
            threads.submit(self._started, target, "writer"),
        ]
        threads.shutdown(wait=False)

    def take(self, root: str, files: list[Any], part: str, paths: list[str]) -> tuple[Agent, Agent]:
        """Ready for chunks. Raises HostUnreachable, JobFailed; then both are closed."""
        try:
            reader, writer = (future.result() for future in self._futures)
            methods = writer.ask("open", {"part": part, "files": paths})["methods"]
            reader.ask("open", {"root": root, "files": files, "methods": methods})
        except BaseException:
            self.close()
            raise
        return reader, writer

    def close(self) -> None:
        """If nobody has taken them."""
        for future in self._futures:
            if future.cancel():
                continue
            with suppress(DflashctlError):
                agent = future.result()
                self._pinger.drop(agent)
                agent.close()

    def _started(self, end: End, role: Any) -> Agent:
        return self._pinger.add(end.start(role, self.ear if role == "writer" else None))
