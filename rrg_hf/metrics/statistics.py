"""Per-study sufficient statistics: what makes bootstrap and permutation tests of corpus-level scores cheap.

BLEU, micro-F1 and their like are no means over studies: they are functions of sums over studies. Keeping the summands
lets a resample be one matrix product instead of a new evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

ScoreFunction = Callable[[np.ndarray], dict[str, np.ndarray]]

# Sums run over blocks of so many studies, wherever the rows are kept: statistics on disk give bit for bit the scores
# of statistics in memory.
BLOCK_ROWS = 8192


class StudyRows(Protocol):
    """What `StudyStatistics.values` must offer: an array does, and so do rows that stay on disk."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


def column_sums(values: StudyRows) -> np.ndarray:
    """Sums over the studies, (K,), block by block."""
    total = np.zeros(values.shape[1])
    for start in range(0, len(values), BLOCK_ROWS):
        total = total + np.asarray(values[start : start + BLOCK_ROWS]).sum(axis=0)
    return total


@dataclass(frozen=True)
class StudyStatistics:
    """Numbers of each study whose sums over the studies determine one or more scores.

    Attributes:
        values: float64 (N, K), one row per study.
        score: maps sums (..., K) to score name -> values (...); one study's row gives that study's own score.
    """

    values: np.ndarray
    score: ScoreFunction

    def corpus(self) -> dict[str, float]:
        """Scores of all studies together."""
        return {name: float(value) for name, value in self.score(column_sums(self.values)).items()}

    def per_study(self) -> dict[str, np.ndarray]:
        """Scores of each study alone, (N,) per name."""
        return self.score(self.values)


def divide(numerator: np.ndarray, denominator: np.ndarray, otherwise: float = 0.0) -> np.ndarray:
    """Elementwise quotient, `otherwise` where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(np.asarray(numerator, float), np.asarray(denominator, float))
    quotient = np.full(numerator.shape, float(otherwise))
    return np.divide(numerator, denominator, out=quotient, where=denominator != 0)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Cosine of two vectors; 0 if one of them is all zeros."""
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm else 0.0


def mean_statistics(scores: Mapping[str, np.ndarray]) -> StudyStatistics:
    """Statistics of scores that are plain means over studies.

    Args:
        scores: score name to the per-study scores, (N,).
    """
    names = list(scores)
    columns = [np.asarray(scores[name], dtype=float) for name in names]
    values = np.stack([*columns, np.ones_like(columns[0])], axis=-1)

    def score(sums: np.ndarray) -> dict[str, np.ndarray]:
        return {name: divide(sums[..., index], sums[..., -1]) for index, name in enumerate(names)}

    return StudyStatistics(values, score)


def optional_mean_statistics(scores: Mapping[str, np.ndarray]) -> StudyStatistics:
    """Statistics of means over the studies that have the score; NaN marks a study without one.

    Args:
        scores: score name to the per-study scores, (N,), NaN where there is none.
    """
    names = list(scores)
    columns: list[np.ndarray] = []
    for name in names:
        column = np.asarray(scores[name], dtype=float)
        known = ~np.isnan(column)
        columns += [np.where(known, column, 0.0), known.astype(float)]

    def score(sums: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: divide(sums[..., 2 * index], sums[..., 2 * index + 1], float("nan"))
            for index, name in enumerate(names)
        }

    return StudyStatistics(np.stack(columns, axis=-1), score)
