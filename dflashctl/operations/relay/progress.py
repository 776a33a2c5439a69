"""How far a relay is, told by those that move the bytes and read by those that show it."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Snapshot:
    total_bytes: int
    """Of the files, whatever has to be sent for them."""
    done_bytes: int
    """Of them, on the target."""
    kept_bytes: int
    """Of those, what was there already, from an earlier try."""
    sent_bytes: int
    """Over the wire, encoded, since the start."""
    hashed_bytes: int
    elapsed_s: float
    """Since the first byte was asked for, whatever happened meanwhile."""
    active_s: float
    """Of these, while a try was at it."""
    idle_s: float
    """Since the last byte went over the wire."""
    source_wait_s: float
    """Of all lanes, waiting for the source to give."""
    target_wait_s: float
    num_lanes: int
    phase: str
    hows: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the files by how they came: raw, planes, base, zeros, same."""

    @property
    def rate_bytes_per_s(self) -> float:
        return self.sent_bytes / self.active_s if self.active_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        moved = self.done_bytes - self.kept_bytes
        if moved <= 0 or self.active_s <= 0:
            return None
        return (self.total_bytes - self.done_bytes) * self.active_s / moved

    @property
    def slower_leg(self) -> str:
        """source, target, or nothing while neither keeps the other waiting."""
        waits = self.source_wait_s + self.target_wait_s
        if waits < 0.1 * self.active_s * max(1, self.num_lanes):
            return ""
        return "source" if self.source_wait_s > self.target_wait_s else "target"

    def leg_bytes_per_s(self, leg: str) -> float:
        """What that leg would give if the other one never kept it waiting."""
        other_wait_s = self.target_wait_s if leg == "source" else self.source_wait_s
        own_s = self.active_s - other_wait_s / max(1, self.num_lanes)
        return self.sent_bytes / own_s if own_s > 0.05 else self.rate_bytes_per_s


@dataclass
class Progress:
    """May be told by several threads at once."""

    total_bytes: int = 0
    done_bytes: int = 0
    kept_bytes: int = 0
    sent_bytes: int = 0
    hashed_bytes: int = 0
    source_wait_s: float = 0.0
    target_wait_s: float = 0.0
    num_lanes: int = 0
    phase: str = "looking"
    first_s: float = 0.0
    began_s: float = 0.0
    spent_s: float = 0.0
    """In tries before this one."""
    moved_s: float = 0.0
    """When the last byte went."""
    hows: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **amounts: float) -> None:
        with self.lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)
            if amounts.get("sent_bytes"):
                self.moved_s = time.monotonic()

    def came(self, how: str, num_bytes: int) -> None:
        """So many bytes of the files are on the target."""
        with self.lock:
            self.done_bytes += num_bytes
            self.hows[how] = self.hows.get(how, 0) + num_bytes

    def begin(self) -> None:
        with self.lock:
            self.began_s = self.moved_s = time.monotonic()
            self.first_s = self.first_s or self.began_s

    def pause(self) -> None:
        """Nobody moves anything until the next `begin`."""
        with self.lock:
            self.phase = "waiting" if self.first_s else self.phase
            if self.began_s:
                self.spent_s += time.monotonic() - self.began_s
                self.began_s = 0.0

    def snapshot(self) -> Snapshot:
        with self.lock:
            now_s = time.monotonic()
            running_s = now_s - self.began_s if self.began_s else 0.0
            return Snapshot(
                total_bytes=self.total_bytes,
                done_bytes=self.done_bytes,
                kept_bytes=self.kept_bytes,
                sent_bytes=self.sent_bytes,
                hashed_bytes=self.hashed_bytes,
                elapsed_s=now_s - self.first_s if self.first_s else 0.0,
                active_s=self.spent_s + running_s,
                idle_s=now_s - self.moved_s if self.moved_s else 0.0,
                source_wait_s=self.source_wait_s,
                target_wait_s=self.target_wait_s,
                num_lanes=self.num_lanes,
                phase=self.phase,
                hows=dict(self.hows),
            )
