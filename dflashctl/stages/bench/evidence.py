"""The lines of requests.jsonl, sorted by what they are evidence of."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from dflashctl.engines.base import SpecCounters
from dflashctl.stages.bench.account import (
    Arm,
    EndRecord,
    Line,
    RequestRecord,
    SegmentRecord,
    TurnRecord,
)


class Evidence:
    """Read-only; a request that was asked again counts once, with its last record."""

    def __init__(self, lines: Iterable[Line]) -> None:
        kept = tuple(lines)
        self.segments = tuple(line for line in kept if isinstance(line, SegmentRecord))
        self.turns = tuple(line for line in kept if isinstance(line, TurnRecord))
        """Those that came to their end, in the order in which they did."""
        self.ends = tuple(line for line in kept if isinstance(line, EndRecord))
        every = [line for line in kept if isinstance(line, RequestRecord)]
        self.requests = tuple({request.key: request for request in every}.values())
        by_turn: dict[tuple[int, int], list[RequestRecord]] = defaultdict(list)
        for request in every:
            by_turn[request.segment, request.turn].append(request)
        self._by_turn = by_turn

    @cached_property
    def errors(self) -> tuple[RequestRecord, ...]:
        return tuple(request for request in self.requests if request.error is not None)

    def answered(self, arm: Arm, load: str | None = None) -> tuple[RequestRecord, ...]:
        """Requests without error, of one load or of all."""
        return tuple(
            request
            for request in self.requests
            if request.arm == arm and request.error is None and load in (None, request.load)
        )

    def turns_of(self, arm: Arm, load: str | None = None) -> tuple[TurnRecord, ...]:
        return tuple(turn for turn in self.turns if turn.arm == arm and load in (None, turn.load))

    def requests_of(self, turn: TurnRecord) -> tuple[RequestRecord, ...]:
        return tuple(self._by_turn[turn.segment, turn.turn])

    def is_clean(self, turn: TurnRecord) -> bool:
        """Every request of it was answered."""
        return all(request.error is None for request in self.requests_of(turn))

    def num_tokens(self, turn: TurnRecord) -> int:
        return sum(request.num_output_tokens or 0 for request in self.requests_of(turn))

    def counters(self, arm: Arm, load: str | None = None) -> tuple[SpecCounters, ...]:
        """What each turn added; turns whose counters could not be read, or fell, add nothing."""
        found = (counted(turn) for turn in self.turns_of(arm, load))
        return tuple(one for one in found if one is not None)

    def has_restart(self, arm: Arm) -> bool:
        """Whether counters fell within a segment: the server was started anew while it was measured."""
        last: dict[int, SpecCounters] = {}
        for turn in self.turns_of(arm):
            for reading in (turn.before, turn.after):
                if reading is None:
                    continue
                before = last.get(turn.segment)
                if before is not None and _fell(before, reading.counters):
                    return True
                last[turn.segment] = reading.counters
        return False

    def num_foreign_steps(self, arm: Arm) -> int:
        """Verify steps between the turns, when nobody of ours asked this arm anything."""
        num = 0
        last: dict[int, SpecCounters] = {}
        for turn in self.turns_of(arm):
            before = last.get(turn.segment)
            if before is not None and turn.before is not None and not _fell(before, turn.before.counters):
                num += turn.before.counters.since(before).num_drafts
            if turn.after is not None:
                last[turn.segment] = turn.after.counters
        return num


def counted(turn: TurnRecord) -> SpecCounters | None:
    """What the engine's counters say of the turn; None if they were not there or fell."""
    if turn.before is None or turn.after is None or _fell(turn.before.counters, turn.after.counters):
        return None
    return turn.after.counters.since(turn.before.counters)


def _fell(before: SpecCounters, after: SpecCounters) -> bool:
    try:
        after.since(before)
    except ValueError:
        return True
    return False
