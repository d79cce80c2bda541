from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import DataError
from rrg_hf.evaluation import EvaluationResult, evaluate_reports
from rrg_hf.evaluation.result import diversity, write_atomically

TEXTS = {"a": "The lungs are clear.", "b": "Cardiomegaly. Small pleural effusion."}


@pytest.fixture
def result() -> EvaluationResult:
    return evaluate_reports(dict(TEXTS, b="Cardiomegaly."), TEXTS, bootstrap=50)


def test_save_and_load(tmp_path: Path, result: EvaluationResult) -> None:
    path, rows = tmp_path / "new" / "metrics.json", tmp_path / "rows.jsonl"
    assert result.save(path, per_sample=rows) == path
    assert EvaluationResult.load(path, per_sample=rows) == result
    assert EvaluationResult.load(path).per_sample == []
    assert json.loads(path.read_text())["protocol"]["section"] == "findings"
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["metrics.json", "new", "rows.jsonl"]


def test_files_hold_no_report_text(tmp_path: Path, result: EvaluationResult) -> None:
    result.save(tmp_path / "m.json", per_sample=tmp_path / "rows.jsonl")
    written = (tmp_path / "m.json").read_text() + (tmp_path / "rows.jsonl").read_text()
    assert "lungs are clear" not in written and "Small pleural" not in written


def test_undefined_numbers_become_null(tmp_path: Path, result: EvaluationResult) -> None:
    result.scores["odd"] = {"value": math.nan, "low": math.inf, "high": None}
    loaded = EvaluationResult.load(result.save(tmp_path / "m.json"))
    assert loaded.scores["odd"] == {"value": None, "low": None, "high": None}
    assert math.isnan(loaded.value("odd"))


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_atomically(tmp_path / "m.json", "old")

    def full(self: Path, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match=r"m\.json could not be written \(No space left on device\)"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["m.json"]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be written"):
        write_atomically(tmp_path / "file" / "m.json", "x")


def test_an_id_from_a_file_name_that_is_not_utf8_is_kept_as_its_bytes(tmp_path: Path) -> None:
    write_atomically(tmp_path / "m.json", os.fsdecode(b'"\xe9"'))
    assert (tmp_path / "m.json").read_bytes() == b'"\xe9"'


@pytest.mark.parametrize("content", ["", "{", "[]", '{"scores": {}}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"m\.json is not"):
        EvaluationResult.load(path)
    with pytest.raises(DataError, match="does not exist"):
        EvaluationResult.load(tmp_path / "none.json")


def test_unknown_score_lists_the_known(result: EvaluationResult) -> None:
    with pytest.raises(DataError, match=r"'bleu_5'.*rouge_l"):
        result.value("bleu_5")
    with pytest.raises(DataError, match="not requested"):
        result.value("meteor_nltk")


def test_diversity() -> None:
    assert diversity(["a", "a", "b", "a"]) == {
        "reports": 4, "unique": 2, "unique_share": 0.5, "most_common_share": 0.75
    }  # fmt: skip
    assert diversity([])["unique_share"] == 0.0
