"""S3 servers for tests, on loopback: a strict one (seaweedfs) and a sloppy one (rclone), from the dev extra."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dflashctl.config.hosts import S3Spec
from dflashctl.errors import DflashctlError
from dflashctl.transport.s3 import S3Client, s3_client
from dflashctl.transport.s3_errors import told

KEY, SECRET = "lab-access-key", "lab-secret-that-nobody-reads"
ENV = {"LAB_S3_KEY": KEY, "LAB_S3_SECRET": SECRET}
BUCKET = "relay-lab"
READY_S = 60


@dataclass(frozen=True)
class Store:
    kind: str
    """strict or sloppy."""
    endpoint: str

    def spec(self, endpoint: str = "", **changes) -> S3Spec:
        fields = {
            "endpoint_url": endpoint or self.endpoint,
            "bucket": BUCKET,
            "access_key_variable": "LAB_S3_KEY",
            "secret_key_variable": "LAB_S3_SECRET",
        }
        return S3Spec(**{**fields, **changes})

    def client(self, endpoint: str = "", *, max_attempts: int = 2, env=None, **changes) -> S3Client:
        return s3_client(self.spec(endpoint, **changes), ENV if env is None else env, max_attempts=max_attempts)


def binary(name: str) -> str | None:
    """Beside this Python, or on PATH; None: not installed."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


class Server:
    """A process that is there until `stop`, started anew if another took one of its ports in the meantime."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._process: subprocess.Popen | None = None

    def start(self) -> Store:
        for _ in range(3):
            argv, endpoint = (_weed if self._kind == "strict" else _rclone)(self._folder)
            with (self._folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_env(self._folder)
                )
            store = Store(self._kind, endpoint)
            if self._is_ready(store):
                return store
            self.stop()
        raise AssertionError(f"{self._kind} S3 did not start:\n{(self._folder / 'log').read_text()[-3000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self, store: Store) -> bool:
        client = store.client(max_attempts=1)
        end = time.monotonic() + READY_S
        try:
            while self._process.poll() is None and time.monotonic() < end:
                try:
                    with told("start", store.endpoint):
                        client.create_bucket(Bucket=BUCKET)
                        client.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
                    return True
                except DflashctlError:
                    time.sleep(0.05)
            return False
        finally:
            client.close()


def _weed(folder: Path) -> tuple[list[str], str]:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    identity = {
        "name": "lab",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    roles = ("master", "volume", "filer", "s3")
    ports = _free_ports(2 * len(roles))
    given = [f"-{role}.port={port}" for role, port in zip(roles, ports, strict=False)]
    given += [f"-{role}.port.grpc={port}" for role, port in zip(roles, ports[len(roles) :], strict=False)]
    argv = [binary("weed"), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
    argv += ["-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", *given]
    argv += ["-volume.max=20", "-master.volumeSizeLimitMB=256"]
    return argv, f"http://127.0.0.1:{ports[3]}"


def _rclone(folder: Path) -> tuple[list[str], str]:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    (port,) = _free_ports(1)
    argv = [binary("rclone"), "serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{port}"]
    return [*argv, "--auth-key", f"{KEY},{SECRET}", str(data)], f"http://127.0.0.1:{port}"


def _env(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "GOMAXPROCS": "2"}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
