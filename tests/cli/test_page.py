"""`rrg page`: one command from a checkpoint and a data set to the page and its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.data.phantom import phantom_splits
from rrg_hf.data.store import save_studies
from rrg_hf.errors import CheckpointError, ConfigError, DataError
from tests.report_model import make_report_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "tiny"
    make_report_model(path, seed=3)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_studies(phantom_splits({"train": 2, "test": 6}, size=64), tmp_path_factory.mktemp("page") / "phantom")


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["page", "--device", "cpu", "--bootstrap", "20", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def made(checkpoint: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    output = tmp_path_factory.mktemp("page") / "page.html"
    arguments = ("--max-new-tokens", 12, "--evidence", 4, "--cases", 3, "--batch-size", 4)
    return output, run("--model", checkpoint, "--data", data, "-o", output, *arguments)


def test_a_model_and_a_data_set_become_a_page(made: tuple[Path, Result], checkpoint: Path) -> None:
    output, result = made
    assert result.exit_code == 0, result.output
    page = output.read_text()
    assert "<h1" in page and "tiny on phantom, test" in page and "not a medical device" in page
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert 'id="case-3"' in page and "case-4" not in page
    reports = [json.loads(line) for line in output.with_suffix(".reports.jsonl").read_text().splitlines()]
    assert len(reports) == 6 and reports[0]["settings"]["max_new_tokens"] == 12
    assert "Page:" in result.output and "lost when occluded (dataset)" in result.output


def test_the_numbers_beside_it_carry_their_protocol(made: tuple[Path, Result]) -> None:
    numbers = json.loads(made[0].with_suffix(".json").read_text())
    result, evidence = numbers["result"], numbers["evidence"]
    assert result["n"] == 6 and evidence["n"] == 4
    protocol = result["protocol"]
    assert (protocol["split"], protocol["section"], protocol["phantom"]) == ("test", "findings", True)
    assert protocol["generation"]["models"] == ["tiny"]
    for part in (protocol, evidence["protocol"]):
        assert {"rrg_hf", "torch", "transformers"} <= set(part["versions"])
    assert evidence["mask_kind"] == "dataset" and evidence["protocol"]["skipped"] == {}


def test_reports_that_are_there_are_not_written_again(
    made: tuple[Path, Result], checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    reports = made[0].with_suffix(".reports.jsonl")
    output = tmp_path / "again.html"
    result = run("-m", checkpoint, "-d", data, "--reports", reports, "-o", output, "--evidence", 0, "--cases", 0)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.html", "again.json"]
    again, first = (json.loads(path.with_suffix(".json").read_text()) for path in (output, made[0]))
    assert again["result"]["scores"] == first["result"]["scores"] and again["evidence"] is None


def test_reports_alone_need_no_model(made: tuple[Path, Result], data: Path, tmp_path: Path) -> None:
    reports, output = made[0].with_suffix(".reports.jsonl"), tmp_path / "page.html"
    result = run("-d", data, "--reports", reports, "-o", output, "--title", "Without a model")
    assert result.exit_code == 0, result.output
    assert "Without a model" in output.read_text() and "occluded" not in result.output


def test_missing_reports_are_refused_unless_allowed(
    made: tuple[Path, Result], checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    lines = made[0].with_suffix(".reports.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(lines[:4]))
    command = ("-m", checkpoint, "-d", data, "--reports", tmp_path / "some.jsonl", "-o", tmp_path / "page.html")
    with pytest.raises(DataError, match="2 of 6 studies have no prediction"):
        run(*command)
    assert not (tmp_path / "page.html").exists()
    result = run(*command, "--allow-missing", "--cases", 1)
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "page.json").read_text())
    assert numbers["result"]["n"] == numbers["evidence"]["n"] == 4
    assert numbers["result"]["protocol"]["skipped"]["no prediction"]["count"] == 2


def test_another_models_reports_are_refused(
    made: tuple[Path, Result], data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make_report_model(tmp_path / "other", seed=4)
    with pytest.raises(ConfigError, match="would be another model's"):
        run("-m", tmp_path / "other", "-d", data, "--reports", made[0].with_suffix(".reports.jsonl"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": None}, "nothing to show"),
        ({"--section": "summary"}, "no text of a study"),
        ({"--metrics": "nlg,blue"}, "blue"),
        ({"--output": "page.txt"}, "ends in .html"),
        ({"--split": "dev"}, "no split 'dev'"),
        ({"--data": "/no/such/folder"}, "no such folder"),
        ({"--model": "/no/such/model"}, "No report generation model"),
        ({"--max-new-tokens": "5000"}, "has room for"),
        ({"--device": "gpu"}, "is no device"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(
    changes: dict[str, str | None], message: str, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    options = {"--model": str(checkpoint), "--data": str(data), "--output": str(tmp_path / "page.html")} | changes
    with pytest.raises((ConfigError, DataError, CheckpointError), match=message):
        run(*(word for name, value in options.items() if value is not None for word in (name, value)))
    assert list(tmp_path.iterdir()) == []
