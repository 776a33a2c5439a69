"""One thread of arithmetic a process, in tests and in the jobs that they start: cores may be shared."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
