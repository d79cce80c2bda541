from __future__ import annotations

import numpy as np
import pytest

from rrg_hf.metrics.statistics import cosine, divide, mean_statistics


def test_divide_uses_the_given_value_for_zero_over_zero() -> None:
    assert divide(np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 0.0]), 0.25).tolist() == [0.5, 0.25, 0.25]


def test_mean_statistics_give_the_mean_of_the_corpus_and_each_study_alone() -> None:
    group = mean_statistics({"a": np.array([1.0, 2.0, 6.0]), "b": np.array([0.0, 0.0, 3.0])})
    assert group.corpus() == {"a": 3.0, "b": 1.0}
    assert group.per_study()["a"].tolist() == [1.0, 2.0, 6.0]
    # a resample that draws study 2 twice and study 0 once
    sums = np.array([[1, 0, 2]]) @ group.values
    assert np.allclose(group.score(sums)["a"], 13 / 3)


def test_cosine() -> None:
    assert cosine(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == pytest.approx(1.0)
    assert cosine(np.array([1.0, 0.0]), np.array([-3.0, 0.0])) == pytest.approx(-1.0)
    assert cosine(np.zeros(2), np.ones(2)) == 0.0
