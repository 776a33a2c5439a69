"""Stands in for the training job: no torch, the same words. `train.seed` of its spec says how it is to behave:

0 finishes, 1 fails, 2 waits to be stopped by Ctrl-C or by stop.requested, 3 dies without a word.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--spec", type=Path)
parser.add_argument("--events", type=Path)
arguments = parser.parse_args()
record = json.loads(arguments.spec.read_text())


def emit(kind: str, **fields: object) -> None:
    with arguments.events.open("a") as file:
        file.write(json.dumps({"kind": kind, "at_s": time.time(), **fields}) + "\n")


signal.signal(signal.SIGINT, signal.default_int_handler)
emit("started", job="train", pid=os.getpid(), device="cpu")
behaviour = record["train"]["seed"]
try:
    if behaviour == 1:
        emit("failed", error="BadInput", message="the taps are wrong", hint="mend them", exit_code=2)
        sys.exit(2)
    if behaviour == 3:
        print("something on stderr", file=sys.stderr)
        sys.exit(9)
    while behaviour == 2 and not (arguments.spec.parent / "stop.requested").exists():
        time.sleep(0.01)
    if behaviour == 2:
        emit("stopped", reason="asked to", checkpoint=None)
        sys.exit(0)
    emit("finished")
except KeyboardInterrupt:
    emit("stopped", reason="interrupted (Ctrl-C)")
    sys.exit(130)
