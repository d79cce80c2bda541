"""`rrg experts`: one command from a checkpoint and a data set to the experts' scores."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.data.phantom import phantom_splits
from rrg_hf.data.store import save_studies
from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.evaluation import ExpertResult, score_experts
from rrg_hf.observations import OBSERVATIONS
from tests.lead_model import make_lead_model
from tests.report_model import make_report_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts") / "tiny"
    make_lead_model(path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = phantom_splits({"train": 2, "test": 8}, size=64)
    return save_studies(splits, tmp_path_factory.mktemp("experts") / "phantom")


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["experts", "--device", "cpu", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_experts_that_no_label_taught_are_named(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    make_lead_model(tmp_path / "vanilla", fusion="none", expert_loss_weight=0)
    for model, told in ((checkpoint, False), (tmp_path / "vanilla", True)):
        output = tmp_path / f"{model.name}.json"
        result = run(model, "--data", data, "--bootstrap", "0", "-o", output)
        assert ("expert_loss_weight is 0" in result.output) is told
        assert (ExpertResult.load(output).protocol["expert_loss_weight"] == 0) is told


def test_scores_and_probabilities_are_written(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    output, rows = tmp_path / "experts.json", tmp_path / "rows.jsonl"
    arguments = ("--label-source", "study", "--bootstrap", 30, "--probabilities", rows, "--batch-size", 3)
    result = run(checkpoint, "--data", data, "--split", "test", "-o", output, *map(str, arguments))
    assert result.exit_code == 0, result.output
    found = ExpertResult.load(output)
    assert found.n == 8 and tuple(found.observations) == OBSERVATIONS
    protocol = found.protocol
    assert (protocol["model"], protocol["split"], protocol["label_source"]) == ("tiny", "test", "study")
    assert protocol["revision"].startswith("sha256:") and protocol["phantom"] is True
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    again = score_experts(
        [list(line["probabilities"].values()) for line in lines],  # type: ignore[arg-type]
        [[-1 if label is None else label for label in line["labels"].values()] for line in lines],  # type: ignore[arg-type]
        OBSERVATIONS,
        bootstrap=30,
    )
    assert again.scores == found.scores
    assert f"{found.scores['macro_auroc']['value']:.3f}" in result.output
    assert "…" not in result.output, "the tables fit 80 columns"
    for name, reason in found.absent.items():
        assert f"{name} has no AUROC: {reason}." in " ".join(result.output.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experts.json", "rows.jsonl"]


def test_only_the_scores_by_default(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    result = run(checkpoint, "-d", data, "-o", tmp_path / "e.json", "--bootstrap", "0", "--threshold", "0.2")
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["e.json"]
    protocol = ExpertResult.load(tmp_path / "e.json").protocol
    assert protocol["label_source"] == "rules" and protocol["threshold"] == 0.2 and protocol["bootstrap"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--label-source": "radgraph"}, "label_source"),
        ({"--policy": "half"}, "policy"),
        ({"--threshold": "2"}, "threshold"),
        ({"--bootstrap": "3"}, "at least 20"),
        ({"--split": "dev"}, "no split 'dev'"),
        ({"--data": "/no/such/folder"}, "no such folder"),
        ({"model": "/no/such/model"}, "No report generation model"),
        ({"--device": "gpu"}, "is no device"),
        ({"--output": "."}, "is a folder"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(
    changes: dict[str, str], message: str, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    options = {"--data": str(data), "--output": str(tmp_path / "e.json")} | changes
    model = options.pop("model", str(checkpoint))
    with pytest.raises((ConfigError, DataError, CheckpointError), match=message):
        run(model, *(word for pair in options.items() for word in pair))
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_experts_is_refused(data: Path, tmp_path: Path) -> None:
    make_report_model(tmp_path / "palm")
    with pytest.raises(ConfigError, match="'palm' has no pathology experts"):
        run(tmp_path / "palm", "-d", data, "-o", tmp_path / "e.json")
    assert not (tmp_path / "e.json").exists()


def test_the_documented_flags_exist() -> None:
    text = (Path(__file__).parents[2] / "docs" / "lead.md").read_text()
    section = text.partition("## How good are the experts?")[2].partition("\n## ")[0]
    flags = set(re.findall(r"--[a-z][a-z-]+", section))
    command = typer.main.get_command(app).commands["experts"]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    assert len(flags) > 6 and flags <= known
