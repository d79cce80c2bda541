"""The report a language prior alone would write: the most typical training report for a study's indication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ..observations import OBSERVATIONS, LabelState
from ..text.rules import label_report


def most_typical(reports: Sequence[str]) -> str:
    """The report whose positive observations agree best with all others (highest mean F1; the first on a tie)."""
    positives = np.array(
        [
            [label is LabelState.POSITIVE for label in (label_report(text)[name] for name in OBSERVATIONS)]
            for text in reports
        ],
        dtype=np.float32,
    )  # (N, 14)
    shared = positives @ positives.T
    stated = positives.sum(1)
    f1 = 2 * shared / np.maximum(stated[:, None] + stated[None, :], 1)
    return reports[int(f1.mean(1).argmax())]


def prior_reports(
    train: Sequence[tuple[str | None, str]], studies: Sequence[tuple[str, str | None]], *, limit: int = 400
) -> dict[str, str]:
    """Reports written without looking at any image.

    Args:
        train: (indication, findings) of the training studies.
        studies: (study_id, indication) of the studies to report.
        limit: training reports compared per indication (the first ones), since the comparison is quadratic.

    Returns:
        study_id to report. An indication never seen in training gets the most typical report of all.
    """
    groups: dict[str | None, list[str]] = defaultdict(list)
    for indication, findings in train:
        groups[indication].append(findings)
    typical = {indication: most_typical(reports[:limit]) for indication, reports in groups.items()}
    overall = most_typical([findings for _, findings in train[:limit]])
    return {study_id: typical.get(indication, overall) for study_id, indication in studies}
