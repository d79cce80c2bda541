"""The radgraph_f1 module of `evaluate`: from its folder, from a copy of it, combined with others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.modeling.radgraph import convert_radgraph
from tests.tiny_radgraph import SHAPES, make_archive, texts

evaluate = pytest.importorskip("evaluate")

FOLDER = Path(__file__).parents[3] / "rrg_hf" / "metrics" / "radgraph_f1"
PAIR = {"predictions": ["No effusion. Mild edema.", ""], "references": ["No effusion.", "No effusion."]}


def test_rules(tmp_path: Path) -> None:
    metric = evaluate.load(str(FOLDER), backend="rules", keep_in_memory=True)
    scores = metric.compute(**PAIR, per_sample=True)
    assert scores["rules_radgraph_partial"] == pytest.approx(sum(scores["per_sample"]["rules_radgraph_partial"]) / 2)
    assert 0 < scores["rules_radgraph_partial"] < 0.5
    assert (metric.primary_key, metric.higher_is_better) == ("rules_radgraph_partial", True)
    assert "not a medical device" in metric.info.description
    copied = shutil.copytree(FOLDER, tmp_path / "elsewhere" / "radgraph_f1")
    again = evaluate.load(str(copied), "rules", keep_in_memory=True).compute(**PAIR)
    assert again["rules_radgraph_partial"] == scores["rules_radgraph_partial"]


def test_network(tmp_path: Path) -> None:
    model = convert_radgraph(*make_archive(tmp_path, SHAPES["v1"]), tmp_path / "converted")
    metric = evaluate.load(str(FOLDER), backend="radgraph", model=str(model), device="cpu", keep_in_memory=True)
    scores = metric.compute(predictions=texts()[5:8], references=texts()[5:8])
    assert scores["radgraph_simple"] == 1.0 and scores["protocol"]["backend"] == "radgraph"


def test_combine() -> None:
    metric = evaluate.load(str(FOLDER), backend="rules", keep_in_memory=True)
    scores = evaluate.combine([metric, metric]).compute(**PAIR)
    partial = [value for name, value in scores.items() if name.endswith("rules_radgraph_partial")]
    assert len(partial) == 2 and partial[0] == partial[1] > 0


def test_settings_fail_at_load() -> None:
    with pytest.raises(ConfigError, match="Unknown backend"):
        evaluate.load(str(FOLDER), backend="radgraph-1")
    with pytest.raises(ConfigError, match="differ"):
        evaluate.load(str(FOLDER), "rules", backend="radgraph")


def test_folder_is_complete() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == {
        "README.md", "app.py", "radgraph_f1.py", "requirements.txt",
    }  # fmt: skip
    card = (FOLDER / "README.md").read_text()
    for heading in ("## Description", "## Inputs", "## Output values", "## Limits", "## Citation"):
        assert heading in card
    assert len((FOLDER / "radgraph_f1.py").read_text().splitlines()) < 200
