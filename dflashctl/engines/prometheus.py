"""Reading samples out of the Prometheus text that engines expose."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """Every sample of an exposition, comments and lines of other formats left out."""
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield Sample(found[1], dict(_LABEL.findall(found[2] or "")), value)


def total(text: str, name: str) -> float | None:
    """Sum over all label sets (engines, ranks); None if the name does not occur."""
    found = [sample.value for sample in samples(text) if sample.name == name]
    return sum(found) if found else None


def total_by(text: str, name: str, label: str) -> dict[str, float]:
    """Sums by the value of one label."""
    out: dict[str, float] = {}
    for sample in samples(text):
        if sample.name == name and label in sample.labels:
            key = sample.labels[label]
            out[key] = out.get(key, 0.0) + sample.value
    return out
