"""RadCliQ with the published weights: values that users of RadEval reported (its issue 5).

Needs `rrg metrics prepare radgraph`, `rrg metrics prepare chexbert` and distilroberta-base in the Hub cache.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rrg_hf.errors import RrgError
from rrg_hf.metrics.radcliq import RadCliQ, load_radcliq

pytestmark = pytest.mark.hub


@pytest.fixture(scope="module")
def radcliq() -> RadCliQ:
    try:
        return load_radcliq(reciprocal=True)
    except RrgError as error:
        pytest.skip(str(error))


def test_reported_reciprocals(radcliq: RadCliQ, shared_dir: Path) -> None:
    content = json.loads((shared_dir / "cases" / "metric_golden.json").read_text())
    cases = [case for case in content["cases"] if case["metric"] == "radcliq_v1_reciprocal"]
    assert len(cases) == 3
    for case in cases:
        result = radcliq.compute(case["inputs"]["hyps"], case["inputs"]["refs"])
        assert result["radcliq_v1_reciprocal"] == pytest.approx(case["expected"]["value"], abs=case["tol"])


def test_equal_reports_without_relations(radcliq: RadCliQ) -> None:
    result = radcliq.compute(["Cardiomegaly."], ["Cardiomegaly."])
    assert result["radcliq_radgraph_combined"] == 0.5
    assert result["radcliq_v1"] == pytest.approx(-0.81808, abs=1e-4)
