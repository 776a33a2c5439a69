"""A server that behaves as it is told: argv is --spec FILE --events FILE, the spec's served_name says how."""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

spec = json.loads(Path(sys.argv[2]).read_text())
how = spec["served_name"]
seen = {"steps": 0}


def emit(**event):
    with Path(sys.argv[4]).open("a") as file:
        file.write(json.dumps({"at_s": time.time(), **event}) + "\n")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def reply(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/metrics":
            steps = seen["steps"]
            accepted = 0 if how == "rejects" else steps
            counters = (("drafts", steps), ("draft_tokens", 7 * steps), ("accepted_tokens", accepted))
            text = "".join(f"vllm:spec_decode_num_{name}_total {value}\n" for name, value in counters)
            self.reply(200, "" if how == "plain" else text)
        else:
            self.reply(503 if how == "sick" else 200, "")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if how == "dies-at-work":
            print("out of memory", flush=True)
            os._exit(9)
        if how == "mute":
            self.reply(500, "no")
            return
        seen["steps"] += 4
        message = {"message": {"content": "hello"}}
        self.reply(200, json.dumps({"choices": [message], "usage": {"completion_tokens": 8}}))


if how == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "dies":
    print("cannot go on")
    sys.exit(3)
if how == "refuses":
    emit(kind="failed", error="BadInput", message="the drafter is of another target", hint="another", exit_code=2)
    sys.exit(2)
if how == "silent":
    print("loading for ever", flush=True)
    signal.pause()
if how == "interrupts":
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
if how == "ends-early":
    emit(kind="stopped", reason="somebody else asked")
    sys.exit(0)
server = ThreadingHTTPServer(("127.0.0.1", spec["port"]), Handler)
if how == "leaves-a-worker":
    # Ends with this process's session; has no marker any more.
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env={}, start_new_session=False)
    print(f"worker {worker.pid}", flush=True)
if how == "keeps-its-port":
    # Out of reach: another session, no marker. It ends when the file is gone, so that no test leaves it behind.
    leash = Path(sys.argv[2]).with_name("leash")
    leash.touch()
    code = f"import os, time\nwhile os.path.exists({str(leash)!r}): time.sleep(0.01)"
    fds = (server.fileno(),)
    subprocess.Popen([sys.executable, "-c", code], env={}, start_new_session=True, pass_fds=fds)
emit(kind="started", job="serve", pid=1, device="cpu")
emit(kind="serving", address="127.0.0.1", port=server.server_address[1], model=how, num_draft_tokens=7)
server.serve_forever()
