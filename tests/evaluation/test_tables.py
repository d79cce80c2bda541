from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from rrg_hf.evaluation import compare_reports, evaluate_reports
from rrg_hf.evaluation.tables import comparison_table, result_tables

TEXTS = {"a": "The lungs are clear.", "b": "Cardiomegaly. Small pleural effusion.", "c": None}


def rendered(parts: list[Any]) -> str:
    console = Console(width=80, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_tables_show_scores_intervals_support_and_what_was_left_out() -> None:
    result = evaluate_reports(dict(TEXTS, b=""), TEXTS, bootstrap=50, sources=["phantom"])
    text = rendered(result_tables(result))
    assert "…" not in text  # fits 80 columns
    assert "BLEU-4" in text and "95 % interval" in text
    assert "micro" in text and "samples" in text and "top 5" in text
    assert "Cardiomegaly" in text and "support" in text
    assert "left out: 1 (reference without findings)" in text
    assert "1 empty reports, scored 0" in text
    assert "absent: meteor_1.5_java (not requested" in text
    assert "Phantom data" in text and "unique reports: 2 of 2" in text


def test_tables_without_bootstrap_or_rules() -> None:
    text = rendered(result_tables(evaluate_reports(TEXTS, TEXTS, metrics=["nlg"], bootstrap=0)))
    assert "BLEU-1" in text and "interval" not in text and "Per observation" not in text


def test_clinical_metrics_have_a_table() -> None:
    options = {"radgraph": {"backend": "rules"}, "ratescore": {"backend": "rules"}}
    metrics = ["radgraph", "ratescore", "rules"]
    text = rendered(result_tables(evaluate_reports(TEXTS, TEXTS, metrics=metrics, options=options, bootstrap=50)))
    assert "Clinical metrics, 2 studies" in text and "rules_radgraph_partial" in text and "…" not in text
    assert "rules_radgraph_partial_recall" not in text and "micro, top 5" in text
    assert "radgraph: backend rules" in text and "BLEU" not in text


def test_comparison_table() -> None:
    compared = compare_reports(dict(TEXTS, b="Clear."), TEXTS, TEXTS, resamples=20, permutations=20)
    text = rendered([comparison_table(compared)])
    assert "…" not in text
    assert "rules_micro_f1" in text and "BLEU-4" in text and "rules_micro_recall" not in text
    assert "rules_micro_recall" in rendered([comparison_table(compared, ["rules_micro_recall"])])
