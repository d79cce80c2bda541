"""Geometry of the page's charts. The template draws what these functions lay out; no plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Size of a line chart in its own units; the template's SVG scales to the width at hand.
WIDTH, HEIGHT = 340, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 20, 10, 30
_MAX_POINTS = 400
# One dash pattern per series, so that colour is never the only difference.
_DASHES = ("none", "6 3", "2 3", "8 3 2 3")


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Line:
    name: str
    path: str
    dash: str
    last: str  # the last value, as text
    dot: tuple[float, float]


@dataclass(frozen=True)
class LineChart:
    """A line chart laid out: x and y ticks in chart units, one SVG path per series."""

    title: str
    x_label: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str  # text for people who do not see the picture
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


@dataclass(frozen=True)
class Bar:
    """A horizontal bar from zero, with its interval; positions in per cent of the track."""

    label: str
    text: str
    interval: str
    zero: float
    start: float
    width: float
    low: float | None
    high: float | None
    group: str


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that span [low, high]."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def number(value: float) -> str:
    """A tick label without trailing zeros: 0.25, 1,500, 2e-05."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.3g}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def line_chart(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str = "step") -> LineChart:
    """Lay out a line chart.

    Args:
        title: caption.
        series: name to (x, y) points. Points that are not finite are left out.
        x_label: what x counts.

    Raises:
        ValueError: no series has a finite point.
    """
    points = {
        name: sorted((float(x), float(y)) for x, y in values if math.isfinite(x) and math.isfinite(y))
        for name, values in series.items()
    }
    points = {name: values for name, values in points.items() if values}
    if not points:
        raise ValueError(f"The curve {title!r} has no finite points.")
    xs = [x for values in points.values() for x, _ in values]
    ys = [y for values in points.values() for _, y in values]
    y_values = ticks(min(ys), max(ys))
    y_low, y_high = y_values[0], y_values[-1]
    x_low, x_high = min(xs), max(xs)
    x_span = (x_high - x_low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x_low) / x_span * (WIDTH - _LEFT - _RIGHT)
        down = HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)
        return round(across, 1), round(down, 1)

    lines = []
    for index, (name, values) in enumerate(points.items()):
        stride = max(1, math.ceil(len(values) / _MAX_POINTS))
        kept = values[::stride] if (len(values) - 1) % stride == 0 else [*values[::stride], values[-1]]
        placed = [place(x, y) for x, y in kept]
        path = "M" + "L".join(f"{x} {y}" for x, y in placed)
        lines.append(Line(name, path, _DASHES[index % len(_DASHES)], number(_round(values[-1][1])), placed[-1]))
    x_inside = [value for value in ticks(x_low, x_high) if x_low <= value <= x_high]
    described = "; ".join(
        f"{name} from {number(_round(values[0][1]))} to {number(_round(values[-1][1]))}"
        for name, values in points.items()
    )
    return LineChart(
        title=title,
        x_label=x_label,
        lines=tuple(lines),
        x_ticks=tuple(Tick(place(value, y_low)[0], number(value)) for value in x_inside),
        y_ticks=tuple(Tick(place(x_low, value)[1], number(value)) for value in y_values),
        summary=f"{title} over {x_label}: {described}.",
    )


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def bars(rows: Sequence[tuple[str, float, float | None, float | None, str]]) -> list[Bar]:
    """Lay out horizontal bars on one common scale that contains zero.

    Args:
        rows: (label, value, low, high, group); low and high may be None; group is a CSS-safe word.
    """
    ends = [0.0]
    for _, value, low, high, _ in rows:
        ends += [end for end in (value, low, high) if end is not None and math.isfinite(end)]
    bottom, top = min(ends), max(ends)
    span = (top - bottom) or 1.0

    def percent(value: float) -> float:
        return round(100 * (value - bottom) / span, 2)

    laid = []
    for label, value, low, high, group in rows:
        known = low is not None and high is not None
        laid.append(
            Bar(
                label=label,
                text=f"{value:.3f}".replace("-", "−"),
                interval=f"{low:.3f} to {high:.3f}".replace("-", "−") if known else "",
                zero=percent(0),
                start=percent(min(0.0, value)),
                width=round(percent(max(0.0, value)) - percent(min(0.0, value)), 2),
                low=percent(low) if known and low is not None else None,
                high=percent(high) if known and high is not None else None,
                group=group,
            )
        )
    return laid


def finite(value: Any) -> float | None:
    """A number as float; None for anything else, and for what is not finite."""
    if isinstance(value, (int, float, np.number)) and math.isfinite(float(value)):
        return float(value)
    return None


def score_cell(score: Mapping[str, Any] | None, top: float = 1.0) -> dict[str, Any]:
    """A table cell of a score: its text, its interval, and a bar with positions in per cent of `top`.

    Args:
        score: {"value", "low", "high"}; None or a value that is not finite makes an empty cell.
        top: the value at the bar's right end.
    """
    value = finite((score or {}).get("value"))
    if value is None:
        return {"text": "–", "interval": "", "bar": None}
    low, high = finite((score or {}).get("low")), finite((score or {}).get("high"))
    interval = ""
    bar: dict[str, float | None] = {"value": _percent(value, top), "low": None, "span": None}
    if low is not None and high is not None:
        interval = f"{low:.3f}–{high:.3f}"
        bar |= {"low": _percent(low, top), "span": max(1.0, _percent(high, top) - _percent(low, top))}
    return {"text": f"{value:.3f}", "interval": interval, "bar": bar}


def _percent(value: float, top: float) -> float:
    return round(100 * min(max(value / top, 0.0), 1.0), 2)
