from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.errors import ConfigError
from rrg_hf.metrics.artifacts import PREPARED
from tests.tiny_radgraph import SHAPES, make_archive


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["metrics", *arguments])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_prepare_and_list(tmp_path: Path, home: Path) -> None:
    before = run("list")
    assert before.exit_code == 0 and before.output.count("not prepared") == len(PREPARED)
    assert "Stanford licence that keeps commercial use" in before.output and str(home) in before.output
    archive, tokenizer = make_archive(tmp_path, SHAPES["xl_one_layer"])
    done = run("prepare", "radgraph-xl", "--from-file", str(archive), "--tokenizer", str(tokenizer))
    assert done.exit_code == 0, done.output
    assert "radgraph-xl is ready in" in done.output and "NOT the published file" in done.output
    assert "MIT" in done.output
    after = run("list").output
    assert after.count("not prepared") == len(PREPARED) - 1 and "brought by hand, NOT the published file" in after
    other = run(
        "prepare", "radgraph-xl", "--from-file", str(archive), "--tokenizer", str(tokenizer), "-o", str(tmp_path / "o")
    )
    assert "give them model=" in other.output


def test_mistakes_are_errors_of_one_line() -> None:
    done = run("prepare", "bert")
    assert isinstance(done.exception, ConfigError) and "Nothing is published under 'bert'" in str(done.exception)
    done = run("prepare", "radgraph", "--from-file", "gone.tar.gz")
    assert isinstance(done.exception, ConfigError) and "does not exist" in str(done.exception)
