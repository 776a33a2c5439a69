"""From tokens to the text that may be shown: whole characters only, and nothing of a stop string.

Tokens come one by one, so that an answer ends at the same token however many a verify step gave.
"""

from collections.abc import Callable, Sequence

_CUT_CHARACTER = "\ufffd"


class AnswerText:
    """Text of an answer while it grows."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        """`decode` turns any number of tokens to text, with U+FFFD for a character that is cut."""
        assert all(stop), "an empty stop string is everywhere"
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._window_start = 0
        """What is decoded begins here: a token's text may depend on the one before it, and on none further back."""
        self._num_read = 0
        """Tokens whose text is in `_text` whole."""
        self._num_known = 0
        """Characters of the window that are in `_text`."""
        self._text = ""
        self._num_taken = 0
        self._is_stopped = False

    def push(self, token: int, *, may_stop: bool = True) -> bool:
        """Add a token; True if a stop string is now complete: the text then ends before it, and no token may follow."""
        assert not self._is_stopped
        num_old = len(self._text)
        self._append(token)
        if may_stop:
            found = [at for at in (self._find(stop, num_old) for stop in self._stop) if at >= 0]
            if found:
                self._text = self._text[: min(found)]
                self._is_stopped = True
        return self._is_stopped

    def take(self, *, is_last: bool = False) -> str:
        """Text not taken before; but for the last time without what may yet become a stop string."""
        end = len(self._text)
        if not is_last and not self._is_stopped:
            end -= self._num_held_back()
        taken = self._text[self._num_taken : end]
        self._num_taken = end
        return taken

    def _append(self, token: int) -> None:
        self._tokens.append(token)
        window = self._decode(self._tokens[self._window_start :])
        # Bytes that begin a character wait for the rest of it; at the end of the answer they are dropped.
        whole = window.rstrip(_CUT_CHARACTER)
        if len(whole) > self._num_known:
            self._text += whole[self._num_known :]
            self._num_known = len(whole)
        if whole == window:
            self._window_start, self._num_read = self._num_read, len(self._tokens)
            self._num_known = len(self._decode(self._tokens[self._window_start :]))

    def _find(self, stop: str, num_old: int) -> int:
        return self._text.find(stop, max(self._num_taken, num_old - len(stop) + 1))

    def _num_held_back(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(self._text) - self._num_taken), 0, -1):
            if any(stop.startswith(self._text[-size:]) for stop in self._stop):
                return size
        return 0
