"""Chart geometry: ticks, places of points, bars and whiskers."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from rrg_hf.evaluation.charts import HEIGHT, WIDTH, bars, line_chart, number, ticks


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.13, 0.97), (-3, 12), (1e-6, 3e-6), (0, 14873), (5, 5), (0, 0), (-2, -2)]
)
def test_ticks_are_few_even_and_span_the_range(low: float, high: float) -> None:
    values = ticks(low, high)
    assert values[0] <= low and values[-1] >= high and 2 <= len(values) <= 8
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert max(steps) == pytest.approx(min(steps))
    assert min(steps) > 0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (1500, "1,500"), (2e-5, "2e-05"), (-1.5, "-1.5"), (3e7, "3e+07")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def test_a_line_runs_from_corner_to_corner() -> None:
    chart = line_chart("loss", {"train": [(0, 1.0), (50, 0.5), (100, 0.0)]})
    (line,) = chart.lines
    assert points(line.path) == [
        (chart.left, chart.top),
        ((chart.left + chart.right) / 2, (chart.top + chart.bottom) / 2),
        (chart.right, chart.bottom),
    ]
    assert (line.last, line.dot) == ("0", (chart.right, chart.bottom))
    assert chart.right <= WIDTH and chart.bottom <= HEIGHT
    assert "train from 1 to 0" in chart.summary


def test_series_share_the_axes_and_differ_in_dash() -> None:
    chart = line_chart("loss", {"train": [(0, 4.0), (10, 2.0)], "validation": [(5, 0.0)]})
    assert points(chart.lines[1].path) == [((chart.left + chart.right) / 2, chart.bottom)]
    assert len({line.dash for line in chart.lines}) == 2


def test_points_that_are_not_finite_are_left_out() -> None:
    chart = line_chart("loss", {"train": [(0, 1.0), (1, math.nan), (2, math.inf), (3, 0.5)], "empty": [(0, math.nan)]})
    assert [len(points(line.path)) for line in chart.lines] == [2]
    with pytest.raises(ValueError, match="'loss' has no finite points"):
        line_chart("loss", {"train": [(0, math.nan)]})


def test_long_series_are_thinned_but_keep_their_ends() -> None:
    chart = line_chart("loss", {"train": [(step, 1 / (1 + step)) for step in range(10_007)]})
    kept = points(chart.lines[0].path)
    assert len(kept) <= 402 and kept[0][0] == chart.left and kept[-1][0] == chart.right


def test_bars_share_a_scale_with_zero() -> None:
    up, down, bare = bars([("a", 0.3, 0.1, 0.4, "x"), ("b", -0.1, None, None, "x"), ("c", 0.0, 0.0, 0.0, "y")])
    assert (up.zero, up.start, up.width, up.low, up.high) == (20, 20, 60, 40, 100)
    assert (down.start, down.width, down.low, down.interval, down.text) == (0, 20, None, "", "−0.100")
    assert (bare.width, bare.interval, bare.group) == (0, "0.000 to 0.000", "y")
    assert bars([]) == []
