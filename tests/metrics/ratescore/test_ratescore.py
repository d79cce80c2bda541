"""RaTEScore as an evaluate module."""

from __future__ import annotations

import shutil
from pathlib import Path

import evaluate
import pytest

import rrg_hf.metrics
from rrg_hf.errors import ConfigError
from tests.metrics.tiny_ratescore import write_tiny_ratescore

FOLDER = Path(rrg_hf.metrics.__file__).with_name("ratescore")
REPORTS = ["Small left pleural effusion.", "The heart is normal.", ""]
REFERENCES = ["Left pleural effusion.", "Mild cardiomegaly.", "No effusion."]


def test_rules_backend_needs_no_weights() -> None:
    metric = evaluate.load(str(FOLDER), backend="rules")
    result = metric.compute(predictions=REPORTS, references=REFERENCES, per_sample=True)
    assert metric.primary_key == "rules_ratescore" and metric.higher_is_better
    assert len(result["per_sample"]["rules_ratescore"]) == 3 and result["per_sample"]["rules_ratescore"][2] == 0.5
    assert 0 < result["rules_ratescore"] < 1 and result["rules_ratescore_without_entities"] == 1


def test_config_name_is_the_backend_and_the_short_way_works() -> None:
    by_name = evaluate.load(str(FOLDER), "rules").compute(predictions=REPORTS, references=REFERENCES)
    short = rrg_hf.metrics.load("ratescore", backend="rules").compute(predictions=REPORTS, references=REFERENCES)
    assert by_name == short


def test_network_backend(tmp_path: Path) -> None:
    model = write_tiny_ratescore(tmp_path / "model")
    metric = evaluate.load(str(FOLDER), model=str(model), sentences="rrg_hf", matrix="short", cache_dir=str(tmp_path))
    result = metric.compute(predictions=REPORTS, references=REFERENCES)
    assert set(result) >= {"ratescore", "ratescore_precision", "ratescore_recall", "ratescore_without_entities"}
    assert metric.primary_key == "ratescore" and result["protocol"]["matrix"]["name"] == "short"


def test_a_copied_folder_loads_and_combines(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "ratescore"
    shutil.copytree(FOLDER, copy)
    metric = evaluate.load(str(copy), backend="rules")
    both = evaluate.combine([metric, evaluate.load(str(FOLDER.with_name("chexbert_f1")), backend="rules")])
    result = both.compute(predictions=REPORTS, references=REFERENCES)
    assert any(key.endswith("rules_ratescore") for key in result)
    assert any(key.endswith("rules_micro_f1") for key in result)


def test_wrong_settings_fail_at_load() -> None:
    with pytest.raises(ConfigError, match="matrix is 'middle'"):
        evaluate.load(str(FOLDER), backend="rules", matrix="middle")
    with pytest.raises(ConfigError, match="differ"):
        evaluate.load(str(FOLDER), "rules", backend="ratescore")


def test_folder_is_complete() -> None:
    names = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert {"ratescore.py", "README.md", "app.py", "requirements.txt"} <= names
    assert len((FOLDER / "ratescore.py").read_text().splitlines()) < 200
