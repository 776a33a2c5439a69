"""A small OpenAI-compatible server for the benchmark's tests: in a thread of a test, or as a process (`-m entry --spec
FILE --events FILE`, as a server is started).

Its answer to a prompt is the prompt's code points, repeated. With K > 0 it "accepts" two drafts every step.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ACCEPTED = 2


class StandIn(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, num_draft_tokens=0, *, port=0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.num_draft_tokens = num_draft_tokens
        self.lock = threading.Lock()
        self.num_drafts = 0
        self.num_accepted = None
        """Counted as accepted a step; None: what it really gave."""
        self.bodies = []
        """Of all requests, in the order in which they came."""
        self.fails_at = lambda number: None
        """Of the request's number, from 0: a status, "cut", "die", or None."""
        self.before = lambda number: None
        """Called before the request is answered."""
        self.has_token_ids = True
        self.has_continuous_usage = True
        self.has_usage = True
        self.has_metrics = True
        self.refuses = ()
        """Names of fields that are a 400."""
        self.delta_name = "content"
        self.first_token = 0
        """Added to the first token: outputs differ from those of another server."""
        self.about = {"engine": "stand-in", "version": "1", "device": "cpu", "dtype": "float32"}

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True).start()
        return self

    def stop(self):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that hangs up is no error."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        if self.path == "/health":
            self._reply(200, "{}")
        elif self.path == "/version":
            self._reply(200, json.dumps(self.server.about))
        elif self.path == "/metrics" and self.server.has_metrics:
            self._reply(200, _metrics(self.server))
        else:
            self._reply(404, "no")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
        self.server.before(number)
        what = self.server.fails_at(number)
        refused = [name for name in self.server.refuses if name in body or name in body["stream_options"]]
        if refused:
            self._reply(400, json.dumps({"error": {"message": f"{refused[0]}: no such field"}}))
        elif isinstance(what, int):
            self._reply(what, json.dumps({"error": {"message": "it broke"}}))
        elif body.get("stream", False):
            self._stream(body, what)
        else:
            tokens = _tokens(self.server, body)
            message = {"message": {"content": "".join(map(chr, tokens))}, "finish_reason": "length"}
            self._reply(200, json.dumps({"choices": [message], "usage": {"completion_tokens": len(tokens)}}))

    def _stream(self, body, what):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        tokens = _tokens(self.server, body)
        num_sent = 0
        for number, part in enumerate(_parts(self.server, tokens)):
            if number == 2 and what in ("cut", "die"):
                if what == "die":
                    self.server.stop()
                return
            num_sent += len(part)
            is_last = num_sent == len(tokens)
            choice = {"delta": {self.server.delta_name: "".join(map(chr, part))}}
            choice["finish_reason"] = "length" if is_last else None
            if body.get("return_token_ids") and self.server.has_token_ids:
                choice["token_ids"] = part
            event = {"choices": [choice]}
            if body["stream_options"].get("continuous_usage_stats") and self.server.has_continuous_usage:
                event["usage"] = {"prompt_tokens": 7, "completion_tokens": num_sent}
            self._event(event)
        if self.server.has_usage:
            self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(tokens)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _reply(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def _tokens(server, body):
    prompt = body["messages"][-1]["content"]
    tokens = [ord(letter) for letter in (prompt * body["max_tokens"])[: body["max_tokens"]]]
    return [tokens[0] + server.first_token, *tokens[1:]]


def _parts(server, tokens):
    """A token of the prompt's pass, then what each step gives; counts the steps."""
    yield tokens[:1]
    size = ACCEPTED + 1 if server.num_draft_tokens else 1
    for start in range(1, len(tokens), size):
        if server.num_draft_tokens:
            with server.lock:
                server.num_drafts += 1
        yield tokens[start : start + size]


def _metrics(server):
    if not server.num_draft_tokens:
        return "vllm:generation_tokens_total 1\n"
    steps = server.num_drafts
    accepted = ACCEPTED if server.num_accepted is None else server.num_accepted
    values = {"drafts": steps, "draft_tokens": steps * server.num_draft_tokens, "accepted_tokens": steps * accepted}
    lines = [f"vllm:spec_decode_num_{name}_total {value}" for name, value in values.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}} {steps if at < accepted else 0}'
        for at in range(server.num_draft_tokens)
    ]
    return "\n".join(lines) + "\n"


def main(arguments):
    spec = json.loads(Path(arguments[arguments.index("--spec") + 1]).read_text())
    events = Path(arguments[arguments.index("--events") + 1])
    server = StandIn(port=spec["port"])
    serving = {"kind": "serving", "address": "127.0.0.1", "port": server.server_address[1]}
    about = {"model": spec["served_name"], "num_draft_tokens": 0, "at_s": time.time()}
    with events.open("a") as file:
        file.write(json.dumps(serving | about) + "\n")
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv)
