import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dflashctl.transport import http


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.answer(200 if self.path == "/good" else 503, b"path " + self.path.encode())

    def do_POST(self):
        self.answer(200, self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def url():
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody():
    """A port that is bound, so that nobody else gets it, and where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_an_answer_has_its_status_and_text(url):
    assert http.get(url + "/good", timeout_s=10.0) == http.Reply(200, "path /good")
    refusal = http.get(url + "/bad", timeout_s=10.0)
    assert (refusal.status, refusal.is_ok) == (503, False)


def test_a_body_is_sent_and_read_as_json(url):
    assert http.post(url, {"model": "a"}, timeout_s=10.0).json() == {"model": "a"}
    assert http.get(url + "/good", timeout_s=10.0).json() is None


def test_nobody_is_a_reply_that_says_why(nobody):
    reply = http.get(f"http://127.0.0.1:{nobody}/", timeout_s=10.0)
    assert reply.status == 0
    assert "ConnectError" in reply.text


def test_proxies_of_the_environment_are_not_asked(url, nobody, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nobody}")
    assert http.get(url + "/good", timeout_s=10.0).is_ok


def test_a_port_is_free_until_somebody_listens(url, nobody):
    assert not http.is_port_free("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    assert http.is_port_free("127.0.0.1", free)
