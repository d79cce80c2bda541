"""Precision, recall and F1 of observation labels, whoever the labeller is (`rules` here; CheXbert has its own metric).

Every score's key names its average. Conventions that papers leave open are arguments: the uncertainty policy, and
`zero_division`, the value of a quotient 0/0 (scikit-learn's meaning).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ConfigError, DataError
from ..observations import (
    DEFAULT_UNCERTAINTY_POLICY,
    NO_FINDING,
    OBSERVATIONS,
    STATE_TO_CHEXBERT,
    STATE_TO_CHEXPERT,
    TOP_5,
    UNCERTAINTY_POLICIES,
    Labels,
    LabelState,
    apply_policy,
)
from .statistics import StudyStatistics, divide

AVERAGES = ("micro", "macro", "weighted", "samples")
_C = len(OBSERVATIONS)
_TOP_5 = np.array([OBSERVATIONS.index(name) for name in TOP_5])
# subset suffix of the score names -> columns of OBSERVATIONS
SUBSETS: dict[str, np.ndarray] = {"": np.arange(_C), "_top5": _TOP_5}
_NO_TARGET = -1


def states_from_chexpert(row: Mapping[str, float | str | None]) -> Labels:
    """Label states from CheXpert's csv coding: 1, 0, -1, and blank or NaN for not mentioned.

    Args:
        row: observation name to its cell, as a number, a string ("1.0", "") or None.

    Raises:
        DataError: an observation is missing or a cell is none of the four.
    """
    coding = {code: state for state, code in STATE_TO_CHEXPERT.items()}
    labels: Labels = {}
    for name in OBSERVATIONS:
        if name not in row:
            raise DataError(f"The CheXpert row has no column {name!r}; it has {sorted(row)}.")
        cell = row[name]
        if isinstance(cell, str):
            cell = cell.strip() or None
        try:
            code = None if cell is None or math.isnan(float(cell)) else float(cell)
        except ValueError:
            code = math.inf
        if code not in coding:
            raise DataError(f"{name!r} has the CheXpert code {row[name]!r}. Use 1, 0, -1 or blank.")
        labels[name] = coding[None if code is None else int(code)]
    return labels


def states_from_chexbert(classes: Mapping[str, int] | Sequence[int]) -> Labels:
    """Label states from CheXbert's head classes: 0 blank, 1 positive, 2 negative, 3 uncertain.

    Args:
        classes: observation name to class, or the 14 classes in the order of `OBSERVATIONS`.

    Raises:
        DataError: not 14 classes, an unknown class, or a class above 1 for "No Finding", whose head has two.
    """
    coding = {code: state for state, code in STATE_TO_CHEXBERT.items()}
    if not isinstance(classes, Mapping):
        if len(classes) != _C:
            raise DataError(
                f"{len(classes)} CheXbert classes given; there are {_C} heads, in the order {OBSERVATIONS}."
            )
        classes = dict(zip(OBSERVATIONS, classes, strict=True))
    labels: Labels = {}
    for name in OBSERVATIONS:
        if name not in classes:
            raise DataError(f"No CheXbert class for {name!r}.")
        code = int(classes[name])
        if code not in coding or (name == NO_FINDING and code > 1):
            known = "0 or 1" if name == NO_FINDING else "0, 1, 2 or 3"
            raise DataError(f"{name!r} has the CheXbert class {code}. Use {known}.")
        labels[name] = coding[code]
    return labels


def label_targets(
    labels: Sequence[Mapping[str, LabelState | str | None]], policy: str = DEFAULT_UNCERTAINTY_POLICY
) -> np.ndarray:
    """Binary targets of many reports, int8 (N, 14) in the order of `OBSERVATIONS`; -1 where there is no target.

    Args:
        labels: one mapping of observation name to state per report.
        policy: a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`.
    """
    if policy not in UNCERTAINTY_POLICIES:
        raise ConfigError(f"Unknown uncertainty policy {policy!r}. Use one of {sorted(UNCERTAINTY_POLICIES)}.")
    targets = np.full((len(labels), _C), _NO_TARGET, dtype=np.int8)
    for row, report in enumerate(labels):
        for column, value in enumerate(apply_policy(report, policy).values()):
            if value is not None:
                targets[row, column] = value
    return targets


def _rates(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, zero_division: float) -> dict[str, np.ndarray]:
    return {
        "precision": divide(tp, tp + fp, zero_division),
        "recall": divide(tp, tp + fn, zero_division),
        "f1": divide(2 * tp, 2 * tp + fp + fn, zero_division),
    }


def label_statistics(
    references: Sequence[Mapping[str, LabelState | str | None]],
    hypotheses: Sequence[Mapping[str, LabelState | str | None]],
    *,
    policy: str = DEFAULT_UNCERTAINTY_POLICY,
    zero_division: float = 0.0,
    name: str = "rules",
) -> StudyStatistics:
    """Confusion counts per study and observation, with the scores they determine.

    A cell whose reference has no target under the policy (or no label at all) counts nowhere. A hypothesis that is
    uncertain where the policy has no target for it counts as not positive: hedging must not remove an error.

    Args:
        references: label states of each reference report.
        hypotheses: label states of each generated report, same order.
        policy: how uncertain becomes a binary target; a key of `UNCERTAINTY_POLICIES`.
        zero_division: value of 0/0, in a class without positives as in a report without any.
        name: prefix of the score names, the labeller's name.

    Returns:
        Statistics with the scores `{name}_{micro,macro,weighted,samples}_{precision,recall,f1}`,
        `{name}_label_accuracy` (share of cells that agree) and `{name}_exact_match` (share of reports whose cells all
        agree) over the 14 observations, and each again with the suffix `_top5`.
        `values`: (N, 65): tp, fp, fn and tn of the 14 observations, then per-study sums for "samples" and exact match.

    Raises:
        ConfigError: unknown policy, or zero_division outside [0, 1].
        DataError: lists of unequal length or empty.
    """
    if not 0.0 <= zero_division <= 1.0:
        raise ConfigError(f"zero_division is {zero_division}. Use a value from 0 to 1, usually 0 or 1.")
    if len(references) != len(hypotheses):
        raise DataError(f"{len(references)} reference labels but {len(hypotheses)} of hypotheses.")
    if not references:
        raise DataError("No labels to score: both lists are empty.")
    truth = label_targets(references, policy)
    known = truth != _NO_TARGET
    claimed = label_targets(hypotheses, policy) == 1
    positive = truth == 1
    cells = [known & positive & claimed, known & ~positive & claimed, known & positive & ~claimed]
    cells.append(known & ~positive & ~claimed)
    columns = [cell.astype(float) for cell in cells]
    for subset in SUBSETS.values():
        tp, fp, fn = (cell[:, subset].sum(axis=1) for cell in cells[:3])
        columns += [value[:, None] for value in _rates(tp, fp, fn, zero_division).values()]
        columns.append(((fp + fn) == 0).astype(float)[:, None])
    columns.append(np.ones((len(references), 1)))

    def score(sums: np.ndarray) -> dict[str, np.ndarray]:
        return _scores_from_sums(sums, zero_division, name)

    return StudyStatistics(np.concatenate(columns, axis=1), score)


def _scores_from_sums(sums: np.ndarray, zero_division: float, name: str) -> dict[str, np.ndarray]:
    all_tp, all_fp, all_fn, all_tn = (sums[..., i * _C : (i + 1) * _C] for i in range(4))
    studies = sums[..., -1]
    scores: dict[str, np.ndarray] = {}
    for index, (suffix, subset) in enumerate(SUBSETS.items()):
        tp, fp, fn, tn = (counts[..., subset] for counts in (all_tp, all_fp, all_fn, all_tn))
        support = tp + fn
        micro = _rates(tp.sum(-1), fp.sum(-1), fn.sum(-1), zero_division)
        by_class = _rates(tp, fp, fn, zero_division)
        first_sample_column = 4 * _C + 4 * index
        for offset, rate in enumerate(("precision", "recall", "f1")):
            scores[f"{name}_micro_{rate}{suffix}"] = micro[rate]
            scores[f"{name}_macro_{rate}{suffix}"] = by_class[rate].mean(-1)
            scores[f"{name}_weighted_{rate}{suffix}"] = divide(
                (by_class[rate] * support).sum(-1), support.sum(-1), zero_division
            )
            scores[f"{name}_samples_{rate}{suffix}"] = divide(sums[..., first_sample_column + offset], studies)
        cells = (tp + fp + fn + tn).sum(-1)
        scores[f"{name}_label_accuracy{suffix}"] = divide((tp + tn).sum(-1), cells)
        scores[f"{name}_exact_match{suffix}"] = divide(sums[..., first_sample_column + 3], studies)
    return scores


def per_observation(sums: np.ndarray, zero_division: float = 0.0) -> dict[str, np.ndarray]:
    """Scores of each observation from summed `label_statistics` values.

    Args:
        sums: (..., 65).
        zero_division: value of 0/0.

    Returns:
        "precision", "recall", "f1", "support" (positives in the references), "predicted" (positives in the
        hypotheses), "tp", "fp", "fn" and "evaluated" (cells with a target), each (..., 14).
    """
    tp, fp, fn, tn = (sums[..., i * _C : (i + 1) * _C] for i in range(4))
    return {
        **_rates(tp, fp, fn, zero_division),
        "support": tp + fn,
        "predicted": tp + fp,
        "tp": tp,
        "fp": fp,
        "fn": fn,
        "evaluated": tp + fp + fn + tn,
    }


def observation_scores(
    references: Sequence[Mapping[str, LabelState | str | None]],
    hypotheses: Sequence[Mapping[str, LabelState | str | None]],
    *,
    policy: str = DEFAULT_UNCERTAINTY_POLICY,
    zero_division: float = 0.0,
    name: str = "rules",
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Overall scores and the table per observation; see `label_statistics` for arguments and names.

    Returns:
        Score name to value, and observation name to its row of `per_observation`.
    """
    statistics = label_statistics(references, hypotheses, policy=policy, zero_division=zero_division, name=name)
    table = per_observation(statistics.values.sum(axis=0), zero_division)
    rows = {
        observation: {column: float(values[index]) for column, values in table.items()}
        for index, observation in enumerate(OBSERVATIONS)
    }
    return statistics.corpus(), rows
