"""Short questions to a server over HTTP: health, counters, one completion. Streams are in openai.py."""

import errno
import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int
    """0: nobody answered."""
    text: str
    """The body; why there is none if nobody answered."""

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    def json(self) -> Any:
        """None if the body is no JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def get(url: str, *, timeout_s: float) -> Reply:
    return _ask("GET", url, None, timeout_s)


def post(url: str, body: dict[str, Any], *, timeout_s: float) -> Reply:
    return _ask("POST", url, body, timeout_s)


def is_port_free(address: str, port: int) -> bool:
    """Whether nobody listens there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            # A port that only root may use is free, and the server says itself that it cannot have it.
            return error.errno != errno.EADDRINUSE
        return True


def _ask(method: str, url: str, body: dict[str, Any] | None, timeout_s: float) -> Reply:
    # A fifth of a second, which commands that ask no server need not wait for.
    import httpx

    try:
        # Proxies of the environment are for the world, not for a server on this machine.
        with httpx.Client(timeout=timeout_s, trust_env=False) as client:
            answer = client.request(method, url, json=body)
    except httpx.HTTPError as error:
        return Reply(0, f"{type(error).__name__}: {error}")
    return Reply(answer.status_code, answer.text)
