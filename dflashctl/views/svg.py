"""Plots as inline SVG: no script, no network, colours from the page's own style sheet by class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 16, 50


@dataclass(frozen=True)
class Axis:
    """From data to the length of an axis in pixels."""

    low: float
    high: float
    label: str
    is_log: bool = False

    def share(self, value: float) -> float:
        low, high, at = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def ticks(self) -> tuple[float, ...]:
        return _log_ticks(self.low, self.high) if self.is_log else _ticks(self.low, self.high)


@dataclass(frozen=True)
class Curve:
    """Points joined by a line, or left apart."""

    name: str
    css_class: str
    points: tuple[tuple[float, float], ...]
    is_joined: bool = True
    has_dots: bool = False


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    title: str


def plot(
    title: str,
    x: Axis,
    y: Axis,
    curves: Sequence[Curve] = (),
    bars: Sequence[Bar] = (),
    *,
    bar_name: str = "",
    level: float | None = None,
    band: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
) -> str:
    """`level` draws a horizontal line, `band` a shaded range of y. The picture scales with its place."""
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        *_grid(x, y, x.ticks() if x_ticks is None else x_ticks),
    ]
    if band is not None:
        top, bottom = _y(y, band[1]), _y(y, band[0])
        parts.append(
            f'<rect class="band" x="{LEFT}" y="{top:.1f}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{max(1.0, bottom - top):.1f}"/>'
        )
    parts += _bars(x, y, bars)
    if level is not None:
        at = _y(y, level)
        parts.append(f'<line class="level" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
    for curve in curves:
        parts += _curve(x, y, curve)
    parts += _legend([(curve.name, curve.css_class) for curve in curves] + ([(bar_name, "bar")] if bars else []))
    parts.append("</svg>")
    return "".join(parts)


def _grid(x: Axis, y: Axis, x_ticks: Sequence[float]) -> list[str]:
    bottom = HEIGHT - BOTTOM
    out = []
    for tick in y.ticks():
        at = _y(y, tick)
        out.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_said(tick)}</text>')
    for tick in x_ticks:
        at = _x(x, tick)
        out.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{_said(tick)}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    out.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>')
    out.append(f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>')
    centre = TOP + (bottom - TOP) / 2
    out.append(
        f'<text class="label" transform="translate(14 {centre:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    return out


def _bars(x: Axis, y: Axis, bars: Sequence[Bar]) -> list[str]:
    if not bars:
        return []
    width = 0.62 * (WIDTH - LEFT - RIGHT) / max(1.0, x.high - x.low)
    bottom = HEIGHT - BOTTOM
    out = []
    for bar in bars:
        top = _y(y, bar.y)
        out.append(
            f'<rect class="bar" x="{_x(x, bar.x) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{bottom - top:.1f}"><title>{escape(bar.title)}</title></rect>'
        )
    return out


def _curve(x: Axis, y: Axis, curve: Curve) -> list[str]:
    places = [(_x(x, px), _y(y, py)) for px, py in curve.points]
    out = []
    if curve.is_joined:
        joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        out.append(f'<polyline class="line {curve.css_class}" points="{joined}"/>')
    if curve.has_dots:
        out += [f'<circle class="dot {curve.css_class}" cx="{px:.1f}" cy="{py:.1f}" r="3.5"/>' for px, py in places]
    return out


def _legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    out = []
    at = LEFT + 8.0
    for name, css_class in entries:
        out.append(f'<rect class="key {css_class}" x="{at:.0f}" y="2" width="10" height="10"/>')
        out.append(f'<text class="tick" x="{at + 15:.0f}" y="11">{escape(name)}</text>')
        at += 34 + 7.2 * len(name)
    return out if len(entries) > 1 else []


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM - 6)


def _ticks(low: float, high: float, num: int = 5) -> tuple[float, ...]:
    """Round numbers, about so many."""
    if high <= low:
        return (low,)
    raw = (high - low) / num
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(step * index for index in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    round_numbers = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)
    inside = [one for one in round_numbers if low <= one <= high]
    # No more than fit.
    every = max(1, math.ceil(len(inside) / 7))
    kept = inside[::every]
    return tuple(kept if 1 not in inside or 1 in kept else sorted([*kept, 1]))


def _said(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
