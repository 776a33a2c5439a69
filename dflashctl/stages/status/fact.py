"""A fact: what is said, where it was read, how old it is, and what sort of knowledge it is. Pure."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["measured", "live", "reported", "hand-written", "estimated", "unknown"]
"""measured: by a job that set out to measure it. live: asked of the system now. reported: what a job says of itself."""
Sort = Literal["run", "server", "benchmark", "dataset"]


@dataclass(frozen=True)
class Fact:
    name: str
    text: str
    """For people, with its unit."""
    kind: Kind
    source: str
    """File or address that it was read from; of an unknown one, the command that would tell."""
    at_s: float | None = None
    """Unix time at which it was true, as the source says; None: the source does not say."""
    value: str | float | bool | None = None
    """For machines."""
    unit: str = ""
    warning: str = ""
    """Why it should not be taken at face value; shown beside it wherever it is shown."""
    stale_after_s: float | None = None
    """Older than that it may have changed since; None: it stays as true as it was."""

    def age_s(self, now_s: float) -> float | None:
        return None if self.at_s is None else max(0.0, now_s - self.at_s)

    def is_stale(self, now_s: float) -> bool:
        age_s = self.age_s(now_s)
        return self.stale_after_s is not None and age_s is not None and age_s > self.stale_after_s


@dataclass(frozen=True)
class Subject:
    """What facts are about."""

    sort: Sort
    name: str
    state: Fact
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Snapshot:
    """All that was found, at one moment, on one host."""

    host: str
    workdir: str
    at_s: float
    subjects: tuple[Subject, ...]
    problems: tuple[Fact, ...] = ()
    """What was looked for or was there, and could not be read."""

    def of(self, sort: Sort) -> tuple[Subject, ...]:
        return tuple(subject for subject in self.subjects if subject.sort == sort)


def unknown(name: str, why: str, how_to_know: str) -> Fact:
    """What is not known says so, and how it could be."""
    return Fact(name, f"not known: {why}", "unknown", how_to_know)


def unreadable(name: str, path: str, why: str) -> Fact:
    return Fact(name, "cannot be read", "unknown", path, warning=why)


def nothing_yet(sort: Sort) -> Fact:
    """What an empty part of the status says."""
    cures = {
        "run": ("no run here", "dflashctl train start"),
        "server": ("no server was started here", "dflashctl deploy up --server NAME"),
        "benchmark": ("nothing was benchmarked here", "dflashctl bench --server NAME"),
        "dataset": ("no dataset here", "dflashctl data tokenize"),
    }
    return unknown(sort, *cures[sort])
