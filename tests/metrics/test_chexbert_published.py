"""The reader and the scores against the published f1chexbert on one random checkpoint in its own layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.metrics.chexbert import CheXbertF1, CheXbertReader
from rrg_hf.metrics.observation_scores import label_targets
from rrg_hf.modeling.chexbert import convert_chexbert
from rrg_hf.observations import OBSERVATIONS, STATE_TO_CHEXPERT, LabelState
from tests.tiny_chexbert import make_checkpoint, make_tokenizer


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """See "made_with" in the file."""
    return json.loads((Path(__file__).parent / "data" / "chexbert_expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def texts(expected: dict[str, Any]) -> list[str]:
    return [
        text if isinstance(text, str) else (text[0] * (1 + text[1] // len(text[0])))[: text[1]]
        for text in expected["texts"]
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("published")
    tokenizer = make_tokenizer(scratch / "bert-base-uncased")
    return convert_chexbert(make_checkpoint(scratch / "chexbert.pth"), tokenizer, scratch / "converted")


@pytest.mark.parametrize("batch_size", [1, 64])
def test_labels_and_vectors(expected: dict[str, Any], texts: list[str], folder: Path, batch_size: int) -> None:
    assert max(map(len, texts)) == 10_000 and "" in texts
    reader = CheXbertReader(folder, batch_size=batch_size)
    scorer = CheXbertF1(reader)
    labels = scorer.labels(texts)
    codes = [
        ["" if (code := STATE_TO_CHEXPERT[row[name]]) is None else code for name in OBSERVATIONS] for row in labels
    ]
    assert codes == expected["classification"]
    binary = label_targets(labels, "uncertain_as_positive")
    assert ["".join(map(str, row)) for row in binary] == expected["rrg"]
    seen = {state for row in labels for state in row.values()}
    assert seen == set(LabelState), "the checkpoint is meant to give all four states"
    assert reader.lengths(texts) == [row[0] for row in expected["cls"]]
    for reading, (_, norm, *values) in zip(reader(texts), expected["cls"], strict=True):
        assert reading["cls"] is not None
        np.testing.assert_allclose(reading["cls"][: len(values)], values, atol=2e-4)
        assert np.linalg.norm(reading["cls"]) == pytest.approx(norm, abs=1e-3)


def test_scores(expected: dict[str, Any], texts: list[str], folder: Path) -> None:
    predictions = [texts[index] for index, _ in expected["pairs"]]
    references = [texts[index] for _, index in expected["pairs"]]
    scorer = CheXbertF1(CheXbertReader(folder), policy="uncertain_as_positive", zero_division=0.0)
    result = scorer.compute(predictions, references, per_sample=True)
    for suffix, report in (("", expected["report"]), ("_top5", expected["report_top5"])):
        for average in ("micro", "macro", "weighted", "samples"):
            for name in ("precision", "recall", "f1"):
                value = report[f"{average} avg"]["f1-score" if name == "f1" else name]
                assert result[f"chexbert_{average}_{name}{suffix}"] == pytest.approx(value, abs=1e-12)
    for name in OBSERVATIONS:
        row = result["observations"][name]
        published = expected["report"][name]
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(
            (published["precision"], published["recall"], published["f1-score"]), abs=1e-12
        )
        assert row["support"] == published["support"]
    # what f1chexbert calls accuracy
    assert result["chexbert_exact_match_top5"] == pytest.approx(expected["accuracy"], abs=1e-12)
    assert result["per_sample"]["chexbert_exact_match_top5"] == expected["per_pair"]
    assert {len(values) for values in result["per_sample"].values()} == {len(references)}
