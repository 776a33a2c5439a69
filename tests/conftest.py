"""What all tests, and the processes that they start, find whoever starts them."""

import os
import signal
from pathlib import Path

# Cores may be shared: one thread of arithmetic a process.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without a GPU Triton's kernels run in its interpreter, if it was asked for before anybody imported Triton.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Started in the background by a shell, a process and its children ignore Ctrl-C; a handler is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
