"""Bootstrap intervals and paired tests over studies, vectorised over per-study statistics.

The study is the unit: studies are drawn with replacement, and both systems of a comparison keep their pair. Scores of
the whole corpus (BLEU, micro-F1) are recomputed from the resampled sums, never averaged over studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..metrics.statistics import StudyStatistics

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


def check_resampling(resamples: int, confidence: float) -> None:
    """Fail early on numbers that make no interval.

    Raises:
        ConfigError: fewer than 20 resamples (0 is allowed and means none), or confidence outside (0, 1).
    """
    if resamples != 0 and resamples < 20:
        raise ConfigError(f"{resamples} bootstrap resamples cannot make an interval. Use 0 (none) or at least 20.")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"The confidence level is {confidence}. Use a value between 0 and 1, such as 0.95.")


def _blocks(n: int, resamples: int) -> list[int]:
    size = max(1, min(resamples, _BLOCK_CELLS // max(n, 1)))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def bootstrap_sums(values: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """Sums of the rows of `values` over studies drawn with replacement.

    The draw depends on the number of studies, `resamples` and `seed` only: other statistics of the same studies get
    the same resamples.

    Args:
        values: (N, K).
        resamples: how many.
        seed: of the draw.

    Returns:
        (resamples, K).
    """
    n = len(values)
    rng = np.random.default_rng(seed)
    shares = np.full(n, 1.0 / n)
    return np.concatenate([rng.multinomial(n, shares, size=size) @ values for size in _blocks(n, resamples)])


def percentile_interval(draws: np.ndarray, confidence: float) -> Interval:
    """The central `confidence` share of (resamples,) draws."""
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
    intervals: dict[str, Interval] = {}
    for group in statistics:
        draws = group.score(bootstrap_sums(group.values, resamples=resamples, seed=seed))
        intervals.update({name: percentile_interval(values, confidence) for name, values in draws.items()})
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
    comparisons: dict[str, ScoreComparison] = {}
    for one, two in zip(first, second, strict=True):
        if one.values.shape != two.values.shape:
            raise DataError(
                f"The systems have statistics of shapes {one.values.shape} and {two.values.shape}. "
                "Compare systems on the same studies with the same metrics."
            )
        base, other = one.corpus(), two.corpus()
        drawn_one = one.score(bootstrap_sums(one.values, resamples=resamples, seed=seed))
        drawn_two = two.score(bootstrap_sums(two.values, resamples=resamples, seed=seed))
        swapped = _permuted_differences(one, two, permutations=permutations, seed=seed)
        for name in base:
            drawn = drawn_two[name] - drawn_one[name]
            difference = other[name] - base[name]
            low, high = percentile_interval(drawn, confidence)
            tail = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
            # A hair of tolerance: equal sums must count as "at least as extreme" whatever the rounding.
            extreme = np.count_nonzero(np.abs(swapped[name]) >= abs(difference) - 1e-12)
            comparisons[name] = ScoreComparison(
                first=base[name],
                second=other[name],
                difference=difference,
                low=low,
                high=high,
                p_bootstrap=float(min(1.0, 2 * (tail + 1) / (resamples + 1))),
                p_permutation=float((extreme + 1) / (permutations + 1)),
            )
    return comparisons


def _permuted_differences(
    one: StudyStatistics, two: StudyStatistics, *, permutations: int, seed: int
) -> dict[str, np.ndarray]:
    """Score differences after swapping the two systems' studies at random, name -> (permutations,)."""
    n = len(one.values)
    # Another stream than the bootstrap's, from the same seed.
    rng = np.random.default_rng([seed, 1])
    gap = two.values - one.values
    moved = np.concatenate([rng.integers(0, 2, size=(size, n)) @ gap for size in _blocks(n, permutations)])
    swapped_one = one.score(one.values.sum(axis=0) + moved)
    swapped_two = two.score(two.values.sum(axis=0) - moved)
    return {name: swapped_two[name] - swapped_one[name] for name in swapped_one}
