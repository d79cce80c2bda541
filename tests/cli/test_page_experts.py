"""`rrg page` with a LEAD model: experts and gates in the cases, their scores in the numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.data.phantom import phantom_splits
from rrg_hf.data.store import load_studies, save_studies
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


def test_evidence_and_maps_are_of_what_the_model_reads(data: Path, tmp_path: Path) -> None:
    """An indication's placeholders reach neither the reports nor what explains them."""
    from PIL import Image

    from rrg_hf.cli.page import _as_the_model_reads
    from rrg_hf.evaluation import evidence_test
    from rrg_hf.pipeline import ReportGenerationPipeline

    model, processor = make_lead_model(tmp_path / "lead", expert_prompting=True)
    pipeline = ReportGenerationPipeline(model, processor, device="cpu", max_new_tokens=8, indication="Cough.")
    seen: list[str | None] = []
    look = _as_the_model_reads(lambda image, report, indication: seen.append(indication), pipeline)
    for indication in ("___ year old.\nPain", None, "XXXX"):
        look(Image.new("L", (64, 64)), "Clear.", indication)
    assert seen == ["year old. Pain", "Cough.", "Cough."]

    rows = load_studies(data, "test")
    tested = evidence_test(pipeline.write_studies, rows, section="findings", bootstrap=20, seed=0, batch_size=4)
    assert tested.n == 5 and tested.mask_kind == "dataset"
    shares = {name: entry["changed_share"] for name, entry in tested.regions.items()}
    assert {"left lung", "right lung", "cardiac silhouette", "background"} <= set(shares)
    assert max(shares.values()) > 0  # covering a part changes what is written
