"""Bootstrap intervals and paired tests over studies, vectorised over per-study statistics.

The study is the unit: studies are drawn with replacement, and both systems of a comparison keep their pair. Scores of
the whole corpus (BLEU, micro-F1) are recomputed from the resampled sums, never averaged over studies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..metrics.statistics import BLOCK_ROWS, StudyRows, StudyStatistics, column_sums

# Weights are drawn in blocks so that 1,000 resamples of 100,000 studies do not fill the memory.
_BLOCK_CELLS = 8_000_000

Interval = tuple[float, float]


@dataclass(frozen=True)
class ScoreComparison:
    """One score of two systems on the same studies.

    Attributes:
        first, second: the score of each system.
        difference: second - first.
        low, high: percentile bootstrap interval of the difference.
        p_bootstrap: two-sided bootstrap p-value: twice the smaller share of resampled differences on one side of 0.
        p_permutation: two-sided p-value of swapping the systems study by study at random.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_permutation: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_resampling(resamples: int, confidence: float, seed: int = 0) -> None:
    """Fail early on numbers that make no interval.

    Raises:
        ConfigError: fewer than 20 resamples (0 is allowed and means none), confidence outside (0, 1), or a seed that
            is no whole number of at least 0.
    """
    for name, value in (("bootstrap", resamples), ("seed", seed)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ConfigError(f"{name} is {value!r}. Use a whole number.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}. Use 0 or a larger whole number.")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        raise ConfigError(f"confidence is {confidence!r}. Use a number between 0 and 1, such as 0.95.")
    if resamples != 0 and resamples < 20:
        raise ConfigError(f"{resamples} bootstrap resamples cannot make an interval. Use 0 (none) or at least 20.")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"The confidence level is {confidence}. Use a value between 0 and 1, such as 0.95.")


def _blocks(n: int, resamples: int) -> list[int]:
    size = max(1, min(resamples, _BLOCK_CELLS // max(n, 1)))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def _weigh(weights: np.ndarray, values: StudyRows) -> np.ndarray:
    """`weights @ values`, (B, N) times (N, K), in blocks of studies so that the values may lie on disk."""
    total = np.zeros((len(weights), values.shape[1]))
    for start in range(0, len(values), BLOCK_ROWS):
        total += weights[:, start : start + BLOCK_ROWS] @ np.asarray(values[start : start + BLOCK_ROWS])
    return total


def resampled_sums(statistics: Sequence[StudyRows], *, resamples: int, seed: int) -> list[np.ndarray]:
    """Sums of the rows of each array over studies drawn with replacement, the same draw for all of them.

    The draw depends on the number of studies, `resamples` and `seed` only.

    Args:
        statistics: arrays (N, K), K may differ.
        resamples: how many.
        seed: of the draw.

    Returns:
        One (resamples, K) per array.
    """
    n = len(statistics[0])
    rng = np.random.default_rng(seed)
    shares = np.full(n, 1.0 / n)
    parts: list[list[np.ndarray]] = [[] for _ in statistics]
    for size in _blocks(n, resamples):
        weights = rng.multinomial(n, shares, size=size).astype(float)
        for part, values in zip(parts, statistics, strict=True):
            part.append(_weigh(weights, values))
    return [np.concatenate(part) for part in parts]


def bootstrap_sums(values: StudyRows, *, resamples: int, seed: int) -> np.ndarray:
    """`resampled_sums` of one array."""
    return resampled_sums([values], resamples=resamples, seed=seed)[0]


def percentile_interval(draws: np.ndarray, confidence: float) -> Interval:
    """The central `confidence` share of (resamples,) draws; draws without a score (NaN) are left out."""
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return float("nan"), float("nan")
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def bootstrap_intervals(
    statistics: Sequence[StudyStatistics], *, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> dict[str, Interval]:
    """Percentile bootstrap interval of every score, over resampled studies.

    Args:
        statistics: of the same studies in the same order.
        resamples: number of resamples; 1,000 of 600 studies take well under a second.
        seed: of the draw; one draw serves all scores.
        confidence: e.g. 0.95.

    Returns:
        Score name to (low, high).
    """
    check_resampling(resamples, confidence)
    sums = resampled_sums([group.values for group in statistics], resamples=resamples, seed=seed)
    return intervals_of_sums(statistics, sums, confidence)


def intervals_of_sums(
    statistics: Sequence[StudyStatistics], sums: Sequence[np.ndarray], confidence: float
) -> dict[str, Interval]:
    """Percentile interval of every score from its statistics' `resampled_sums`."""
    intervals: dict[str, Interval] = {}
    for group, drawn in zip(statistics, sums, strict=True):
        intervals.update(
            {name: percentile_interval(values, confidence) for name, values in group.score(drawn).items()}
        )
    return intervals


def compare_statistics(
    first: Sequence[StudyStatistics],
    second: Sequence[StudyStatistics],
    *,
    resamples: int = 1000,
    permutations: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, ScoreComparison]:
    """Paired bootstrap and paired permutation test of every score two systems share.

    Args:
        first, second: statistics of each system, the same groups, the same studies in the same order.
        resamples: bootstrap resamples, at least 20.
        permutations: random swaps, at least 20.
        seed: of both draws.
        confidence: of the interval of the difference.

    Returns:
        Score name to its `ScoreComparison`.

    Raises:
        ConfigError: too few resamples or permutations.
        DataError: the systems do not cover the same number of studies or the same statistics.
    """
    check_resampling(resamples, confidence)
    if resamples < 20 or permutations < 20:
        raise ConfigError(
            f"A comparison needs at least 20 resamples and permutations, got {resamples}, {permutations}."
        )
    if len(first) != len(second):
        raise DataError(f"The systems have {len(first)} and {len(second)} groups of statistics. Score both alike.")
    for one, two in zip(first, second, strict=True):
        if one.values.shape != two.values.shape:
            raise DataError(
                f"The systems have statistics of shapes {one.values.shape} and {two.values.shape}. "
                "Compare systems on the same studies with the same metrics."
            )
    comparisons: dict[str, ScoreComparison] = {}
    rows = [group.values for group in (*first, *second)]
    sums = resampled_sums(rows, resamples=resamples, seed=seed)
    moves = _swapped_sums(rows[: len(first)], rows[len(first) :], permutations=permutations, seed=seed)
    for index, (one, two) in enumerate(zip(first, second, strict=True)):
        base, other = one.corpus(), two.corpus()
        drawn_one, drawn_two = one.score(sums[index]), two.score(sums[len(first) + index])
        swapped_one = one.score(column_sums(one.values) + moves[index])
        swapped_two = two.score(column_sums(two.values) - moves[index])
        for name in base:
            comparisons[name] = _compare(
                base[name],
                other[name],
                drawn_two[name] - drawn_one[name],
                swapped_two[name] - swapped_one[name],
                confidence,
            )
    return comparisons


def _compare(
    first: float, second: float, drawn: np.ndarray, swapped: np.ndarray, confidence: float
) -> ScoreComparison:
    """One score from its resampled and its swapped differences; NaN where a system has no score."""
    difference = second - first
    low, high = percentile_interval(drawn, confidence)
    drawn, swapped = drawn[~np.isnan(drawn)], swapped[~np.isnan(swapped)]
    p_bootstrap = p_permutation = float("nan")
    if not math.isnan(difference):
        tail = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
        p_bootstrap = float(min(1.0, 2 * (tail + 1) / (len(drawn) + 1)))
        # A hair of tolerance: equal sums must count as "at least as extreme" whatever the rounding.
        extreme = np.count_nonzero(np.abs(swapped) >= abs(difference) - 1e-12)
        p_permutation = float((extreme + 1) / (len(swapped) + 1))
    return ScoreComparison(first, second, difference, low, high, p_bootstrap, p_permutation)


def _swapped_sums(
    one: Sequence[StudyRows], two: Sequence[StudyRows], *, permutations: int, seed: int
) -> list[np.ndarray]:
    """What the first system's sums gain when studies are swapped at random, (permutations, K) per array."""
    n = len(one[0])
    # Another stream than the bootstrap's, from the same seed.
    rng = np.random.default_rng([seed, 1])
    parts: list[list[np.ndarray]] = [[] for _ in one]
    for size in _blocks(n, permutations):
        chosen = rng.integers(0, 2, size=(size, n)).astype(float)
        for part, first, second in zip(parts, one, two, strict=True):
            part.append(_weigh(chosen, _Gap(first, second)))
    return [np.concatenate(part) for part in parts]


@dataclass(frozen=True)
class _Gap:
    """Rows of `second` minus rows of `first`, formed block by block."""

    first: StudyRows
    second: StudyRows

    @property
    def shape(self) -> tuple[int, ...]:
        return self.first.shape

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self.second[rows]) - np.asarray(self.first[rows])
