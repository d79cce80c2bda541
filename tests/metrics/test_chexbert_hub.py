"""Published label rows that need the published CheXbert weights; run where `rrg metrics prepare chexbert` has run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rrg_hf.errors import RrgError
from rrg_hf.metrics.chexbert import CheXbertF1, CheXbertReader
from rrg_hf.observations import STATE_TO_CHEXPERT, LabelState

pytestmark = pytest.mark.hub


@pytest.fixture(scope="module")
def scorer() -> CheXbertF1:
    try:
        return CheXbertF1(CheXbertReader())
    except RrgError as error:
        pytest.skip(f"the published weights are not here: {error}")


def cases(shared_dir: Path, metric: str) -> list[dict]:
    content = json.loads((shared_dir / "cases" / "metric_golden.json").read_text())
    return [case for case in content["cases"] if case["metric"] == metric]


def test_published_rows(scorer: CheXbertF1, shared_dir: Path) -> None:
    for case in cases(shared_dir, "chexbert_labels_4class"):
        (labels,) = scorer.labels([case["inputs"]["report"]])
        assert {name: STATE_TO_CHEXPERT[LabelState(state)] for name, state in labels.items()} == case["expected"]


def test_probe_sentences(scorer: CheXbertF1, shared_dir: Path) -> None:
    probes = cases(shared_dir, "chexbert_label_contains")
    assert probes
    for case in probes:
        (labels,) = scorer.labels([case["inputs"]["report"]])
        assert labels[case["expected"]["positive_includes"]] == LabelState.POSITIVE, case["inputs"]["report"]
