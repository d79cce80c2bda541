"""`evaluate_reports`: generated reports against references, with intervals and a protocol."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..metrics.observation_scores import label_targets, per_observation
from ..observations import DEFAULT_UNCERTAINTY_POLICY, OBSERVATIONS
from ..text.cleaning import is_missing
from .protocol import (
    FIRST_IDS,
    Protocol,
    cleaning_rule,
    library_versions,
    phantom_flag,
    skip_entry,
    text_sha256,
    tokenizer_rule,
)
from .report_statistics import (
    DEFAULT_METRICS,
    ReportStatistics,
    ScoreSettings,
    normalise_texts,
    report_statistics,
)
from .result import EvaluationResult, Score, diversity
from .significance import (
    Interval,
    ScoreComparison,
    bootstrap_intervals,
    bootstrap_sums,
    check_resampling,
    compare_statistics,
    percentile_interval,
)

logger = logging.getLogger(__name__)

_RATES = ("precision", "recall", "f1")
_COUNTS = ("support", "predicted", "tp", "fp", "fn", "evaluated")


def evaluate_reports(
    predictions: Mapping[str, str | None],
    references: Mapping[str, str | None],
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    cleaning: str = "default",
    tokenizer: str | None = None,
    policy: str = DEFAULT_UNCERTAINTY_POLICY,
    zero_division: float = 0.0,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    section: str = "findings",
    allow_missing: bool = False,
    sources: Collection[str] = (),
    generation: Mapping[str, Any] | None = None,
) -> EvaluationResult:
    """Score generated reports against the whole, untruncated reference texts.

    A study whose reference has no such section is left out and counted. A study with a reference but no prediction is
    an error, because leaving it out would flatter the model. An empty prediction stays and scores 0.

    Args:
        predictions: study_id to generated report.
        references: study_id to reference text; None, NaN, "" and the words they turn into count as missing.
        metrics, cleaning, tokenizer, policy, zero_division: see `ScoreSettings`.
        bootstrap: resamples of the studies for the intervals; 0 for none.
        confidence: of the intervals.
        seed: of the bootstrap.
        section: what the references are; recorded.
        allow_missing: leave out studies without a prediction (counted in the protocol) instead of failing.
        sources: names of the data sets of the references; {"phantom"} marks the numbers as phantom.
        generation: model, revision and settings of the predictions; recorded.

    Returns:
        Scores, table per observation, rows per study, diversity and protocol.

    Raises:
        ConfigError: a setting that cannot work, before any compute.
        DataError: nothing to score, studies without a prediction, or phantom mixed with other data.
    """
    settings = ScoreSettings(
        tuple(metrics) if not isinstance(metrics, str) else metrics, cleaning, tokenizer, policy, zero_division
    )
    settings.check()
    check_resampling(bootstrap, confidence)
    phantom = phantom_flag(set(sources))
    predictions, references = normalise_texts(predictions), normalise_texts(references)
    study_ids, skipped = align(predictions, references, section=section, allow_missing=allow_missing)
    reports = ["" if is_missing(predictions[study_id]) else str(predictions[study_id]) for study_id in study_ids]
    texts = [str(references[study_id]) for study_id in study_ids]
    statistics = report_statistics(reports, texts, settings)
    protocol = Protocol(
        section=section,
        metrics=list(settings.metrics),
        cleaning=cleaning,
        cleaning_rule=cleaning_rule(cleaning),
        tokenizer=settings.resolved_tokenizer,
        tokenizer_rule=tokenizer_rule(settings.resolved_tokenizer),
        labeller_version=f"rrg_hf {library_versions()['rrg_hf']}",
        policy=policy,
        zero_division=zero_division,
        absent=statistics.absent,
        bootstrap={
            "resamples": bootstrap,
            "seed": seed,
            "confidence": confidence,
            "method": "percentile over resampled studies; CIDEr with the document frequencies of all references",
        }
        if bootstrap
        else None,
        studies={"references": len(references), "predictions": len(predictions), "evaluated": len(study_ids)},
        skipped={reason: skip_entry(ids) for reason, ids in skipped.items() if ids},
        empty_predictions=sum(report == "" for report in reports),
        sources=sorted(set(sources)),
        phantom=phantom,
        generation=dict(generation or {}),
        versions=library_versions(),
        sha256={"predictions": text_sha256(predictions), "references": text_sha256(references)},
    )
    for reason, entry in protocol.skipped.items():
        logger.warning("%d studies left out: %s (first: %s)", entry["count"], reason, ", ".join(entry["first_ids"]))
    intervals = (
        bootstrap_intervals(statistics.groups, resamples=bootstrap, seed=seed, confidence=confidence)
        if bootstrap
        else {}
    )
    cleaned_references, cleaned_reports = statistics.cleaned
    return EvaluationResult(
        n=len(study_ids),
        scores={name: _score(value, intervals.get(name)) for name, value in statistics.corpus().items()},
        observations=_observation_table(statistics, settings, bootstrap, seed, confidence),
        diversity={"predictions": diversity(cleaned_reports), "references": diversity(cleaned_references)},
        protocol=protocol,
        per_sample=_rows(study_ids, statistics, settings),
    )


def compare_reports(
    first: Mapping[str, str | None],
    second: Mapping[str, str | None],
    references: Mapping[str, str | None],
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    cleaning: str = "default",
    tokenizer: str | None = None,
    policy: str = DEFAULT_UNCERTAINTY_POLICY,
    zero_division: float = 0.0,
    resamples: int = 1000,
    permutations: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    section: str = "findings",
) -> dict[str, ScoreComparison]:
    """Test whether two systems differ on the same studies; every study with a reference needs both predictions.

    Args:
        first, second: study_id to generated report of each system.
        references: study_id to reference text.
        metrics, cleaning, tokenizer, policy, zero_division: see `ScoreSettings`.
        resamples, permutations, confidence, seed: see `compare_statistics`.
        section: what the references are, for messages.

    Returns:
        Score name to its `ScoreComparison`; `difference` is second - first.

    Raises:
        ConfigError, DataError: as `evaluate_reports`.
    """
    settings = ScoreSettings(
        tuple(metrics) if not isinstance(metrics, str) else metrics, cleaning, tokenizer, policy, zero_division
    )
    settings.check()
    check_resampling(resamples, confidence)
    references = normalise_texts(references)
    groups = []
    for predictions in (first, second):
        predictions = normalise_texts(predictions)
        study_ids, _ = align(predictions, references, section=section, allow_missing=False)
        reports = ["" if is_missing(predictions[study_id]) else str(predictions[study_id]) for study_id in study_ids]
        texts = [str(references[study_id]) for study_id in study_ids]
        groups.append(report_statistics(reports, texts, settings).groups)
    return compare_statistics(
        groups[0], groups[1], resamples=resamples, permutations=permutations, seed=seed, confidence=confidence
    )


def align(
    predictions: Mapping[str, str | None],
    references: Mapping[str, str | None],
    *,
    section: str,
    allow_missing: bool,
) -> tuple[list[str], dict[str, list[str]]]:
    """Decide which studies are scored.

    Returns:
        Ids to score, sorted, and reason -> ids left out.

    Raises:
        DataError: see `evaluate_reports`.
    """
    if not references:
        raise DataError("There are no references.")
    if not predictions:
        raise DataError("There are no predictions.")
    empty = [study_id for study_id, text in references.items() if is_missing(text)]
    with_reference = set(references) - set(empty)
    if not with_reference:
        raise DataError(f"None of the {len(references)} references has a {section} text.")
    without_prediction = sorted(with_reference - set(predictions))
    study_ids = sorted(with_reference & set(predictions))
    if not study_ids:
        raise DataError(
            f"No prediction belongs to a reference: predictions have ids like {sorted(predictions)[:FIRST_IDS]}, "
            f"references like {sorted(with_reference)[:FIRST_IDS]}. Check the split and the id column."
        )
    if without_prediction and not allow_missing:
        raise DataError(
            f"{len(without_prediction)} of {len(with_reference)} studies have no prediction, first "
            f"{without_prediction[:FIRST_IDS]}. Generate them, or pass allow_missing (--allow-missing) to score the "
            "rest; the protocol will say so."
        )
    return study_ids, {
        f"reference without {section}": empty,
        "no prediction": without_prediction,
        "prediction without reference": sorted(set(predictions) - set(references)),
    }


def _score(value: float, interval: Interval | None) -> Score:
    low, high = interval if interval is not None else (None, None)
    return {"value": value, "low": low, "high": high}


def _observation_table(
    statistics: ReportStatistics, settings: ScoreSettings, bootstrap: int, seed: int, confidence: float
) -> dict[str, dict[str, Any]]:
    if statistics.rules is None:
        return {}
    values = statistics.rules.values
    table = per_observation(values.sum(axis=0), settings.zero_division)
    draws = (
        per_observation(bootstrap_sums(values, resamples=bootstrap, seed=seed), settings.zero_division)
        if bootstrap
        else {}
    )
    rows: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(OBSERVATIONS):
        row: dict[str, Any] = {column: int(table[column][index]) for column in _COUNTS}
        for rate in _RATES:
            interval = percentile_interval(draws[rate][:, index], confidence) if draws else None
            row[rate] = _score(float(table[rate][index]), interval)
        rows[name] = row
    return rows


def _rows(study_ids: Sequence[str], statistics: ReportStatistics, settings: ScoreSettings) -> list[dict[str, Any]]:
    columns: dict[str, np.ndarray] = {}
    for group in statistics.groups:
        columns.update(group.per_study() if group is not statistics.rules else {})
    rows: list[dict[str, Any]] = [
        {"study_id": study_id, **{name: float(values[index]) for name, values in columns.items()}}
        for index, study_id in enumerate(study_ids)
    ]
    if statistics.rules is None:
        return rows
    alone = statistics.rules.per_study()
    truth = label_targets([pair[0] for pair in statistics.labels], settings.policy)
    claimed = label_targets([pair[1] for pair in statistics.labels], settings.policy) == 1
    for index, row in enumerate(rows):
        row["rules_f1"] = float(alone["rules_samples_f1"][index])
        row["rules_exact_match"] = bool(alone["rules_exact_match"][index])
        row["rules_missed"] = _names((truth[index] == 1) & ~claimed[index])
        row["rules_invented"] = _names((truth[index] == 0) & claimed[index])
    return rows


def _names(mask: np.ndarray) -> list[str]:
    return [OBSERVATIONS[column] for column in np.flatnonzero(mask)]
