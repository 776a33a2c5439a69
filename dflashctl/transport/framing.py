"""Telling a script's answer from everything else that a login shell may print, and from an answer that was cut off.

A script is sent as one compound command, so that half of it, after a cut, runs not at all. Its output stands between
two marks that hold a random number; the second one holds the exit code too. Without it the outcome is not known.
"""

import secrets
from dataclasses import dataclass, field

from dflashctl.transport.shell import Script

NOISE_BYTES = 1024
"""Of what a login shell printed, so much is kept to show."""
ERR_BYTES = 16 * 1024
"""Of a script's stderr, so much of the end is kept."""
LAST = b")\nexit\n"
"""The end of what is sent. Whatever comes before it is no complete command, and runs nothing."""


@dataclass(frozen=True)
class Frame:
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def wrap(self, script: Script) -> bytes:
        """What goes to the standard input of `/bin/sh -s`."""
        begin, end = f"\\036{self.nonce} begin\\n", f"\\036{self.nonce} end "
        return (
            f"(printf '{begin}'; printf '{begin}' >&2\n"
            # Its own subshell, so that an `exit` of it ends in the lines below; and nothing of it reads this input.
            f"(\n{script.source()}\n) </dev/null\n"
            f"set -- \"$?\"; printf '{end}' >&2; printf '{end}%s\\n' \"$1\"\n"
        ).encode() + LAST

    # Marks start with a byte that no line ends with, so that no end of a line is held back as the start of a mark.

    def begin(self) -> bytes:
        return f"\036{self.nonce} begin\n".encode()

    def end(self) -> bytes:
        """What stands before the exit code, and on stderr at the end."""
        return f"\036{self.nonce} end ".encode()


class Reader:
    """Takes output as it comes; says what of it is the script's, and when it has ended."""

    def __init__(self, frame: Frame) -> None:
        self._begin, self._end = frame.begin(), frame.end()
        self._held = b""
        self._has_begun = False
        self.code: int | None = None
        """The script's exit code, once its whole answer is here."""
        self.num_noise_bytes = 0
        """So much was printed before the answer, by a login shell that is not silent. Certain once it has begun."""
        self.noise = b""
        """The first of it."""

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    @property
    def before(self) -> bytes:
        """As `noise`, also while it is not certain yet."""
        return self.noise if self._has_begun else (self.noise + self._held)[:NOISE_BYTES]

    def add(self, new: bytes) -> bytes:
        """The part of the answer that is certain by now: what might yet turn out to be the last line is held back."""
        if self.code is not None:
            return b""
        self._held += new
        if not self._has_begun:
            before, found, rest = self._held.partition(self._begin)
            if not found:
                self._skip(self._held[: -len(self._begin)])
                self._held = self._held[-len(self._begin) :]
                return b""
            self._skip(before)
            self._has_begun, self._held = True, rest
        body, found, tail = self._held.partition(self._end)
        if found:
            number, newline, _ = tail.partition(b"\n")
            if newline:
                self.code, tail = int(number), b""
            self._held = self._end + tail if self.code is None else b""
            return body
        keep = next((n for n in range(len(self._end) - 1, 0, -1) if self._held.endswith(self._end[:n])), 0)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def _skip(self, noise: bytes) -> None:
        self.num_noise_bytes += len(noise)
        self.noise += noise[: NOISE_BYTES - len(self.noise)]


class ErrTail:
    """Takes stderr as it comes; keeps the end of what the script wrote."""

    def __init__(self, frame: Frame) -> None:
        self._begin, self._end = frame.begin(), frame.end()
        self._held = b""
        self._has_begun = False
        self.has_ended = False

    def add(self, new: bytes) -> None:
        if self.has_ended:
            return
        self._held += new
        if not self._has_begun:
            _, found, rest = self._held.partition(self._begin)
            self._has_begun = bool(found)
            self._held = rest if found else self._held[-len(self._begin) :]
        if self._has_begun:
            self._held, found, _ = self._held.partition(self._end)
            self.has_ended = bool(found)
            self._held = self._held[-ERR_BYTES - (0 if found else len(self._end)) :]

    def text(self) -> str:
        told = self._held if self._has_begun else b""
        return told[-ERR_BYTES:].decode("utf-8", "replace")
