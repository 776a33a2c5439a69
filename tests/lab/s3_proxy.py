"""A proxy before an S3 server, in this process: writes down each request, and spoils answers as it is told."""

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    """As in the request line."""
    headers: dict[str, str]
    size_bytes: int

    @property
    def part(self) -> int | None:
        """The number of the part that is sent, from 1 on."""
        if self.method != "PUT":
            return None
        number = parse_qs(urlsplit(self.target).query).get("partNumber")
        return int(number[0]) if number else None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    cut_at: int | None = None
    """The connection is closed after so many bytes of the body."""

    def changed(self, **changes) -> "Answer":
        return replace(self, **changes)


def error(status: int, code: str, message: str = "") -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Answer(status, (("Content-Type", "application/xml"),), body)


@dataclass
class Proxy:
    """`before` may answer in the server's place; `after` may change what the server answered."""

    upstream: str
    before: Callable[[Request], Answer | None] = lambda request: None
    after: Callable[[Request, Answer], Answer] = lambda request, answer: answer
    requests: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> "Proxy":
        proxy = self

        class Handler(_Handler):
            def answer(self, request: Request, body: bytes) -> Answer:
                return proxy._answer(request, body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def parts(self) -> list[int]:
        """Numbers of the parts that were sent, in order, each as often as it was."""
        return [request.part for request in self.requests if request.part is not None]

    def _answer(self, request: Request, body: bytes) -> Answer:
        with self._lock:
            self.requests.append(request)
        answer = self.before(request)
        if answer is not None:
            return answer
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=60)
        try:
            kept = {k: v for k, v in request.headers.items() if k.lower() not in ("expect", "connection")}
            connection.request(request.method, request.target, body=body or None, headers=kept)
            found = connection.getresponse()
            return self.after(request, Answer(found.status, tuple(found.getheaders()), found.read()))
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def answer(self, request: Request, body: bytes) -> Answer:
        raise NotImplementedError

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            # Whoever asked is gone, killed perhaps.
            self.close_connection = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, self.path, dict(self.headers.items()), len(body))
        if len(body) < int(self.headers.get("Content-Length", 0)):
            self.close_connection = True
            return
        answer = self.answer(request, body)
        has_length = False
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in ("connection", "transfer-encoding"):
                has_length = has_length or name.lower() == "content-length"
                self.send_header(name, value)
        if not has_length and answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: answer.cut_at] if self.command != "HEAD" else b"")
        self.wfile.flush()
        if answer.cut_at is not None:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def log_message(self, format: str, *arguments) -> None:
        pass
