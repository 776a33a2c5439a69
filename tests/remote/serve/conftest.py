"""Servers on loopback for the embedded target: real sockets, a thread that decodes, a small untrained drafter."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflashctl_remote.drafter.checkpoint import save_drafter
from dflashctl_remote.drafter.model import Drafter
from dflashctl_remote.serve.api import Backend, Service
from dflashctl_remote.serve.listen import claim_port
from dflashctl_remote.serve.loading import ServedModel, load_model
from dflashctl_remote.serve.metrics import Counters
from dflashctl_remote.serve.scheduler import Scheduler
from dflashctl_remote.serve.server import HttpServer
from dflashctl_remote.spec.drafter import DrafterSpec, resolve_drafter
from dflashctl_remote.spec.manifest import write_manifest
from dflashctl_remote.spec.serve import ServeSpec
from dflashctl_remote.target.load import read_shape

DEMO_TARGET = Path(__file__).parents[3] / "dflashctl" / "assets" / "demo_target"
LONG_WAIT_S = 60.0
"""Passed only where something is broken."""


@dataclass(frozen=True)
class Running:
    """A server, and what a test asks it."""

    client: httpx.Client
    service: Service
    port: int

    def chat(self, content: str = "Write a function that adds.", **fields: Any) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=self.chat_body(content, **fields))

    def complete(self, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": "demo", "temperature": 0, **fields})

    def chat_body(self, content: str = "Write a function that adds.", **fields: Any) -> dict[str, Any]:
        return {
            "model": "demo",
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": 16,
            "return_token_ids": True,
            **fields,
        }

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics; fails the test if it is not there exactly once."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        lines = self.client.get("/metrics").text.splitlines()
        (found,) = [
            line.rpartition(" ")[2]
            for line in lines
            if line.startswith(name + "{") and wanted <= set(line.partition("{")[2].partition("}")[0].split(","))
        ]
        return float(found)

    def wait_for_metric(self, name: str, value: float) -> None:
        """Ask until it is so; every question is a round trip, so that this does not spin."""
        for _ in range(3000):
            if self.metric(name) == value:
                return
        raise AssertionError(f"{name} never became {value}")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of one layer with blocks of four, untrained."""
    folder = tmp_path_factory.mktemp("drafter")
    spec = DrafterSpec(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=32, block_size=4, tap_layers=(1, 2))
    drafter = Drafter(resolve_drafter(spec, read_shape(DEMO_TARGET)))
    drafter.init_weights(seed=0)
    save_drafter(drafter, folder)
    write_manifest(folder, "checkpoint", bundle_sha="none", about={"step": 7})
    return folder


@pytest.fixture(scope="session")
def make_model(checkpoint: Path) -> Callable[..., ServedModel]:
    def make(**changes: Any) -> ServedModel:
        fields = {"target": str(DEMO_TARGET), "drafter": str(checkpoint), "served_name": "demo", "port": 0}
        return load_model(ServeSpec.model_validate({**fields, "device": "cpu", **changes}), lambda event: None)

    return make


@pytest.fixture(scope="session")
def model(make_model: Callable[..., ServedModel]) -> ServedModel:
    return make_model()


@contextlib.contextmanager
def running(model: ServedModel, *, max_running: int = 4, max_waiting: int = 4) -> Iterator[Running]:
    over = threading.Event()
    counters = Counters(model.name, model.num_draft_tokens)
    scheduler = Scheduler(
        counters,
        max_running=max_running,
        max_waiting=max_waiting,
        report=lambda request_id, error: None,
        on_end=over.set,
    )
    service = Service()
    service.backend = Backend(model, scheduler, counters)
    listener = claim_port("127.0.0.1", 0)
    port = listener.getsockname()[1]
    http = HttpServer(service, listener, over)
    http.start()
    scheduler.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LONG_WAIT_S) as client:
            yield Running(client, service, port)
    finally:
        service.is_closing = True
        scheduler.shut_down()
        http.shut_down()


@pytest.fixture(scope="session")
def start() -> Callable[..., contextlib.AbstractContextManager[Running]]:
    """A server of a test's own: start(model, max_running=..., max_waiting=...)."""
    return running


@pytest.fixture(scope="session")
def server(model: ServedModel) -> Iterator[Running]:
    with running(model) as started:
        yield started


@pytest.fixture(scope="session")
def plain_server(make_model: Callable[..., ServedModel]) -> Iterator[Running]:
    """Without drafter."""
    with running(make_model(drafter=None)) as started:
        yield started
