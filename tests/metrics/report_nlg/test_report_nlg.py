"""The evaluate module: loads from its folder, from a copy elsewhere, and combines."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import Any

import evaluate
import pytest

import rrg_hf.metrics
from rrg_hf.errors import ConfigError
from rrg_hf.metrics.nlg_scorer import ReportNlg

FOLDER = Path(rrg_hf.metrics.__file__).parent / "report_nlg"
REPORTS = ["The lungs are clear.", "Mild cardiomegaly."]
REFERENCES = ["The lungs are clear.", "Mild cardiomegaly without edema."]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")


def load(path: Path = FOLDER, **settings: Any) -> Any:
    return evaluate.load(str(path), keep_in_memory=True, **{"meteor": None, **settings})


def test_equals_the_scorer() -> None:
    module = load(cleaning="r2gen_mimic")
    expected = ReportNlg(cleaning="r2gen_mimic", meteor=None).compute(REPORTS, REFERENCES, per_sample=True)
    assert module.compute(predictions=REPORTS, references=REFERENCES, per_sample=True) == expected
    assert module.primary_key == "bleu_4" and module.higher_is_better is True
    assert "per_sample" not in module.compute(predictions=REPORTS, references=REFERENCES)


def test_loads_from_a_copy(tmp_path: Path) -> None:
    copy = tmp_path / "report_nlg"
    shutil.copytree(FOLDER, copy)
    assert load(copy).compute(predictions=REPORTS, references=REPORTS)["rouge_l"] == 1.0


def test_combines() -> None:
    both = evaluate.combine([load(), load(cleaning="none")])
    result = both.compute(predictions=REPORTS, references=REPORTS)
    assert sum(value == 1.0 for name, value in result.items() if name.endswith("rouge_l")) == 2


def test_bad_setting_fails_at_load() -> None:
    with pytest.raises(ConfigError, match="Unknown cleaning"):
        load(cleaning="bleach")


def test_docstring_example() -> None:
    module = load()
    example = doctest.DocTestParser().get_doctest(
        module.inputs_description.replace('evaluate.load("report_nlg"', f'evaluate.load("{FOLDER}"'),
        {},
        "report_nlg",
        None,
        None,
    )
    assert len(example.examples) == 4
    result = doctest.DocTestRunner().run(example)
    assert result.failed == 0


def test_card_and_length() -> None:
    card = (FOLDER / "README.md").read_text()
    assert card.startswith("---\ntitle: report_nlg\n")
    for heading in ("Description", "Inputs", "Output values", "Values from papers", "Limitations", "Citation"):
        assert f"# {heading}" in card
    assert len((FOLDER / "report_nlg.py").read_text().splitlines()) < 200
