"""How alike two entity names are: cosine of encoder vectors, or of character n-grams where no weights are at hand."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .ratescore_networks import NAME_LENGTH, EntityNameEncoder

NamePairs = Sequence[tuple[Sequence[str], Sequence[str]]]

_PAIRS_AT_ONCE = 1024  # bounds how many vectors are held


class NameSimilarity(ABC):
    """Cosines between the entity names of two reports."""

    @abstractmethod
    def cosines(self, pairs: NamePairs) -> Iterator[np.ndarray]:
        """One float64 (n, m) array in [-1, 1] for each pair of n and m names, in order."""

    @abstractmethod
    def protocol(self) -> dict[str, Any]:
        """What must be equal before scores may be compared."""


class EncoderSimilarity(NameSimilarity):
    """Cosine of the vectors of an encoder; each distinct name is encoded once.

    Args:
        encoder: default: published BioLORD from the Hub.
    """

    def __init__(self, encoder: EntityNameEncoder | None = None) -> None:
        self.encoder = EntityNameEncoder() if encoder is None else encoder

    def cosines(self, pairs: NamePairs) -> Iterator[np.ndarray]:
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            chunk = pairs[start : start + _PAIRS_AT_ONCE]
            names = list(dict.fromkeys(name for pair in chunk for side in pair for name in side))
            rows = {name: index for index, name in enumerate(names)}
            vectors = np.array([_unit(vector) for vector in self.encoder(names)])
            for first, second in chunk:
                left, right = ([rows[name] for name in side] for side in (first, second))
                if not left or not right:
                    yield np.zeros((len(left), len(right)))
                    continue
                yield np.clip(vectors[left] @ vectors[right].T, -1.0, 1.0)

    def protocol(self) -> dict[str, Any]:
        return {
            "name": self.encoder.name,
            "model": self.encoder.model_name,
            "revision": self.encoder.revision,
            "rule": f"cosine of the first token's last hidden state, names cut to {NAME_LENGTH} tokens",
        }


class NgramSimilarity(NameSimilarity):
    """Cosine of character 3-gram counts, lower case, with a blank before and behind the name. No encoder."""

    def cosines(self, pairs: NamePairs) -> Iterator[np.ndarray]:
        for first, second in pairs:
            rows = [[_ngram_cosine(left, right) for right in second] for left in first]
            yield np.array(rows, dtype=float).reshape(len(first), len(second))

    def protocol(self) -> dict[str, Any]:
        return {"name": "character 3-grams", "rule": "cosine of counts, lower case; stands in for the encoder"}


def _unit(vector: np.ndarray) -> np.ndarray:
    vector = np.asarray(vector, dtype=np.float64)
    largest = np.abs(vector).max(initial=0.0)
    if largest == 0.0:
        return vector
    vector = vector / largest  # so that squares neither overflow nor vanish
    return vector / np.linalg.norm(vector)


@lru_cache(maxsize=50_000)
def _ngrams(name: str) -> tuple[Counter[str], float]:
    text = f" {' '.join(name.lower().split())} "
    counts = Counter(text[index : index + 3] for index in range(max(1, len(text) - 2)))
    return counts, math.sqrt(sum(count * count for count in counts.values()))


@lru_cache(maxsize=200_000)
def _ngram_cosine(first: str, second: str) -> float:
    if first == second:
        return 1.0
    (left, left_norm), (right, right_norm) = _ngrams(first), _ngrams(second)
    return min(1.0, sum(count * right[gram] for gram, count in left.items()) / (left_norm * right_norm))
