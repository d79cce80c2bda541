"""The evaluate module: loads from its folder, from a copy elsewhere, and passes settings on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import evaluate
import pytest

import rrg_hf.metrics
from rrg_hf.errors import ConfigError
from rrg_hf.metrics.green import load_green

from ..tiny_judge import write_judge

FOLDER = Path(rrg_hf.metrics.__file__).parent / "green"
SETTINGS = {"template": "{reference}|{candidate}", "device": "cpu", "max_length": 90}
PAIR = {"predictions": ["no effusion"], "references": ["no report"]}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_judge(tmp_path_factory.mktemp("judge"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")


def load(path: Path, judge: Path, **settings: Any) -> Any:
    return evaluate.load(str(path), keep_in_memory=True, model=str(judge), **{**SETTINGS, **settings})


def test_equals_the_scorer(judge: Path) -> None:
    module = load(FOLDER, judge, parse="published")
    expected = load_green(model=judge, parse="published", **SETTINGS)
    assert module.compute(**PAIR, per_sample=True) == expected.compute(
        PAIR["predictions"], PAIR["references"], per_sample=True
    )
    assert module.primary_key == "green" and module.higher_is_better is True
    assert "matched / (matched + errors)" in module.info.description


def test_loads_from_a_copy(judge: Path, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "green")
    result = load(tmp_path / "green", judge).compute(**PAIR)
    assert result["green_unparsable"] == 1 and result["protocol"]["metric"] == "green"


def test_settings_that_cannot_work_fail_at_load(judge: Path) -> None:
    with pytest.raises(ConfigError, match="parse rules"):
        load(FOLDER, judge, parse="lenient")
    with pytest.raises(ConfigError, match="template"):
        load(FOLDER, judge, template="nothing")


def test_the_card_has_its_front_matter() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    head = card.split("---")[1]
    for line in ("title: green", "sdk: gradio", "app_file: app.py", "- evaluate", "- metric"):
        assert line in head
    assert len((FOLDER / "green.py").read_text().splitlines()) < 200
