from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy import stats

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.evaluation import significance
from rrg_hf.evaluation.significance import bootstrap_intervals, bootstrap_sums, compare_statistics
from rrg_hf.metrics.nlg import bleu_statistics
from rrg_hf.metrics.statistics import StudyStatistics, divide, mean_statistics, optional_mean_statistics


def random_texts(n: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[f"w{word}" for word in rng.integers(0, 8, size=rng.integers(5, 12))] for _ in range(n)]


def ratio_statistics(seed: int, n: int = 60) -> StudyStatistics:
    """A ratio of sums, like micro-precision: not a mean over studies."""
    rng = np.random.default_rng(seed)
    total = rng.integers(1, 10, size=n)
    values = np.stack([rng.binomial(total, 0.6), total], axis=1).astype(float)
    return StudyStatistics(values, lambda sums: {"ratio": divide(sums[..., 0], sums[..., 1])})


def test_sums_equal_redrawn_studies() -> None:
    """The matrix product against drawing the studies one by one with the same weights."""
    reports, references = random_texts(20, 1), random_texts(20, 2)
    group = bleu_statistics(reports, references)
    weights = np.random.default_rng(7).multinomial(20, np.full(20, 1 / 20), size=5)
    sums = bootstrap_sums(group.values, resamples=5, seed=7)
    for index, counts in enumerate(weights):
        drawn = np.repeat(np.arange(20), counts)
        again = bleu_statistics([reports[i] for i in drawn], [references[i] for i in drawn]).corpus()
        for name, values in group.score(sums).items():
            assert values[index] == pytest.approx(again[name], abs=1e-12)


def test_interval_agrees_with_scipy() -> None:
    group = ratio_statistics(3)
    low, high = bootstrap_intervals([group], resamples=4000, seed=1)["ratio"]
    expected = stats.bootstrap(
        (group.values[:, 0], group.values[:, 1]),
        lambda hits, total, axis: hits.sum(axis) / total.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert low == pytest.approx(expected.low, abs=0.006)
    assert high == pytest.approx(expected.high, abs=0.006)
    assert low < group.corpus()["ratio"] < high


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        low, high = bootstrap_intervals([ratio_statistics(seed)], resamples=200, seed=seed)["ratio"]
        covered += low <= 0.6 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_all_groups_share_the_resamples_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(30, 1))
    whole = bootstrap_sums(values, resamples=50, seed=3)
    twice = bootstrap_sums(np.hstack([values, 2 * values]), resamples=50, seed=3)
    assert np.allclose(twice[:, 1], 2 * whole[:, 0])
    monkeypatch.setattr(significance, "_BLOCK_CELLS", 30 * 7)
    assert np.allclose(bootstrap_sums(values, resamples=50, seed=3), whole)


def test_identical_systems_do_not_differ() -> None:
    group = ratio_statistics(4)
    comparison = compare_statistics([group], [group], resamples=200, permutations=200)["ratio"]
    assert comparison.difference == comparison.low == comparison.high == 0.0
    assert comparison.p_permutation == 1.0 and comparison.p_bootstrap == 1.0


def test_clear_difference_is_found_and_signed() -> None:
    rng = np.random.default_rng(5)
    worse = rng.uniform(0, 1, size=80)
    first, second = mean_statistics({"score": worse}), mean_statistics({"score": worse + 0.1})
    comparison = compare_statistics([first], [second], resamples=500, permutations=500)["score"]
    assert comparison.difference == pytest.approx(0.1)
    assert comparison.low == pytest.approx(0.1) and comparison.high == pytest.approx(0.1)
    assert comparison.p_permutation == pytest.approx(1 / 501) and comparison.p_bootstrap < 0.01
    back = compare_statistics([second], [first], resamples=500, permutations=500)["score"]
    assert back.difference == pytest.approx(-0.1)


def test_permutation_p_value_equals_full_enumeration() -> None:
    rng = np.random.default_rng(6)
    one, two = rng.normal(size=8), rng.normal(0.5, size=8)
    signs = np.array(np.meshgrid(*[[-1, 1]] * 8)).reshape(8, -1).T
    exact = np.mean(np.abs(signs @ (two - one)) >= abs((two - one).sum()) - 1e-12)
    comparison = compare_statistics(
        [mean_statistics({"x": one})], [mean_statistics({"x": two})], resamples=20, permutations=20_000
    )["x"]
    assert comparison.p_permutation == pytest.approx(exact, abs=0.015)


def test_p_values_are_uniform_without_a_difference() -> None:
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        groups = [mean_statistics({"x": rng.normal(size=25)}) for _ in range(2)]
        rejected += (
            compare_statistics(groups[:1], groups[1:], resamples=20, permutations=99)["x"].p_permutation <= 0.05
        )
    assert rejected / 200 < 0.11


def test_thousand_resamples_of_a_test_split_take_seconds() -> None:
    group = bleu_statistics(random_texts(600, 8), random_texts(600, 9))
    start = time.perf_counter()
    bootstrap_intervals([group], resamples=1000)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(("resamples", "confidence"), [(5, 0.95), (-1, 0.95), (100, 0.0), (100, 95)])
def test_settings_that_make_no_interval(resamples: int, confidence: float) -> None:
    with pytest.raises(ConfigError):
        bootstrap_intervals([ratio_statistics(0)], resamples=resamples, confidence=confidence)


def test_studies_without_a_score_are_left_out_of_both_tests() -> None:
    rng = np.random.default_rng(2)
    worse = rng.uniform(0, 1, size=60)
    better = worse + 0.2
    worse[:5] = better[50:] = np.nan
    first, second = (optional_mean_statistics({"x": values}) for values in (worse, better))
    entry = compare_statistics([first], [second], resamples=300, permutations=300)["x"]
    assert entry.first == pytest.approx(np.nanmean(worse)) and entry.p_permutation < 0.05 and entry.low > 0
    none = optional_mean_statistics({"x": np.full(60, np.nan)})
    entry = compare_statistics([first], [none], resamples=20, permutations=20)["x"]
    assert all(math.isnan(value) for value in (entry.second, entry.difference, entry.low, entry.p_permutation))
    assert all(map(math.isnan, bootstrap_intervals([none], resamples=20)["x"]))


def test_statistics_on_disk_give_the_same_bits() -> None:
    class Rows:
        """Rows that only hand out slices, as those of shards do."""

        def __init__(self, values: np.ndarray) -> None:
            self.values, self.shape = values, values.shape

        def __len__(self) -> int:
            return len(self.values)

        def __getitem__(self, rows: slice) -> np.ndarray:
            return self.values[rows].copy()

    rng = np.random.default_rng(0)
    groups = [mean_statistics({"x": rng.normal(size=20_000)}), mean_statistics({"x": rng.normal(size=20_000)})]
    stored: list[StudyStatistics] = [StudyStatistics(Rows(group.values), group.score) for group in groups]  # type: ignore[arg-type]
    assert stored[0].corpus() == groups[0].corpus()
    settings = {"resamples": 20, "permutations": 20}
    assert compare_statistics(stored[:1], stored[1:], **settings) == compare_statistics(
        groups[:1], groups[1:], **settings
    )


def test_systems_on_different_studies_are_refused() -> None:
    with pytest.raises(DataError, match="same studies"):
        compare_statistics([ratio_statistics(0)], [ratio_statistics(0, n=59)])
    with pytest.raises(DataError, match="1 and 0 groups"):
        compare_statistics([ratio_statistics(0)], [])
    with pytest.raises(ConfigError, match="at least 20"):
        compare_statistics([ratio_statistics(0)], [ratio_statistics(1)], resamples=0)
