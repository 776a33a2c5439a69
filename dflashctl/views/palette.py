"""Colours by meaning, and figures as people read them."""

GOOD = "green"
BAD = "bold red"
CAUTION = "yellow"
QUIET = "bright_black"
ACCENT = "cyan"
HEADLINE = "bold green"

SPARKS = "_.-=+*#"
SPARK_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def si(value: float) -> str:
    """1234567 as 1.23M: three figures and a letter."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def binary(num_bytes: float) -> str:
    """Bytes as B, KiB, MiB or GiB."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def duration(seconds_s: float) -> str:
    """12 s, 3 min 05 s, 2 h 07 min, 3 d 04 h."""
    if seconds_s < 60:
        return f"{seconds_s:.0f} s"
    minutes, seconds = divmod(round(seconds_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def countdown(remark: str, until_s: float | None, now_s: float) -> str:
    """The remark, with the seconds that are left if it has an end."""
    return remark if until_s is None else f"{remark} ({max(0.0, until_s - now_s):.0f} s left)"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def sparkline(values: list[float], width: int, *, is_ascii: bool = False) -> str:
    """The values as one line of bars, each bar the mean of its share of them; low is low."""
    if not values:
        return ""
    marks = SPARKS if is_ascii else SPARK_BLOCKS
    columns = min(width, len(values))
    means = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = high - low or 1.0
    return "".join(marks[min(len(marks) - 1, int((mean - low) / span * len(marks)))] for mean in means)
