import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dflashctl.artifacts import Workdir
from dflashctl.facts.servers import state_of
from dflashctl.records import Proof, ServerRecord
from dflashctl.transport import process

PROOF = Proof(at_s=1010.0, num_tokens=48, text="hello", tau=3.0, num_verify_steps=16)


class Handler(BaseHTTPRequestHandler):
    health = 200
    metrics = ""

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        status, text = (self.server.health, "") if self.path == "/health" else (200, self.server.metrics)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def answers():
    """A server whose health and counters the test sets: (verify steps, accepted drafts)."""
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.health, server.metrics = 200, ""
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def make(health=200, counts=None):
            server.health = health
            names = ("num_drafts", "num_accepted_tokens")
            pairs = () if counts is None else zip(names, counts, strict=True)
            server.metrics = "".join(f"vllm:spec_decode_{name}_total {value}\n" for name, value in pairs)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield make
        server.shutdown()
        thread.join()


@pytest.fixture
def server(tmp_path):
    """A server's folder with a record of this very process, and events if any are given."""

    def make(*events, token=None, **fields):
        here = process.token_of(os.getpid(), "m")
        record = ServerRecord(
            **{
                "name": "a",
                "host": "local",
                "engine": "reference",
                "base_url": "http://127.0.0.1:1",
                "model": "a",
                "target": "/t",
                "drafter": "/d",
                "drafter_label": "r@3",
                "num_draft_tokens": 7,
                "argv": ("python",),
                "token": here.model_copy(update=token or {}),
                "bundle_sha": "0" * 64,
                "started_at_s": 1000.0,
                "proof": PROOF,
                **fields,
            }
        )
        ref = Workdir(tmp_path).server("a")
        ref.folder.mkdir(parents=True)
        ref.record_path.write_text(record.model_dump_json())
        ref.events_path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return ref

    return make


GONE = {"start_ticks": 2**40}
FAILED = {"kind": "failed", "at_s": 1002.0, "error": "E", "message": "no such target", "exit_code": 2}
STOPPED = {"kind": "stopped", "at_s": 1100.0, "reason": "stopped by SIGTERM"}


@pytest.mark.parametrize(
    ("events", "fields", "state", "detail"),
    [
        ((), {"token": GONE}, "ended without a word", "its log: "),
        ((), {"token": GONE, "stopped_at_s": 1100.0}, "stopped", ""),
        ((STOPPED,), {"token": GONE}, "stopped", "stopped by SIGTERM"),
        ((FAILED,), {"token": GONE, "proof": None, "stopped_at_s": 1003.0}, "failed", "no such target"),
        ((), {"token": GONE, "proof": None, "stopped_at_s": 1003.0}, "failed", "never proven ready"),
        ((), {"token": GONE, "proof": None, "stopped_at_s": 1003.0, "failure": "no draft"}, "failed", "no draft"),
        (({**STOPPED, "at_s": 900.0},), {"token": GONE}, "ended without a word", ""),
        ((), {"token": {"boot_id": "before"}}, "lost to reboot", ""),
        ((), {"token": {"pid_namespace": 1}}, "elsewhere", "another PID namespace"),
        ((), {"engine": "gone-since"}, "unreadable", "engine gone-since is not known"),
    ],
)
def test_one_that_is_not_there_says_how_it_ended(server, transport, events, fields, state, detail):
    seen = state_of(server(*events, **fields), transport)
    assert seen.state == state
    assert detail in seen.detail
    assert seen.live is None


@pytest.mark.parametrize(
    ("health", "counts", "fields", "state"),
    [
        (200, (10, 20), {}, "ready"),
        (503, (10, 20), {}, "unhealthy"),
        (503, None, {"proof": None}, "starting"),
        (200, None, {"proof": None}, "not proven"),
        (200, None, {}, "unhealthy"),
        (200, None, {"drafter": None}, "ready"),
        (200, (50, 0), {}, "unhealthy"),
        (200, (49, 0), {}, "ready"),
    ],
)
def test_one_that_lives_is_judged_by_its_answers(server, transport, answers, health, counts, fields, state):
    seen = state_of(server(base_url=answers(health, counts), **fields), transport)
    assert seen.state == state


def test_tau_since_the_start_comes_from_its_counters_now(server, transport, answers):
    seen = state_of(server(base_url=answers(counts=(10, 25))), transport)
    assert (seen.live_tau, seen.live.num_drafts) == (3.5, 10)


def test_one_that_does_not_answer_is_unhealthy(server, transport):
    seen = state_of(server(), transport)
    assert seen.state == "unhealthy"
    assert "no answer" in seen.detail


def test_a_port_that_only_the_server_itself_told_is_used(server, transport, answers):
    port = int(answers().rpartition(":")[2])
    said = {"kind": "serving", "at_s": 1001.0, "address": "127.0.0.1", "port": port, "model": "a"}
    seen = state_of(server({**said, "num_draft_tokens": 7}, base_url="http://127.0.0.1:0", proof=None), transport)
    assert (seen.state, seen.record.base_url) == ("not proven", f"http://127.0.0.1:{port}")
