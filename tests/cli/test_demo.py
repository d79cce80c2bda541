"""`rrg demo` passes its options on; what the demo does is tested in tests/demo."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.demo.recipe import FULL, QUICK
from rrg_hf.errors import ConfigError


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """The command quietens the libraries for its process, which tests share."""
    root, verbosity = logging.getLogger(), transformers_logging.get_verbosity()
    handlers, level, tqdm = list(root.handlers), root.level, os.environ.get("TQDM_DISABLE")
    yield
    root.handlers[:], root.level = handlers, level
    transformers_logging.set_verbosity(verbosity)
    transformers_logging.enable_progress_bar()
    if tqdm is None:
        os.environ.pop("TQDM_DISABLE", None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []

    def run_demo(recipe: Any, out: Path, *, say: Any, overwrite: bool) -> None:
        say("a line of progress")
        seen.append((recipe, out, overwrite))

    monkeypatch.setattr("rrg_hf.demo.run.run_demo", run_demo)
    return seen


def test_the_full_demo_by_default(calls: list[tuple[Any, ...]]) -> None:
    result = CliRunner().invoke(app, ["demo"], catch_exceptions=False)
    assert result.exit_code == 0
    assert calls == [(FULL, Path("demo_output"), False)]
    assert result.output.splitlines()[0].endswith("research only, not a medical device.")
    assert result.output.splitlines()[1] == "a line of progress"


def test_options_are_passed_on(calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    command = ["demo", "--quick", "--out", str(tmp_path / "here"), "--overwrite"]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert calls == [(QUICK, tmp_path / "here", True)]


def test_a_folder_with_other_things_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not delete")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(result.exception, ConfigError) and "holds no earlier demo" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
