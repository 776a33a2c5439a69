"""What the arms of `make bench-train` were to reach, and whether they did. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOADER, ONLINE, AIM = 100_000, 7_500, 8_500
PEER_RATIO, DRAFTER_GIB, MORE_GIB = 1.25, 20.0, 1.0
TARGET_RATIO, RANKS_RATIO, SPLIT_SHARE = 1.15, 1.9, 0.95
SAVING_SHARE, SAVED_EVERY = 0.02, 500

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True)
class Claim:
    text: str
    holds: bool | None
    """None: what it is compared with was not measured."""

    def __str__(self) -> str:
        word = "not measured" if self.holds is None else "holds" if self.holds else "MISSED"
        return f"{word}: {self.text}"


def claims(found: Mapping[str, Rows]) -> list[Claim]:
    """Of the arms that were run, by name."""
    made: list[Claim] = []
    for arm, rows in found.items():
        made += _JUDGES[arm](rows, found)
    return made


def _loader(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    slowest = min((row["tokens_per_s"] for row in rows if "tokens_per_s" in row), default=None)
    if slowest is not None:
        yield Claim(f"loader {slowest:,.0f} tokens/s at its slowest, {LOADER:,} wanted", slowest >= LOADER)


def _kernels(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    for row in rows:
        if "bar" in row:
            text = f"linear_ce: {row['bar']} {row['found']:.3f}, at most {row['limit']:g} wanted"
            yield Claim(text, row["found"] <= row["limit"])
        elif row["what"].startswith("check failed"):
            yield Claim(row["what"], False)


def _drafter(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    """The peer's step makes its labels itself; ours has them from the target's stage, and is timed with them too."""
    timed = [row for row in rows if "tokens_per_s" in row]
    for row in timed:
        peers = [peer["tokens_per_s"] for peer in found.get("speculators", ()) if peer.get("r") == row["r"]]
        name = f"{row['what']}, r = {row['r']:g}: {row['tokens_per_s']:,.0f} tokens/s"
        if not peers:
            yield Claim(f"{name}, {PEER_RATIO}x that of speculators wanted", None)
            continue
        ratio = row["tokens_per_s"] / max(peers)
        text = f"{name}, {ratio:.2f}x the {max(peers):,.0f} of speculators, {PEER_RATIO}x wanted"
        yield Claim(text, ratio >= PEER_RATIO)
    peaks = {row["r"]: row["peak_gib"] for row in timed if row["what"] == "ours"}
    if not peaks:
        return
    first = min(peaks)
    yield Claim(
        f"drafter's peak {peaks[first]:.2f} GiB at r = {first:g}, {DRAFTER_GIB:g} wanted", peaks[first] <= DRAFTER_GIB
    )
    for ratio in sorted(set(peaks) - {first}):
        more = peaks[ratio] - peaks[first]
        yield Claim(f"at r = {ratio:g} {more:+.2f} GiB, at most {MORE_GIB:g} wanted", more <= MORE_GIB)


def _target(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    for num_tokens in dict.fromkeys(row["num_tokens"] for row in rows if "transformers" in row["what"]):
        ours = [row for row in rows if row["what"].startswith("ours,") and "not compiled" not in row["what"]]
        for row in ours:
            # A row of all lengths is less than full.
            if 0.8 * num_tokens < row["num_tokens"] <= num_tokens:
                text = f"target, {row['what']}, {row['num_tokens']} tokens: {row['ratio']:.3f}x transformers"
                yield Claim(f"{text}, {TARGET_RATIO}x wanted", row["ratio"] >= TARGET_RATIO)


def _online(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    for row in rows:
        if row["arm"] != "in threads":
            continue
        rate, cap = row["tokens_per_s"], row["cap_gib"]
        text = f"{row['what']}: {rate:,.0f} tokens/s, {ONLINE:,} wanted ({AIM:,} the aim)"
        yield Claim(text, rate >= ONLINE and (cap is None or row["peak_gib"] <= cap))


def _saving(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    """A checkpoint every SAVED_EVERY steps of two batches, at the arm's own rate."""
    for row in rows:
        if "more_s" in row:
            between_s = SAVED_EVERY * 2 * 8192 / row["tokens_per_s"]
            share = row["more_s"] / between_s
            text = f"a checkpoint every {SAVED_EVERY} steps: {100 * share:.2f} % more time"
            yield Claim(f"{text}, at most {100 * SAVING_SHARE:g} % wanted", share <= SAVING_SHARE)


def _split(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    """Busy all the time is as fast as its slower stage is where it runs; what that would do alone is told beside."""
    for row in rows:
        busiest = max(row["busy"].values(), default=0.0)
        alone = [_best(found.get("target", ())), _best(found.get("drafter", ()), r=row["r"])]
        beside = ""
        if None not in alone:
            slower = min(rate for rate in alone if rate is not None)
            beside = f"; {row['tokens_per_s'] / slower:.2f} of what the slower did alone, without labels or optimizer"
        text = (
            f"{row['what']}: {row['limiting']} busy {100 * busiest:.0f} % of the time, {100 * SPLIT_SHARE:g} % wanted"
        )
        yield Claim(text + beside, busiest >= SPLIT_SHARE)


def _ranks(rows: Rows, found: Mapping[str, Rows]) -> Iterator[Claim]:
    one = [row for row in found.get("online", ()) if row["arm"] == "in threads" and row["cap_gib"] is None]
    for row in rows:
        if not one:
            yield Claim(f"{row['what']}: {row['tokens_per_s']:,.0f} tokens/s, {RANKS_RATIO}x one wanted", None)
            continue
        ratio = row["tokens_per_s"] / one[0]["tokens_per_s"]
        text = f"{row['what']}: {row['tokens_per_s']:,.0f} tokens/s, {ratio:.2f}x one, {RANKS_RATIO}x wanted"
        yield Claim(text, ratio >= RANKS_RATIO)


def _best(rows: Rows, *, r: float | None = None) -> float | None:
    mine = [row for row in rows if row["what"].startswith("ours") and (r is None or row.get("r") == r)]
    return max((row["tokens_per_s"] for row in mine if "tokens_per_s" in row), default=None)


_JUDGES: Mapping[str, Callable[[Rows, Mapping[str, Rows]], Iterator[Claim]]] = {
    "loader": _loader,
    "kernels": _kernels,
    "drafter": _drafter,
    "speculators": lambda rows, found: iter(()),
    "target": _target,
    "online": _online,
    "saving": _saving,
    "1+1": _split,
    "2+1": _split,
    "ranks": _ranks,
}
