"""Which checkpoints of a run stay: the newest, the best by measured tau, and one every so many hours.

Training loss and training accuracy decide nothing here: both have looked fine while the served acceptance was four
times too low.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflashctl_remote.spec.errors import BundleError
from dflashctl_remote.spec.manifest import read_manifest
from dflashctl_remote.spec.validation import KeepPolicy


@dataclass(frozen=True)
class Kept:
    """A complete checkpoint, as its manifest tells."""

    step: int
    at_s: float | None
    """When it was written, Unix time; None: its manifest cannot be read."""
    tau: float | None
    """Measured in the validation at its step."""


def to_delete(checkpoints: Sequence[Kept], policy: KeepPolicy) -> list[int]:
    """Steps that the policy does not keep, rising. Asked again after each deletion it gives nothing new.

    Step 0 and the newest stay. Of equal taus the newer is the better.
    """
    ordered = sorted(checkpoints, key=lambda one: one.step)
    stays = {one.step for one in ordered[-max(1, policy.keep) :]} | {0}
    measured = [one for one in ordered if one.tau is not None and math.isfinite(one.tau)]
    stays |= {one.step for one in sorted(measured, key=_rank)[max(0, len(measured) - policy.keep_best) :]}
    if policy.every_hours is not None:
        stays |= _spaced(ordered, policy.every_hours * 3600)
    return [one.step for one in ordered if one.step not in stays]


def kept_of(step: int, folder: Path) -> Kept:
    """From the manifest of a checkpoint's folder."""
    try:
        manifest = read_manifest(folder, "checkpoint")
    except BundleError:
        return Kept(step, None, None)
    tau = manifest.about.get("tau")
    return Kept(step, manifest.created_at_s, float(tau) if isinstance(tau, int | float) else None)


def _rank(one: Kept) -> tuple[float, int]:
    assert one.tau is not None
    return (one.tau, one.step)


def _spaced(ordered: Sequence[Kept], apart_s: float) -> set[int]:
    """The first, and then each that is far enough from the one before. Clocks are set back: the distance counts."""
    stays: set[int] = set()
    last_s: float | None = None
    for one in ordered:
        if one.at_s is not None and (last_s is None or abs(one.at_s - last_s) >= apart_s):
            stays.add(one.step)
            last_s = one.at_s
    return stays
