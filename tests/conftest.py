"""What all tests, and the processes that they start, find whoever starts them."""

import os
import signal

# Cores may be shared: one thread of arithmetic a process.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Started in the background by a shell, a process ignores Ctrl-C, and so do all its children; a handler is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
