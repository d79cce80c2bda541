"""ReportTrainingArguments: documented as they are declared, for every trainer built on them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from transformers import TrainingArguments

from rrg_hf.errors import ConfigError
from rrg_hf.trainers import LeadTrainingArguments, PalmTrainingArguments
from rrg_hf.trainers.report_config import ReportTrainingArguments


@pytest.mark.parametrize(
    ("cls", "parent"),
    [
        (ReportTrainingArguments, TrainingArguments),
        (PalmTrainingArguments, ReportTrainingArguments),
        (LeadTrainingArguments, ReportTrainingArguments),
    ],
)
def test_docstring_and_help_text_agree(cls: type, parent: type) -> None:
    """Every field that is new or has another default stands in the docstring, in order, with its help text."""
    documented = re.findall(r"^        (\w+) \(`.*?$((?:\n {12,}.*)+)", cls.__doc__ or "", re.M)
    inherited = {item.name: item for item in dataclasses.fields(parent)}
    own = {
        item.name: item.metadata["help"]
        for item in dataclasses.fields(cls)
        if item.name not in inherited or item.metadata.get("help") != inherited[item.name].metadata.get("help")
    }
    assert own and {name: " ".join(text.split()) for name, text in documented} == own


def test_a_run_without_a_method_writes_reports_and_keeps_the_best(tmp_path: Path) -> None:
    args = ReportTrainingArguments(str(tmp_path), use_cpu=True)
    assert args.writes_reports and args.load_best_model_at_end
    assert args.metric_for_best_model == "rules_micro_f1"
    args.disable_evaluation()
    assert args.metric_for_best_model is None and not args.load_best_model_at_end


def test_no_reports_no_report_score(tmp_path: Path) -> None:
    args = ReportTrainingArguments(str(tmp_path), use_cpu=True, eval_generate_samples=0)
    assert args.metric_for_best_model == "loss"
    with pytest.raises(ConfigError, match="eval_generate_samples is 0"):
        ReportTrainingArguments(
            str(tmp_path), use_cpu=True, eval_generate_samples=0, metric_for_best_model="rules_macro_f1"
        )
