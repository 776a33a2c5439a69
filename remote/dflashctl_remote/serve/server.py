"""The reference engine as a job: HTTP from the first second (503 while loading), then answers until it is stopped.

It exists for correctness, small machines and tests: exact greedy and sampled speculative decoding, one request's step
at a time. To serve people, use SGLang or vLLM. Three threads: this one loads and waits for signals, one runs the
event loop, one decodes.
"""

import ipaddress
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import uvicorn

from dflashctl_remote.entry.door import StoppedEarly, Terminated
from dflashctl_remote.serve.api import Backend, Service, make_app
from dflashctl_remote.serve.loading import ABOUT, load_model
from dflashctl_remote.serve.metrics import Counters
from dflashctl_remote.serve.scheduler import Scheduler
from dflashctl_remote.spec.events import Event, Notice, Serving
from dflashctl_remote.spec.serve import ServeSpec

_GRACE_S = 5
"""For answers that have failed to get out, before connections are cut."""


def serve(spec: ServeSpec, listener: socket.socket, emit: Callable[[Event], None]) -> NoReturn:
    """Answer requests on `listener` until SIGINT or SIGTERM, then raise StoppedEarly with exit code 0.

    Raises what load_model raises, and RuntimeError if a thread ended by itself.
    """
    service, over = Service(), threading.Event()
    http = HttpServer(service, listener, over)
    http.start()
    try:
        emit(Notice(message=ABOUT))
        _notice_open_door(spec, emit)
        service.backend = _backend(spec, over, emit)
        service.backend.scheduler.start()
        address, port = listener.getsockname()[:2]
        emit(
            Serving(
                address=address,
                port=port,
                model=spec.served_name,
                num_draft_tokens=service.backend.model.num_draft_tokens,
            )
        )
        over.wait()
        raise RuntimeError("a thread of the server ended by itself; the log says why")
    except KeyboardInterrupt as interrupt:
        by = "SIGTERM" if isinstance(interrupt, Terminated) else "Ctrl-C"
        raise StoppedEarly(f"stopped by {by}", exit_code=0) from None
    finally:
        service.is_closing = True
        if service.backend is not None:
            service.backend.scheduler.shut_down()
        http.shut_down()


def _backend(spec: ServeSpec, over: threading.Event, emit: Callable[[Event], None]) -> Backend:
    def report(request_id: str, error: Exception) -> None:
        traceback.print_exception(error, file=sys.stderr)
        # A full disk must not end the thread that decodes.
        with suppress(OSError):
            emit(Notice(message=f"request {request_id} failed: {type(error).__name__}: {error}; the log has more"))

    model = load_model(spec, emit)
    counters = Counters(model.name, model.num_draft_tokens)
    scheduler = Scheduler(
        counters, max_running=spec.max_running, max_waiting=spec.max_waiting, report=report, on_end=over.set
    )
    return Backend(model, scheduler, counters)


class HttpServer:
    """uvicorn in a thread of its own: signals and loading stay with the main one. `over` is set when it ends."""

    def __init__(self, service: Service, listener: socket.socket, over: threading.Event) -> None:
        self._listener = listener
        self._over = over
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(service),
                lifespan="off",
                log_config=None,
                access_log=False,
                http="h11",
                ws="none",
                loop="asyncio",
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shut_down(self) -> None:
        """The port is closed when this returns."""
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()
            self._over.set()


def _notice_open_door(spec: ServeSpec, emit: Callable[[Event], None]) -> None:
    with suppress(ValueError):
        if ipaddress.ip_address(spec.address).is_loopback:
            return
    emit(Notice(message=f"{spec.address} is not loopback: whoever reaches it may use this server, nobody is asked who"))
