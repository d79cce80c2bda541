"""The published RaTEScore networks on their authors' example; it runs where `rrg metrics prepare ratescore` has run.

The authors state no score, so this checks what any score of these pairs must show.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rrg_hf.errors import RrgError
from rrg_hf.metrics.ratescore import RaTEReader, RaTEScore

pytestmark = pytest.mark.hub


@pytest.fixture(scope="module")
def scorer() -> RaTEScore:
    try:
        return RaTEScore(RaTEReader())
    except RrgError as error:
        pytest.skip(f"the published weights are not here: {error}")


def test_example_of_the_authors(scorer: RaTEScore, shared_dir: Path) -> None:
    content = json.loads((shared_dir / "cases" / "metric_golden.json").read_text())
    (case,) = [case for case in content["cases"] if case["metric"] == "ratescore"]
    reports, references = case["inputs"]["hyps"], case["inputs"]["refs"]
    scores = scorer.compute(reports, references, per_sample=True)
    swapped = scorer.compute(reports, references[::-1], per_sample=True)
    assert scores["ratescore_without_entities"] == 0
    for own, other in zip(scores["per_sample"]["ratescore"], swapped["per_sample"]["ratescore"], strict=True):
        assert 0.5 < own <= 1.0 and own > other
    equal = scorer.compute(references, references, per_sample=True)["per_sample"]["ratescore"]
    assert equal == pytest.approx([1.0] * len(references), abs=1e-3)
