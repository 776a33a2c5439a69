"""One try's questions to the source. Whole relays: tests/lab."""

import contextlib

from dflashctl.operations.relay.agent import End
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.transfer import _Try
from dflashctl.operations.relay.tree import SourceFile, Tree


class FakeChief:
    def __init__(self):
        self.timeouts = []

    def ask(self, op, asked, *, timeout_s):
        self.timeouts.append(timeout_s)
        return ["0" * 64] * len(asked["paths"])


def test_a_source_has_the_time_that_its_disk_needs_to_read_a_large_file_again():
    end = End("a", "/w", "python3", "/b", lambda script, sentinel: None)
    one = _Try(end, end, Progress(), print, print, contextlib.ExitStack(), None, uses_known=True)
    files = (SourceFile("small", 10, 1, 1, 0o644), SourceFile("large", 100 << 30, 1, 1, 0o644))
    chief, expected = FakeChief(), {}
    one._ask_sha256s(chief, Tree("/t", False, files), expected)
    assert set(expected) == {"small", "large"}
    # At 100 MB/s it takes 1074 s.
    assert max(chief.timeouts) > 1074
