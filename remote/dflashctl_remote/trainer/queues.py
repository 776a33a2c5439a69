"""What stands between two stages: bounded, so that a slow stage holds up those before it, and closed at the end."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The line is being taken down: whoever waits stops."""


class BoundedQueue(Generic[T]):
    """First in, first out, for any number of threads at both ends."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, item: T) -> None:
        """Wait for room. Raises Closed."""
        with self._changed:
            _wait(self._changed, lambda: self._is_closed or len(self._items) < self.capacity)
            if self._is_closed:
                raise Closed
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """Wait for an item. Raises Closed."""
        with self._changed:
            _wait(self._changed, lambda: self._is_closed or bool(self._items))
            if self._is_closed:
                raise Closed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """What is in it is dropped."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()

    @property
    def depth(self) -> int:
        return len(self._items)


class ReorderBuffer(Generic[T]):
    """Takes items in the order in which they are ready, gives them out by rising place.

    An item whose place is `window` or more beyond the next one waits outside, so that at most `window` are inside.
    The one that is next always finds room: whoever has it is never held up by the others.
    """

    def __init__(self, window: int) -> None:
        assert window > 0
        self.capacity = window
        self._items: dict[int, T] = {}
        self._next = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, place: int, item: T) -> None:
        """`place` counts from 0, each once. Raises Closed."""
        with self._changed:
            _wait(self._changed, lambda: self._is_closed or place < self._next + self.capacity)
            if self._is_closed:
                raise Closed
            assert place >= self._next and place not in self._items, f"place {place} came twice"
            self._items[place] = item
            self._changed.notify_all()

    def get(self) -> T:
        """Raises Closed."""
        with self._changed:
            _wait(self._changed, lambda: self._is_closed or self._next in self._items)
            if self._is_closed:
                raise Closed
            item = self._items.pop(self._next)
            self._next += 1
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()

    @property
    def depth(self) -> int:
        """Items inside, whether or not the next one is among them."""
        return len(self._items)


def _wait(changed: threading.Condition, is_true: Callable[[], bool]) -> None:
    # In slices: a wait without a limit in the main thread would hold back Ctrl-C.
    while not is_true():
        changed.wait(timeout=0.5)
