"""Several trainers of one run on one host: started together, told together, ended together.

torchrun does as much, and its environment variables are the ones used here, so that it may stand in this one's place
on several hosts. On one it is not used: it ends children 30 s after a signal, in the middle of a checkpoint, and its
own exit code says nothing of theirs.

Exit code: that of the first process that ended badly, else of process 0.
"""

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from types import FrameType
from typing import NoReturn

POLL_S = 0.2
_PR_SET_PDEATHSIG = 1
STOPPED = 130
"""Exit code of one that was asked to stop and did, in good order."""
LAST_WORDS_S = 5.0
"""After one process died the others may say so much longer what they met, then they are killed."""


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m dflashctl_remote.entry.ranks")
    parser.add_argument("--ranks", type=int, required=True)
    arguments, others = parser.parse_known_args()
    children: list[subprocess.Popen[bytes]] = []

    def tell(number: int, frame: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)
    die_with_us = partial(_end_with, os.getpid())
    port = os.environ.get("MASTER_PORT") or str(_free_port())
    for rank in range(arguments.ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(arguments.ranks),
            "LOCAL_WORLD_SIZE": str(arguments.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        argv = [sys.executable, "-m", "dflashctl_remote.entry.train", *others]
        children.append(subprocess.Popen(argv, env=environment, preexec_fn=die_with_us))  # noqa: PLW1509
    sys.exit(_wait(children))


def _end_with(parent: int) -> None:
    """In a child, before it is the trainer: SIGKILL for it when its parent ends, however that ends. Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [child.poll() for child in children]
        failed = next((code for code in codes if code not in (None, 0, STOPPED)), None)
        if failed is not None:
            _end(children)
            return failed if failed > 0 else 128 - failed
        if None not in codes:
            # Who asked for a stop, a file or a signal, is told by the first: the others may see the file gone.
            return codes[0] or 0
        time.sleep(POLL_S)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    """One has failed, and the others wait for it in vain."""
    deadline_s = time.monotonic() + LAST_WORDS_S
    for child in children:
        try:
            child.wait(timeout=max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
