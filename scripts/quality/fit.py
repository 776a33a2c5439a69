"""How many steps fill a given time: from the moments at which the steps of a short run ended. Pure."""

from collections.abc import Sequence


def steps_per_s(ends_s: Sequence[float]) -> float:
    """Of the second half of the steps: in the first, kernels are still compiled and tuned.

    Raises ValueError for fewer than three moments, or if no time passed.
    """
    if len(ends_s) < 3:
        raise ValueError(f"wanted the ends of at least 3 steps, found {len(ends_s)}")
    first = (len(ends_s) - 1) // 2
    passed_s = ends_s[-1] - ends_s[first]
    if passed_s <= 0:
        raise ValueError("no time passed between the steps")
    return (len(ends_s) - 1 - first) / passed_s


def steps_for(seconds: float, ends_s: Sequence[float]) -> int:
    """Steps that should take `seconds`, at least 2."""
    return max(2, int(seconds * steps_per_s(ends_s)))


def fits_another(elapsed_s: float, limit_s: float, last_s: float, size_ratio: float) -> bool:
    """Whether one more batch ends within the limit, if a batch `size_ratio` times as large takes as many times longer.

    `last_s`: seconds of the last one; 0: there was none.
    """
    return elapsed_s + last_s * max(1.0, size_ratio) <= limit_s
