from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rrg_hf.evaluation import cider_frequencies
from rrg_hf.evaluation.cider_frequencies import CiderFrequencies, count_documents, merge_counts
from rrg_hf.metrics.nlg import cider_per_study


def tokens(n: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[f"w{word}" for word in rng.integers(0, 9, size=rng.integers(0, 12))] for _ in range(n)]


def frequencies(folder: Path, references: list[list[str]], size: int) -> CiderFrequencies:
    parts = []
    for start in range(0, len(references), size):
        parts.append(folder / f"{start}.npy")
        np.save(parts[-1], count_documents(references[start : start + size]))
    merge_counts(parts, folder / "all.bin")
    return CiderFrequencies(folder / "all.bin", len(references))


@pytest.mark.parametrize("block", [1 << 18, 7])
def test_cider_of_the_parts_is_cider_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(cider_frequencies, "_BLOCK", block)
    hypotheses, references = tokens(120, 1), tokens(120, 2)
    whole = cider_per_study(hypotheses, references)
    counted = frequencies(tmp_path, references, 37)
    parts = [counted.per_study(hypotheses[i : i + 50], references[i : i + 50]) for i in range(0, 120, 50)]
    assert np.concatenate(parts).tolist() == whole.tolist() and whole.max() > 1


def test_counts_are_the_document_frequencies(tmp_path: Path) -> None:
    references = tokens(60, 3)
    expected: Counter[tuple[str, ...]] = Counter()
    for words in references:
        expected.update({tuple(words[i : i + n]) for n in (1, 2, 3, 4) for i in range(len(words) - n + 1)})
    counted = frequencies(tmp_path, references, 11)
    assert counted.lookup(list(expected)) == expected
    assert counted.lookup([("absent",), ("w1", "absent")]) == {("absent",): 0.0, ("w1", "absent"): 0.0}


def test_references_without_words(tmp_path: Path) -> None:
    counted = frequencies(tmp_path, [[], [], []], 2)
    assert counted.per_study([["a"], [], ["b"]], [[], [], []]).tolist() == [0.0, 0.0, 0.0]
