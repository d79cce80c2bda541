"""`rrg page` with a LEAD model: experts and gates in the cases, their scores in the numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.data.phantom import phantom_splits
from rrg_hf.data.store import save_studies
from rrg_hf.errors import ConfigError
from tests.lead_model import make_lead_model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_studies(phantom_splits({"train": 2, "test": 5}, size=64), tmp_path_factory.mktemp("page") / "phantom")


def test_a_lead_page_shows_its_experts(data: Path, tmp_path: Path) -> None:
    make_lead_model(tmp_path / "lead")
    output = tmp_path / "page.html"
    arguments = ["page", "--device", "cpu", "--model", tmp_path / "lead", "--data", data, "-o", output]
    arguments += ["--cases", 2, "--evidence", 0, "--bootstrap", 20, "--max-new-tokens", 8, "--label-source", "study"]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    html = output.read_text()
    assert html.count("Expert probabilities</summary>") == 2 and 'id="experts"' in html
    numbers = json.loads(output.with_suffix(".json").read_text())
    assert numbers["experts"]["n"] == numbers["result"]["n"] == 5
    assert numbers["experts"]["protocol"]["label_source"] == "study"


def test_a_wrong_source_of_labels_is_refused_first(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="label_source is 'radgraph'"):
        arguments = ["page", "-d", str(data), "-m", str(tmp_path), "--label-source", "radgraph"]
        CliRunner().invoke(app, arguments, catch_exceptions=False)
