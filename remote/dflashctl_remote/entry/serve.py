"""The job `serve`: a target and perhaps a drafter in, an OpenAI-compatible server until it is stopped."""

import socket
from typing import Any

from dflashctl_remote.entry.door import run_entry
from dflashctl_remote.serve.listen import claim_port
from dflashctl_remote.spec.events import EventLog
from dflashctl_remote.spec.serve import ServeSpec


def main() -> None:
    listeners: list[socket.socket] = []

    def claim(spec: ServeSpec) -> None:
        listeners.append(claim_port(spec.address, spec.port))

    def body(spec: ServeSpec, events: EventLog) -> dict[str, Any]:
        import torch

        from dflashctl_remote.serve.server import serve

        if spec.num_threads is not None:
            torch.set_num_threads(spec.num_threads)
        serve(spec, listeners[0], events.emit)

    run_entry("serve", ServeSpec, body, before=claim)


if __name__ == "__main__":
    main()
