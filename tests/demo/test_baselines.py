"""The prior-only baseline, against a slow reference."""

from __future__ import annotations

from rrg_hf.demo.baselines import most_typical, prior_reports
from rrg_hf.observations import LabelState
from rrg_hf.text.rules import label_report

NORMAL = "The heart size is normal. The lungs are clear. No pleural effusion or pneumothorax."
EFFUSION = "There is a small left pleural effusion."
FAILURE = "The heart is enlarged. There is pulmonary edema. There is a small left pleural effusion."


def mean_f1(report: str, others: list[str]) -> float:
    def positives(text: str) -> set[str]:
        return {name for name, state in label_report(text).items() if state is LabelState.POSITIVE}

    total = 0.0
    for other in others:
        a, b = positives(report), positives(other)
        total += 2 * len(a & b) / max(len(a) + len(b), 1)
    return total / len(others)


def test_most_typical_has_the_best_mean_f1() -> None:
    reports = [FAILURE, EFFUSION, NORMAL, EFFUSION, FAILURE, FAILURE]
    best = max(mean_f1(report, reports) for report in reports)
    assert mean_f1(most_typical(reports), reports) == best


def test_prior_follows_the_indication_and_falls_back_to_the_most_typical_of_all() -> None:
    train = [("Dyspnea.", FAILURE)] * 3 + [(None, NORMAL)] * 5
    written = prior_reports(train, [("a", "Dyspnea."), ("b", None), ("c", "Never seen in training.")])
    assert written == {"a": FAILURE, "b": NORMAL, "c": NORMAL}
