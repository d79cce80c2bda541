"""CheXbert-F1 as an evaluate module."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import Any

import evaluate
import pytest
from transformers import AutoTokenizer

import rrg_hf.metrics
from rrg_hf.errors import ConfigError
from rrg_hf.modeling.chexbert import convert_chexbert
from tests.tiny_chexbert import make_checkpoint, make_tokenizer

FOLDER = Path(rrg_hf.metrics.__file__).with_name("chexbert_f1")
REPORTS = ["Small left pleural effusion.", "The heart is normal."]
REFERENCES = ["Left pleural effusion.", "Mild cardiomegaly."]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")


def load(path: Path = FOLDER, *name: str, **settings: Any) -> Any:
    return evaluate.load(str(path), *name, keep_in_memory=True, **settings)


def test_rules_backend_needs_no_weights() -> None:
    metric = load(FOLDER, backend="rules")
    result = metric.compute(predictions=REPORTS, references=REFERENCES, per_sample=True)
    assert metric.primary_key == "rules_micro_f1" and metric.higher_is_better
    assert 0 < result["rules_micro_f1"] < 1
    assert len(result["per_sample"]["rules_micro_f1"]) == 2
    assert result["observations"]["Pleural Effusion"]["support"] == 1


def test_config_name_is_the_backend_and_the_short_way_works() -> None:
    by_name = load(FOLDER, "rules").compute(predictions=REPORTS, references=REFERENCES)
    short = rrg_hf.metrics.load("chexbert_f1", backend="rules", keep_in_memory=True)
    assert by_name == short.compute(predictions=REPORTS, references=REFERENCES)


def test_network_backend_with_a_converted_checkpoint(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    checkpoint = make_checkpoint(tmp_path / "chexbert.pth", len(AutoTokenizer.from_pretrained(tokenizer)))
    model = convert_chexbert(checkpoint, tokenizer, tmp_path / "model")
    metric = load(FOLDER, model=str(model), policy="uncertain_as_negative")
    result = metric.compute(predictions=REPORTS, references=REPORTS)
    assert result["chexbert_exact_match"] == 1.0
    assert result["protocol"]["policy"] == "uncertain_as_negative"
    assert "chexbert_similarity" in result


def test_a_copied_folder_loads_and_combines(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "chexbert_f1"
    shutil.copytree(FOLDER, copy)
    metric = load(copy, backend="rules")
    both = evaluate.combine([metric, load(FOLDER, backend="rules", policy="uncertain_as_negative")])
    result = both.compute(predictions=REPORTS, references=REFERENCES)
    single = metric.compute(predictions=REPORTS, references=REFERENCES)
    both_keys = [key for key in result if key.endswith("rules_micro_f1")]
    assert len(both_keys) == 2 and all(result[key] == single["rules_micro_f1"] for key in both_keys)


def test_wrong_settings_fail_at_load() -> None:
    with pytest.raises(ConfigError, match="Unknown uncertainty policy"):
        load(FOLDER, backend="rules", policy="ones")
    with pytest.raises(ConfigError, match="differ"):
        load(FOLDER, "rules", backend="chexbert")


def test_docstring_example() -> None:
    lines = (
        load(FOLDER, backend="rules")
        .inputs_description.replace("# doctest: +SKIP", "")
        .replace('evaluate.load("chexbert_f1"', f'evaluate.load("{FOLDER}"')
    )
    example = doctest.DocTestParser().get_doctest(lines, {}, "chexbert_f1", None, None)
    assert len(example.examples) == 4
    assert doctest.DocTestRunner().run(example).failed == 0


def test_folder_is_complete() -> None:
    names = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert {"chexbert_f1.py", "README.md", "app.py", "requirements.txt"} <= names
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntitle: chexbert_f1\n")
    for heading in ("Description", "Inputs", "Output values", "Values from papers", "Limitations", "Citation"):
        assert f"# {heading}" in card
    assert len((FOLDER / "chexbert_f1.py").read_text().splitlines()) < 200
