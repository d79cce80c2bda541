from __future__ import annotations

import ast
import re
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


@pytest.mark.parametrize("name", METRICS)
def test_unknown_settings_are_named_with_the_known_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path))  # nothing is prepared: the setting must fail before the weights
    with pytest.raises(ConfigError, match=rf"^{name} has no setting \['batchsize', 'colour'\]\. It has \[") as raised:
        load(name, batchsize=3, colour="red")
    known = ast.literal_eval(str(raised.value).partition("It has ")[2].rstrip("."))
    page, script = ((metric_folder(name) / file).read_text() for file in ("README.md", f"{name}.py"))
    inputs = script.partition("Settings of `evaluate.load`")[2].partition("Returns:")[0]
    for setting in known:
        assert f"`{setting}`" in page and re.search(rf"\b{setting}\b", inputs), setting
    with pytest.raises(ConfigError, match="no setting 'module_type'"):
        load(name, module_type="metric")


@pytest.mark.parametrize("name", ["report_nlg", "radcliq"])
def test_a_metric_without_backends_says_so(name: str) -> None:
    import evaluate

    with pytest.raises(ConfigError, match=rf"{name} has no setting \['backend'\]"):
        load(name, backend="rules")
    with pytest.raises(ConfigError, match=rf"{name} has no setting \['backend'\]"):
        evaluate.load(str(metric_folder(name)), "rules")


def test_every_known_setting_is_one_of_the_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None leaves each setting at its default, so that what stops the build are the weights and nothing else."""
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    defaults = {"batch_size": 4, "max_tokens": 64, "memory": 9, "max_length": 99, "words": 9, "dtype": "float32"}
    defaults |= {"parse": "strict", "template": "{reference} {candidate}", "sentences": "rrg_hf", "matrix": "short"}
    defaults |= {"version": "v0", "bleu": "fast_bleu", "policy": "uncertain_ignored", "zero_division": 1.0}
    defaults |= {"lowercase": False, "bertscore_model": str(tmp_path)}
    for name in METRICS:
        with pytest.raises(ConfigError, match="has no setting") as raised:
            load(name, colour="red")
        known = ast.literal_eval(str(raised.value).partition("It has ")[2].rstrip("."))
        settings = {setting: defaults.get(setting) for setting in known if setting in defaults or name != "report_nlg"}
        if name == "report_nlg":
            load(name, cleaning="none", tokenizer="whitespace", meteor=None, rouge_score=True)
            assert set(known) == {"cleaning", "tokenizer", "meteor", "rouge_score"}
            continue
        if name == "ratescore":
            settings["backend"] = "ratescore"
        with pytest.raises(ConfigError, match="is not prepared"):
            load(name, **settings)


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
