"""`evaluate_reports`: generated reports against references, with intervals and a protocol."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import ConfigError, DataError
from ..metrics.scorer import ReportScorer
from ..metrics.shared import build_scorers
from ..observations import DEFAULT_UNCERTAINTY_POLICY
from ..text.cleaning import is_missing
from .protocol import ALLOW_MISSING, FIRST_IDS, Protocol, phantom_flag, skip_entry, text_sha256
from .report_statistics import Progress, ReportStatistics, normalise_texts, score_systems
from .result import EvaluationResult, diversity
from .settings import DEFAULT_METRICS, ScoreSettings
from .significance import ScoreComparison, check_resampling, compare_statistics
from .summary import Resampling, compare, make_protocol, still_absent, summarise

logger = logging.getLogger(__name__)


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
    versus: Mapping[str, str | None] | None = None,
    sources: Collection[str] = (),
    generation: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    scorers: Mapping[str, ReportScorer] | None = None,
    **settings: Any,
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
        versus: another system's reports on the same studies: adds paired tests against it as `comparison`.
        sources: names of the data sets of the references; {"phantom"} marks the numbers as phantom.
        generation: model, revision and settings of the predictions; recorded.
        progress: called with (stage, steps done since the last call, steps of the stage).
        scorers: metric to scorer, to use instead of building them (see `rrg_hf.metrics.shared.build_scorers`).
        settings: `clinical_cleaning`, `options`, `device`, `dtype`, `batch_size` and `cache_dir` of `ScoreSettings`.

    Returns:
        Scores, table per observation, rows per study, diversity and protocol.

    Raises:
        ConfigError: a setting that cannot work, before any compute.
        DataError: nothing to score, studies without a prediction, or phantom mixed with other data.
    """
    chosen = _settings(
        metrics=metrics, cleaning=cleaning, tokenizer=tokenizer, policy=policy, zero_division=zero_division, **settings
    )
    resampling = Resampling(bootstrap, confidence, seed)
    resampling.check()
    if versus is not None and allow_missing:
        raise ConfigError("A comparison needs both systems' reports for every study. Drop allow_missing or versus.")
    phantom = phantom_flag(set(sources))
    predictions, references = normalise_texts(predictions), normalise_texts(references)
    study_ids, skipped = align(predictions, references, section=section, allow_missing=allow_missing)
    systems = [_texts(predictions, study_ids)]
    if versus is not None:
        versus = normalise_texts(versus)
        align(versus, references, section=section, allow_missing=False)
        systems.append(_texts(versus, study_ids))
    used = _scorers(chosen, scorers)
    truths = _texts(references, study_ids)
    statistics, *others = score_systems(systems, truths, chosen, scorers=used, progress=progress)
    scores, tables = summarise(
        statistics.groups, statistics.labellers, zero_division=zero_division, resampling=resampling
    )
    labellers = main_labeller_first(statistics.labellers)
    protocol = make_protocol(
        chosen,
        used,
        labellers,
        resampling,
        section=section,
        absent=still_absent(statistics.absent, scores),
        counts=statistics.counts,
        studies={"references": len(references), "predictions": len(predictions), "evaluated": len(study_ids)},
        skipped={reason: skip_entry(ids) for reason, ids in skipped.items() if ids},
        empty_predictions=sum(report == "" for report in systems[0]),
        sources=sorted(set(sources)),
        phantom=phantom,
        generation=dict(generation or {}),
        sha256={"predictions": text_sha256(predictions), "references": text_sha256(references)},
    )
    warn_of_skipped(protocol)
    cleaned_references, cleaned_reports = statistics.cleaned
    return EvaluationResult(
        n=len(study_ids),
        scores=scores,
        observations=tables[labellers[0]] if labellers else {},
        diversity={"predictions": diversity(cleaned_reports), "references": diversity(cleaned_references)},
        protocol=protocol,
        per_sample=list(statistics.rows(study_ids)),
        comparison=_comparison(others, statistics, versus, resampling),
        more_observations={name: tables[name] for name in labellers[1:]},
    )


def warn_of_skipped(protocol: Protocol) -> None:
    """Log what was left out."""
    for reason, entry in protocol.skipped.items():
        logger.warning("%d studies left out: %s (first: %s)", entry["count"], reason, ", ".join(entry["first_ids"]))


def main_labeller_first(labellers: Mapping[str, int]) -> list[str]:
    """Labellers in the order of their tables; `rules` leads, as it always has, where it was asked for."""
    return sorted(labellers, key=lambda name: name != "rules")


def _settings(**values: Any) -> ScoreSettings:
    known = set(ScoreSettings.__dataclass_fields__)
    unknown = sorted(set(values) - known)
    if unknown:
        raise TypeError(f"Unknown settings {unknown}. There are {sorted(known)}.")
    if not isinstance(values["metrics"], str):
        values["metrics"] = tuple(values["metrics"])
    settings = ScoreSettings(**values)
    settings.check()
    return settings


def _texts(reports: Mapping[str, str | None], study_ids: Sequence[str]) -> list[str]:
    return ["" if is_missing(reports[study_id]) else str(reports[study_id]) for study_id in study_ids]


def _scorers(settings: ScoreSettings, given: Mapping[str, ReportScorer] | None) -> Mapping[str, ReportScorer]:
    if given is None:
        return build_scorers(settings.clinical_metrics, settings.of_scorers())
    missing = [name for name in settings.clinical_metrics if name not in given]
    if missing:
        raise ConfigError(f"scorers has none for {missing}; it has {sorted(given)}.")
    return {name: given[name] for name in settings.clinical_metrics}


def _comparison(
    others: Sequence[ReportStatistics],
    statistics: ReportStatistics,
    versus: Mapping[str, str | None] | None,
    resampling: Resampling,
) -> dict[str, Any]:
    if versus is None:
        return {}
    tests = compare(others[0].groups, statistics.groups, resampling)
    return {"sha256": text_sha256(versus), **tests}


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
    progress: Progress | None = None,
    scorers: Mapping[str, ReportScorer] | None = None,
    **settings: Any,
) -> dict[str, ScoreComparison]:
    """Test whether two systems differ on the same studies; every study with a reference needs both predictions.

    Args:
        first, second: study_id to generated report of each system.
        references: study_id to reference text.
        metrics, cleaning, tokenizer, policy, zero_division: see `ScoreSettings`.
        resamples, permutations, confidence, seed: see `compare_statistics`.
        section: what the references are, for messages.
        progress, scorers, settings: as in `evaluate_reports`.

    Returns:
        Score name to its `ScoreComparison`; `difference` is second - first.

    Raises:
        ConfigError, DataError: as `evaluate_reports`.
    """
    chosen = _settings(
        metrics=metrics, cleaning=cleaning, tokenizer=tokenizer, policy=policy, zero_division=zero_division, **settings
    )
    check_resampling(resamples, confidence, seed)
    references = normalise_texts(references)
    systems = []
    study_ids: list[str] = []
    for predictions in (first, second):
        predictions = normalise_texts(predictions)
        study_ids, _ = align(predictions, references, section=section, allow_missing=False)
        systems.append(_texts(predictions, study_ids))
    one, two = score_systems(
        systems, _texts(references, study_ids), chosen, scorers=_scorers(chosen, scorers), progress=progress
    )
    return compare_statistics(
        one.groups, two.groups, resamples=resamples, permutations=permutations, seed=seed, confidence=confidence
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
            f"{without_prediction[:FIRST_IDS]}. {ALLOW_MISSING}."
        )
    return study_ids, {
        f"reference without {section}": empty,
        "no prediction": without_prediction,
        "prediction without reference": sorted(set(predictions) - set(references)),
    }
