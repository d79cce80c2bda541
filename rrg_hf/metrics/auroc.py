"""Area under the ROC curve, for many weightings of the studies at once: what bootstrapping it needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .statistics import divide


@dataclass(frozen=True)
class RankedScores:
    """Scored entries in ascending order, each of a study. Sorted once, for any number of resamples.

    Attributes:
        studies: (M,) the study (row) of each entry.
        positive: (M,) bool, its true state.
        starts: (G,) where each run of equal scores starts.
    """

    studies: np.ndarray
    positive: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, positive: np.ndarray, studies: np.ndarray | None = None) -> RankedScores:
        """Sort entries.

        Args:
            scores: (M,) finite, higher where the state is likelier to be positive.
            positive: (M,) bool.
            studies: (M,) row of each entry in the weights; by default every entry is a study of its own.
        """
        order = np.argsort(scores, kind="stable")
        ranked = scores[order]
        starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]])) if len(ranked) else order
        return cls(order if studies is None else studies[order], positive[order], starts)

    @property
    def both_states(self) -> bool:
        """Whether there are positive and negative entries, without which there is no AUROC."""
        return bool(self.positive.any() and not self.positive.all())

    def auroc(self, weights: np.ndarray | None = None) -> np.ndarray | float:
        """The probability that a positive entry scores above a negative one, equal scores counting half.

        Args:
            weights: (B, N), how often each study counts in each of B resamples; None: every entry once.

        Returns:
            (B,), or a number without weights. NaN where one of the two states is missing.
        """
        if not self.both_states:
            return float("nan") if weights is None else np.full(len(weights), np.nan)
        counted = np.ones((1, len(self.studies))) if weights is None else weights[:, self.studies].astype(float)
        # Mann and Whitney: pairs won by the positive, run of equal scores by run.
        positive = np.add.reduceat(counted * self.positive, self.starts, axis=1)
        negative = np.add.reduceat(counted * ~self.positive, self.starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative
        won = (positive * (below + negative / 2)).sum(axis=1)
        areas = divide(won, positive.sum(axis=1) * negative.sum(axis=1), float("nan"))
        return float(areas[0]) if weights is None else areas
