"""What stands between two stages: bounded, so that a slow stage holds up those before it, and closed at the end."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The line is being taken down: whoever waits stops."""


class _Place:
    """Something that threads wait at, until it changes or is closed."""

    def __init__(self, capacity: int, drop: Callable[[], None]) -> None:
        """`drop` empties it, when it is closed."""
        assert capacity > 0
        self.capacity = capacity
        self._drop = drop
        self._changed = threading.Condition()
        self._is_closed = False

    def close(self) -> None:
        """What is in it is dropped, and whoever waits at it gets Closed."""
        with self._changed:
            self._is_closed = True
            self._drop()
            self._changed.notify_all()

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        # In slices: a wait without a limit in the main thread would hold back Ctrl-C.
        while not self._is_closed and not is_true():
            self._changed.wait(timeout=0.5)
        if self._is_closed:
            raise Closed


class BoundedQueue(_Place, Generic[T]):
    """First in, first out, for any number of threads at both ends."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        super().__init__(capacity, self._items.clear)

    def put(self, item: T) -> None:
        """Wait for room. Raises Closed."""
        with self._changed:
            self._wait_until(lambda: len(self._items) < self.capacity)
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """Wait for an item. Raises Closed."""
        with self._changed:
            self._wait_until(lambda: bool(self._items))
            self._changed.notify_all()
            return self._items.popleft()

    @property
    def depth(self) -> int:
        return len(self._items)


class ReorderBuffer(_Place, Generic[T]):
    """Takes items in the order in which they are ready, gives them out by rising place.

    An item whose place is `capacity` or more beyond the next one waits outside, so that at most so many are inside.
    The one that is next always finds room: whoever has it is never held up by the others.
    """

    def __init__(self, capacity: int) -> None:
        self._items: dict[int, T] = {}
        super().__init__(capacity, self._items.clear)
        self._next = 0

    def put(self, place: int, item: T) -> None:
        """`place` counts from 0, each once. Raises Closed."""
        with self._changed:
            self._wait_until(lambda: place < self._next + self.capacity)
            assert place >= self._next and place not in self._items, f"place {place} came twice"
            self._items[place] = item
            self._changed.notify_all()

    def get(self) -> T:
        """Wait for the next one. Raises Closed."""
        with self._changed:
            self._wait_until(lambda: self._next in self._items)
            item = self._items.pop(self._next)
            self._next += 1
            self._changed.notify_all()
            return item

    @property
    def depth(self) -> int:
        """Items inside, whether or not the next one is among them."""
        return len(self._items)
