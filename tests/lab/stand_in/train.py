"""Stands in for the training job on a lab host: no torch, the same files and words. `train.seed` says what it does:

0 trains until it is asked to stop, 1 ends by itself after 60 steps, 2 dies in its first moments, 3 ignores SIGTERM and
leaves children, 4 finishes after one step and a second. Prints a numbered line for each step.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

spec, events = Path(sys.argv[sys.argv.index("--spec") + 1]), Path(sys.argv[sys.argv.index("--events") + 1])
record = json.loads(spec.read_text())
behaviour, num_steps = record["train"]["seed"], record["train"]["num_steps"]
stopped = []
signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == 3 else lambda number, frame: stopped.append("TERM"))


def emit(kind, **fields):
    with events.open("a") as file:
        file.write(json.dumps({"kind": kind, "at_s": time.time(), **fields}, separators=(",", ":")) + "\n")


def asked():
    if (spec.parent / "stop.requested").exists():
        stopped.append(json.loads((spec.parent / "stop.requested").read_text())["who"])
    return stopped


if behaviour == 2:
    print("\n".join(f"line {number} of its last words" for number in range(40)), file=sys.stderr)
    sys.exit(9)
emit("started", job="train", pid=os.getpid(), device="cpu")
if behaviour == 3:
    for command in ("exec sleep 600", "trap '' TERM; sleep 600", "setsid sleep 600 & sleep 600"):
        subprocess.Popen(["/bin/sh", "-c", command])
saved = [int(path.name[5:]) for path in (spec.parent / "checkpoints").glob("step-*")]
step = max(saved, default=0)
last = {1: 60, 4: step + 1}.get(behaviour, num_steps)
while step < last and not (behaviour != 3 and asked()):
    step += 1
    print(f"step {step:06d} of {'x' * 50}", flush=True)
    emit(
        "step", step=step, num_steps=num_steps, batch=step, epoch=0.1, loss=10 / step, accuracy=0.25,
        accuracy_by_slot=[0.5], learning_rate=1e-3, grad_norm=1.0, num_anchors=1, num_scored_slots=1,
        context_tokens_per_s=100.0, block_ratio=1.0, peak_memory_bytes=1,
    )  # fmt: skip
    time.sleep(0.02)
folder = spec.parent / "checkpoints" / f"step-{step:08d}"
folder.mkdir(parents=True, exist_ok=True)
(folder / "manifest.json").write_text("{}")
emit("checkpoint", step=step, path=str(folder), size_bytes=1, seconds_s=0.1)
if stopped:
    emit("stopped", reason=f"asked to stop by {stopped[0]}", checkpoint=str(folder))
else:
    emit("finished")
