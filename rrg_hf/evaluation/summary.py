"""From per-study statistics to what a result holds: scores with intervals, tables, protocol, comparison.

Shared by evaluation in memory and in shards, so that both give the same numbers from the same statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics.observation_scores import per_observation
from ..metrics.scorer import ReportScorer
from ..metrics.statistics import StudyStatistics, column_sums
from ..observations import OBSERVATIONS
from ..text.cleaning import cleaning_rule
from .protocol import Protocol, library_versions, tokenizer_rule
from .result import Score
from .settings import ScoreSettings
from .significance import (
    Interval,
    check_resampling,
    compare_statistics,
    intervals_of_sums,
    percentile_interval,
    resampled_sums,
)

_RATES = ("precision", "recall", "f1")
_COUNTS = ("support", "predicted", "tp", "fp", "fn", "evaluated")
_METHOD = "percentile over resampled studies; CIDEr with the document frequencies of all references"
# permutations, and resamples of a comparison where no intervals were asked for
COMPARISON_DRAWS = 1000


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    Attributes:
        bootstrap: resamples of the studies; 0 for no intervals.
        confidence: of the intervals.
        seed: of the draw.
    """

    bootstrap: int = 1000
    confidence: float = 0.95
    seed: int = 0

    def check(self) -> None:
        """Raises `ConfigError` for numbers that make no interval."""
        check_resampling(self.bootstrap, self.confidence, self.seed)

    def to_protocol(self) -> dict[str, Any] | None:
        if not self.bootstrap:
            return None
        return {
            "resamples": self.bootstrap,
            "seed": self.seed,
            "confidence": self.confidence,
            "method": _METHOD,
        }


def summarise(
    groups: Sequence[StudyStatistics],
    labellers: Mapping[str, int],
    *,
    zero_division: float,
    resampling: Resampling,
) -> tuple[dict[str, Score], dict[str, dict[str, dict[str, Any]]]]:
    """Scores with intervals, and the table per observation of every labeller.

    Args:
        groups: statistics of the same studies.
        labellers: labeller to the index of its label statistics.
        zero_division: value of 0/0.
        resampling: of the intervals; one draw serves all scores.
    """
    values = {name: value for group in groups for name, value in group.corpus().items()}
    sums = (
        resampled_sums([group.values for group in groups], resamples=resampling.bootstrap, seed=resampling.seed)
        if resampling.bootstrap
        else None
    )
    intervals = {} if sums is None else intervals_of_sums(groups, sums, resampling.confidence)
    scores = {name: _score(value, intervals.get(name)) for name, value in values.items()}
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for labeller, index in labellers.items():
        table = per_observation(column_sums(groups[index].values), zero_division)
        drawn = {} if sums is None else per_observation(sums[index], zero_division)
        tables[labeller] = {}
        for column, name in enumerate(OBSERVATIONS):
            row: dict[str, Any] = {count: int(table[count][column]) for count in _COUNTS}
            for rate in _RATES:
                interval = percentile_interval(drawn[rate][:, column], resampling.confidence) if drawn else None
                row[rate] = _score(float(table[rate][column]), interval)
            tables[labeller][name] = row
    return scores, tables


def _score(value: float, interval: Interval | None) -> Score:
    low, high = interval if interval is not None else (None, None)
    return {"value": value, "low": low, "high": high}


def still_absent(absent: Mapping[str, str], scores: Mapping[str, Score]) -> dict[str, str]:
    """Reasons of the scores that are missing over all studies, not only in a part of them."""
    return {
        name: reason
        for name, reason in absent.items()
        if name not in scores or scores[name]["value"] is None or math.isnan(scores[name]["value"] or 0.0)
    }


def comparison_settings(resampling: Resampling) -> dict[str, int]:
    """Draws of the paired tests that go with `resampling`."""
    return {
        "resamples": resampling.bootstrap or COMPARISON_DRAWS,
        "permutations": COMPARISON_DRAWS,
        "seed": resampling.seed,
    }


def compare(
    other: Sequence[StudyStatistics], groups: Sequence[StudyStatistics], resampling: Resampling
) -> dict[str, Any]:
    """Paired tests of a system against another: "resamples", "permutations", "seed" and "scores" by name."""
    draws = comparison_settings(resampling)
    compared = compare_statistics(other, groups, **draws, confidence=resampling.confidence)
    return {**draws, "scores": {name: entry.to_dict() for name, entry in compared.items()}}


def make_protocol(
    settings: ScoreSettings,
    scorers: Mapping[str, ReportScorer],
    labellers: Sequence[str],
    resampling: Resampling,
    *,
    section: str,
    **about_data: Any,
) -> Protocol:
    """The protocol of scores made with these settings and scorers.

    Args:
        settings, scorers, resampling: what made the scores.
        labellers: who read observations, the one of the main table first.
        section: what the references are.
        about_data: further fields of `Protocol`.
    """
    from ..text.rules import RULES_VERSION

    labeller = labellers[0] if labellers else ""
    version = f"rules {RULES_VERSION}" if labeller == "rules" else ""
    if labeller in scorers:
        version = f"{labeller} {scorers[labeller].readers()[0].revision}"
    networks = any(reader.name != "rules" for scorer in scorers.values() for reader in scorer.readers())
    return Protocol(
        section=section,
        metrics=list(settings.resolved_metrics),
        cleaning=settings.cleaning,
        cleaning_rule=cleaning_rule(settings.cleaning),
        clinical_cleaning=settings.clinical_cleaning,
        tokenizer=settings.resolved_tokenizer,
        tokenizer_rule=tokenizer_rule(settings.resolved_tokenizer),
        labeller=labeller,
        labeller_version=version,
        scorers={name: scorer.protocol() for name, scorer in scorers.items()},
        policy=settings.policy,
        zero_division=settings.zero_division,
        bootstrap=resampling.to_protocol(),
        versions=library_versions(networks=networks),
        **about_data,
    )
