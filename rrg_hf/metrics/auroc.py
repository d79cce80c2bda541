"""Area under the ROC curve, for many weightings of the studies: what bootstrapping it needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .statistics import divide


@dataclass(frozen=True)
class RankedScores:
    """Scored entries, each of a study. Sorted once, for any number of resamples.

    Attributes:
        positives: (P,) the study (row of the weights) of each positive entry.
        negatives: (M,) the same of each negative entry, ascending by score.
        below: (P,) how many negative entries score below each positive one.
        until: (P,) how many score below it or as high.
    """

    positives: np.ndarray
    negatives: np.ndarray
    below: np.ndarray
    until: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, positive: np.ndarray, studies: np.ndarray | None = None) -> RankedScores:
        """Sort entries.

        Args:
            scores: (N,) finite, higher where the state is likelier to be positive.
            positive: (N,) bool.
            studies: (N,) row of each entry in the weights; by default every entry is a study of its own.
        """
        if studies is None:
            studies = np.arange(len(scores))
        high, low = scores[positive], scores[~positive]
        order = np.argsort(low, kind="stable")
        ranked = low[order]
        return cls(
            positives=studies[positive],
            negatives=studies[~positive][order],
            below=np.searchsorted(ranked, high, side="left"),
            until=np.searchsorted(ranked, high, side="right"),
        )

    @property
    def both_states(self) -> bool:
        """Whether there are positive and negative entries, without which there is no AUROC."""
        return len(self.positives) > 0 and len(self.negatives) > 0

    def auroc(self, weights: np.ndarray) -> np.ndarray:
        """The probability that a positive entry scores above a negative one, equal scores counting half.

        Args:
            weights: (B, studies), how often each study counts in each of B resamples.

        Returns:
            (B,), NaN where one of the two states is missing.
        """
        won, pairs = np.zeros(len(weights)), np.zeros(len(weights))
        lighter = np.zeros(len(self.negatives) + 1)  # weight of the lowest negatives, by their number
        for row, counts in enumerate(weights):
            np.cumsum(counts[self.negatives], out=lighter[1:])
            mine = counts[self.positives].astype(float)
            # Mann and Whitney: the pairs that the positive entry wins, and half of those that are equal.
            won[row] = mine @ (lighter[self.below] + lighter[self.until]) / 2
            pairs[row] = mine.sum() * lighter[-1]
        return divide(won, pairs, float("nan"))
