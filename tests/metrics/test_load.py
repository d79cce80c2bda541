from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rrg_hf.metrics
from rrg_hf.errors import ConfigError
from rrg_hf.metrics import METRICS, load, metric_folder

TEXTS = ["Small left pleural effusion.", "The lungs are clear."]
WITHOUT_WEIGHTS = [("chexbert_f1", "rules"), ("radgraph_f1", "rules"), ("ratescore", "rules"), ("report_nlg", None)]


@pytest.mark.parametrize(("name", "backend"), WITHOUT_WEIGHTS)
def test_load_is_evaluates_own_module(name: str, backend: str | None) -> None:
    import evaluate

    metric = load(name, backend, **({"meteor": None} if name == "report_nlg" else {}))  # Java takes 10 s to start
    assert isinstance(metric, evaluate.Metric) and metric.name == name
    scores = metric.compute(predictions=TEXTS, references=TEXTS, per_sample=True)
    assert scores[metric.primary_key] == pytest.approx(1.0, abs=1e-3)
    assert len(scores["per_sample"][metric.primary_key]) == 2 and metric.higher_is_better


def test_every_packaged_metric_has_its_folder() -> None:
    for name in METRICS:
        assert {path.name for path in metric_folder(name).iterdir()} >= {
            f"{name}.py", "README.md", "app.py", "requirements.txt"
        }, name  # fmt: skip
    with pytest.raises(ConfigError, match=r"no metric 'radgraph'.*radgraph_f1"):
        load("radgraph")


def test_missing_weights_are_found_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="rrg metrics prepare chexbert"):
        load("chexbert_f1")


def test_missing_evaluate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rrg_hf.metrics, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "rrg_hf\[metrics\]"'):
        load("report_nlg")


def test_cache_dir_also_keeps_what_was_read(tmp_path: Path) -> None:
    """evaluate.load takes `cache_dir` for itself; the networks' readings go there too."""
    load("ratescore", "rules", cache_dir=str(tmp_path)).compute(predictions=TEXTS, references=TEXTS)
    assert list(tmp_path.glob("*.sqlite"))
    load("report_nlg", meteor=None, cache_dir=str(tmp_path / "other")).compute(predictions=TEXTS, references=TEXTS)


def test_combine_and_a_folder_copied_alone(tmp_path: Path) -> None:
    import evaluate

    copied = shutil.copytree(metric_folder("radgraph_f1"), tmp_path / "elsewhere" / "radgraph_f1")
    metric = evaluate.load(str(copied), "rules")
    both = evaluate.combine([metric, load("chexbert_f1", "rules")])
    scores = both.compute(predictions=TEXTS, references=TEXTS)
    assert scores["rules_radgraph_partial"] == 1.0 and scores["rules_micro_f1"] == 1.0


def test_importing_metrics_stays_light() -> None:
    code = "import rrg_hf.metrics, sys; print({'torch', 'evaluate', 'datasets', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_wheel_carries_the_modules(tmp_path: Path) -> None:
    """What hatch packs, by its own file selection."""
    builder = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).parents[2]
    next(iter(builder.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])))
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    for name in METRICS:
        for file in (f"{name}.py", "README.md", "app.py", "requirements.txt"):
            assert f"rrg_hf/metrics/{name}/{file}" in names
