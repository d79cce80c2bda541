from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.evaluation import evaluate_reports, report_statistics
from rrg_hf.evaluation.report_statistics import LabelCache, ScoreSettings
from rrg_hf.metrics.statistics import mean_statistics
from rrg_hf.observations import LabelState

REFERENCES = ["The lungs are clear.", "Cardiomegaly. Small pleural effusion."]
REPORTS = ["The lungs are clear.", "Small pleural effusion."]


def test_groups_follow_the_metrics() -> None:
    both = report_statistics.report_statistics(REPORTS, REFERENCES, ScoreSettings())
    assert {"bleu_4", "cider", "rules_micro_f1"} <= set(both.corpus()) and both.rules is both.groups[-1]
    text = report_statistics.report_statistics(REPORTS, REFERENCES, ScoreSettings(metrics=["nlg"]))
    assert text.rules is None and text.labels == [] and "rules_micro_f1" not in text.corpus()
    assert set(both.absent) == {"meteor_1.5_java", "meteor_nltk"}


def test_labels_come_from_the_default_cleaned_text_whatever_the_cleaning() -> None:
    """R2Gen's cleaning joins "PICC/NG" and drops the case: a labeller must not see that."""
    settings = [ScoreSettings(metrics=["rules"], cleaning=name) for name in ("default", "r2gen_mimic", "none")]
    scores = [report_statistics.report_statistics(REPORTS, REFERENCES, setting).corpus() for setting in settings]
    assert scores[0] == scores[1] == scores[2]


def test_each_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    label = report_statistics.label_report
    monkeypatch.setattr(report_statistics, "label_report", lambda text: read.append(text) or label(text))
    cache = LabelCache()
    settings = ScoreSettings(metrics=["rules"])
    for _ in range(2):
        report_statistics.report_statistics(REPORTS, REFERENCES, settings, label=cache)
    assert sorted(read) == sorted(set(REFERENCES) | set(REPORTS))
    assert cache(REFERENCES[1])["Cardiomegaly"] == LabelState.POSITIVE


def test_meteor_is_reported_under_its_own_name_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(reports: Any, references: Any, *tokens: Any) -> Any:
        assert reports == ["clear", ""] and tokens[0] == [["clear"], []]
        return [mean_statistics({"meteor_1.5_java": np.array([1.0, 0.0])})], {"meteor_nltk": "no WordNet"}

    monkeypatch.setattr(report_statistics, "meteor_statistics", fake)
    result = evaluate_reports(
        {"a": "clear", "b": ""}, {"a": "clear", "b": "edema"}, metrics=["nlg", "meteor"], bootstrap=50
    )
    assert result.scores["meteor_1.5_java"]["value"] == 0.5 and result.scores["meteor_1.5_java"]["low"] == 0.0
    assert [row["meteor_1.5_java"] for row in result.per_sample] == [1.0, 0.0]
    assert "meteor_nltk" not in result.scores and result.protocol.absent == {"meteor_nltk": "no WordNet"}
    assert "bleu_4" in result.scores


def test_settings_that_need_a_library_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.metrics.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r'pip install "rrg_hf\[metrics\]"'):
        ScoreSettings().check()
    ScoreSettings(metrics=["rules"]).check()  # needs none of it
