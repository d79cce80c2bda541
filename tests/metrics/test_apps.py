"""The pages of the six metrics: each loads its module and scores one report.

Gradio is an extra (`rrg_hf[apps]`); without it a stand-in takes its place, which keeps the function of the page.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rrg_hf.metrics import METRICS, metric_folder
from rrg_hf.metrics.green_prompt import cached_template
from tests.metrics.radcliq.tiny_networks import tiny_chexbert, tiny_radgraph
from tests.metrics.tiny_encoders import tiny_encoder
from tests.metrics.tiny_judge import write_judge

ROOT = Path(__file__).parents[2]
REPORT = "Small left pleural effusion."
KEYS = {
    "chexbert_f1": "rules_micro_f1",
    "radgraph_f1": "rules_radgraph_partial",
    "ratescore": "rules_ratescore",
    "report_nlg": "rouge_l",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny networks where `rrg metrics prepare` puts the published ones, and one under distilroberta-base's name."""
    root = tmp_path_factory.mktemp("home")
    for name, write in (("green", write_judge), ("chexbert", tiny_chexbert), ("radgraph", tiny_radgraph)):
        write(root / "metrics" / name)
        (root / "metrics" / name / ".prepared").write_text(json.dumps({"name": name, "sources": []}))
    shutil.move(tiny_encoder(root, "roberta", layers=6), root / "distilroberta-base")
    return root


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, home: Path) -> list[Any]:
    """Functions of the pages that were launched."""
    monkeypatch.setenv("RRG_HF_HOME", str(home))
    monkeypatch.chdir(home)  # a folder of that name goes before the Hub
    launched: list[Any] = []
    if find_spec("gradio") is not None:
        import gradio

        def launch(page: Any) -> None:
            assert list(page.get_api_info()["named_endpoints"]) == ["/score"]
            launched.append(page.fn)

        monkeypatch.setattr(gradio.Interface, "launch", launch)
        return launched

    class Interface:
        def __init__(self, function: Any, inputs: Any, outputs: Any, **_: Any) -> None:
            self.function = function

        def launch(self) -> None:
            launched.append(self.function)

    stub = SimpleNamespace(Interface=Interface, Textbox=lambda **_: None, JSON=lambda **_: None)
    monkeypatch.setitem(sys.modules, "gradio", stub)
    return launched


@pytest.mark.parametrize("name", KEYS)
def test_pages_without_weights(name: str, pages: list[Any]) -> None:
    runpy.run_path(str(metric_folder(name) / "app.py"))
    scores = pages[0](REPORT, REPORT)
    assert scores[KEYS[name]] == pytest.approx(1.0) and json.dumps(scores)


def test_radcliq(pages: list[Any]) -> None:
    runpy.run_path(str(metric_folder("radcliq") / "app.py"))
    scores = pages[0](REPORT, REPORT)
    assert scores["radcliq_bertscore"] == pytest.approx(1.0) and scores["radcliq_semb_score"] == pytest.approx(1.0)


def test_green(pages: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained judge's answer cannot be read: the page shows that, and no score of 0."""
    monkeypatch.setattr("rrg_hf.metrics.green_prompt._is_published", lambda template: True)
    cached_template().parent.mkdir(parents=True, exist_ok=True)
    cached_template().write_text("{reference} | {candidate}")
    runpy.run_path(str(metric_folder("green") / "app.py"))
    scores = pages[0](REPORT, REPORT)
    assert scores["green_unparsable"] == 1 and scores["green"] != scores["green"]


@pytest.mark.parametrize("name", METRICS)
def test_cards_name_the_gradio_that_ran(name: str) -> None:
    card = (metric_folder(name) / "README.md").read_text()
    bound = re.search(r'^apps = \["gradio>=(.+)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert bound and f"\nsdk: gradio\nsdk_version: {bound[1]}.0\napp_file: app.py\n" in card
