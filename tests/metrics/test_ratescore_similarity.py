"""Cosines of entity names."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from rrg_hf.metrics.ratescore_similarity import EncoderSimilarity, NgramSimilarity
from rrg_hf.metrics.reading import TextReader


class Table(TextReader[np.ndarray]):
    """Vectors by name, in place of an encoder."""

    name, revision, model_name = "table", "1", "table"

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        super().__init__()
        self.vectors = vectors
        self.read: list[str] = []

    def read_batch(self, texts: list[str]) -> list[np.ndarray]:
        self.read += texts
        return [np.asarray(self.vectors[text], dtype=np.float32) for text in texts]


def test_cosines_are_exact_for_any_scale_and_each_name_is_encoded_once() -> None:
    table = Table({"a": [3, 4], "b": [0, 1e-30], "c": [1e30, 1e30], "zero": [0, 0]})
    pairs = [(["a", "b", "a"], ["c", "zero"]), (["b"], ["b"]), ([], ["a"]), (["a"], [])]
    found = list(EncoderSimilarity(table).cosines(pairs))  # type: ignore[arg-type]
    half = math.sqrt(0.5)
    np.testing.assert_allclose(found[0], [[1.4 * half, 0], [half, 0], [1.4 * half, 0]], rtol=1e-6)
    assert found[1] == pytest.approx(np.ones((1, 1)))
    assert found[2].shape == (0, 1) and found[3].shape == (1, 0)
    assert sorted(table.read) == ["a", "b", "c", "zero"]


def test_many_pairs_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table({str(index): [math.cos(index), math.sin(index)] for index in range(40)})
    pairs = [([str(index % 40)], [str((3 * index) % 40)]) for index in range(100)]
    whole = [values.item() for values in EncoderSimilarity(table).cosines(pairs)]  # type: ignore[arg-type]
    monkeypatch.setattr("rrg_hf.metrics.ratescore_similarity._PAIRS_AT_ONCE", 7)
    parts = [values.item() for values in EncoderSimilarity(table).cosines(pairs)]  # type: ignore[arg-type]
    assert parts == pytest.approx(whole, abs=1e-12)


def test_ngrams_agree_with_counting_them() -> None:
    def grams(text: str) -> Counter[str]:
        padded = f" {text} "
        return Counter("".join(islice(padded, start, start + 3)) for start in range(len(padded) - 2))

    def cosine(first: str, second: str) -> float:
        left, right = grams(first), grams(second)
        product = sum(left[gram] * right[gram] for gram in left)
        return product / math.sqrt(sum(n * n for n in left.values()) * sum(n * n for n in right.values()))

    first, second = ["pleural effusion", "edema", "a"], ["effusion", "edema", "pleural thickening", "b", "aaaa"]
    (found,) = NgramSimilarity().cosines([(first, second)])
    expected = [[cosine(left, right) for right in second] for left in first]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert found[1, 1] == 1.0 and 0 < found[0, 0] < 1 and found[2, 3] == 0


def test_ngrams_ignore_case_and_blanks() -> None:
    pairs = [(["Left  Lung", "", "x"], ["left lung", "", "xy"])]
    (found,) = NgramSimilarity().cosines(pairs)
    assert found[0, 0] == pytest.approx(1.0) and found[1, 1] == 1.0 and np.isfinite(found).all()
