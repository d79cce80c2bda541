"""AUROC against sklearn and against counting pairs, with ties and with weights."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rrg_hf.metrics.auroc import RankedScores


def by_pairs(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> float:
    won = total = 0.0
    for i in np.flatnonzero(positive):
        for j in np.flatnonzero(~positive):
            pair = weights[i] * weights[j]
            won += pair * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
            total += pair
    return won / total


@pytest.mark.parametrize("levels", [3, 7, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_equals_sklearn_and_pairs_with_ties(levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, 60) / levels
    positive = rng.random(60) < 0.3
    ranked = RankedScores.of(scores, positive)
    once = np.ones((1, 60))
    assert ranked.auroc(once) == pytest.approx([roc_auc_score(positive, scores)], abs=1e-12)
    weights = rng.multinomial(60, [1 / 60] * 60, size=5).astype(float)
    expected = [roc_auc_score(positive, scores, sample_weight=row) for row in weights]
    assert ranked.auroc(weights) == pytest.approx(expected, abs=1e-12)
    assert ranked.auroc(weights) == pytest.approx([by_pairs(scores, positive, row) for row in weights], abs=1e-12)


def test_entries_of_one_study_share_its_weight() -> None:
    scores, positive = np.array([0.9, 0.2, 0.4, 0.7]), np.array([True, False, True, False])
    ranked = RankedScores.of(scores, positive, studies=np.array([0, 0, 1, 1]))
    weights = np.array([[2.0, 1.0], [0.0, 3.0]])
    expected = [by_pairs(scores, positive, np.array([a, a, b, b])) for a, b in weights]
    assert ranked.auroc(weights) == pytest.approx(expected)


def test_order_of_the_entries_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    scores, positive = rng.integers(0, 9, 40) / 9, rng.random(40) < 0.5
    shuffled = rng.permutation(40)
    once = np.ones((1, 40))
    there, moved = RankedScores.of(scores, positive), RankedScores.of(scores[shuffled], positive[shuffled])
    assert there.auroc(once) == moved.auroc(once)


@pytest.mark.parametrize("positive", [np.ones(4, bool), np.zeros(4, bool), np.zeros(0, bool)])
def test_one_state_has_no_auroc(positive: np.ndarray) -> None:
    ranked = RankedScores.of(np.linspace(0, 1, len(positive)), positive)
    assert not ranked.both_states
    assert np.isnan(ranked.auroc(np.ones((3, len(positive))))).all()


def test_a_resample_without_one_state_has_none_either() -> None:
    ranked = RankedScores.of(np.array([0.1, 0.9]), np.array([False, True]))
    found = ranked.auroc(np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]]))
    assert found[0] == 1.0 and np.isnan(found[1:]).all()
