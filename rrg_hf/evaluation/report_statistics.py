"""From texts to per-study statistics: the part that evaluation, comparison, shards and the evidence test share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import DataError
from ..metrics.meteor import METEOR_JAVA, METEOR_NLTK, meteor_statistics
from ..metrics.nlg import CIDER_NEEDS_TWO, bleu_statistics, nlg_statistics, rouge_l_per_study
from ..metrics.observation_scores import label_statistics, label_targets
from ..metrics.reading import TextReader
from ..metrics.scorer import ReportScorer, ScorerOutput
from ..metrics.statistics import StudyStatistics, mean_statistics
from ..metrics.tokenization import tokenize
from ..observations import OBSERVATIONS, Labels
from ..text.cleaning import CLEANERS
from ..text.rules import label_report
from .cider_frequencies import CiderFrequencies
from .settings import DEFAULT_METRICS, METRICS, ScoreSettings

__all__ = [
    "DEFAULT_METRICS",
    "METRICS",
    "LabelCache",
    "ReportStatistics",
    "ScoreSettings",
    "report_statistics",
    "score_systems",
]

NOT_REQUESTED = "not requested; add 'meteor' to the metrics"
# Pairs that the networks see at a time: what they read of them stays in the readers' memory for all metrics.
CHUNK = 5_000

# (stage, steps done since the last call, steps of the stage)
Progress = Callable[[str, int, int], None]


@dataclass
class ReportStatistics:
    """Statistics of aligned reports.

    Attributes:
        groups: all statistics, in a fixed order of scores.
        labellers: who read observations ("rules", "chexbert") -> index of the label statistics in `groups`.
        absent: score -> why it is missing.
        counts: what a reader must know beside the scores, such as unparsable answers.
        columns: further values per study, e.g. "rules_missed", one entry per study.
        labels: (reference labels, report labels) per study, when "rules" was asked for.
        cleaned: (references, reports) after cleaning.
    """

    groups: list[StudyStatistics]
    labellers: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    labels: list[tuple[Labels, Labels]] = field(default_factory=list)
    cleaned: tuple[list[str], list[str]] = ([], [])

    @property
    def rules(self) -> StudyStatistics | None:
        """The rule labeller's statistics, if it was asked for."""
        return self.groups[self.labellers["rules"]] if "rules" in self.labellers else None

    def corpus(self) -> dict[str, float]:
        """All scores over all studies."""
        return {name: value for group in self.groups for name, value in group.corpus().items()}

    def rows(self, study_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Each study's own scores, None where it has none. Of label statistics, the averages that differ per study."""
        columns: dict[str, np.ndarray] = {}
        for group in (group for index, group in enumerate(self.groups) if index not in self.labellers.values()):
            columns.update(group.per_study())
        for name, index in self.labellers.items():
            alone = self.groups[index].per_study()
            for suffix in ("", "_top5"):
                columns[f"{name}_f1{suffix}"] = alone[f"{name}_samples_f1{suffix}"]
                columns[f"{name}_exact_match{suffix}"] = alone[f"{name}_exact_match{suffix}"] == 1
            columns[f"{name}_label_accuracy"] = alone[f"{name}_label_accuracy"]
        for index, study_id in enumerate(study_ids):
            row: dict[str, Any] = {"study_id": study_id}
            row |= {name: _plain(values[index]) for name, values in columns.items()}
            row |= {name: values[index] for name, values in self.columns.items()}
            yield row


def _plain(value: Any) -> float | bool | None:
    if isinstance(value, np.bool_):
        return bool(value)
    return None if math.isnan(value) else float(value)


class LabelCache:
    """Labels by the rules, each distinct text read once.

    Args:
        cleaning: a key of `CLEANERS`, applied before reading.
    """

    def __init__(self, cleaning: str = "default") -> None:
        self._clean = CLEANERS[cleaning]
        self._known: dict[str, Labels] = {}

    def __call__(self, text: str) -> Labels:
        if text not in self._known:
            self._known[text] = label_report(self._clean(text))
        return self._known[text]


def report_statistics(
    reports: Sequence[str], references: Sequence[str], settings: ScoreSettings, *, label: LabelCache | None = None
) -> ReportStatistics:
    """Statistics of one system without networks; see `score_systems`."""
    return score_systems([reports], references, settings, label=label)[0]


def score_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    settings: ScoreSettings,
    *,
    scorers: Mapping[str, ReportScorer] | None = None,
    label: LabelCache | None = None,
    cider: CiderFrequencies | None = None,
    progress: Progress | None = None,
) -> list[ReportStatistics]:
    """Statistics behind every requested score, of several systems on the same studies.

    Each distinct text is read once by each network, whichever metric and system needs it.

    Args:
        systems: of each system the generated reports; "" scores 0.
        references: whole reference texts, same order, none missing.
        settings: checked before (`ScoreSettings.check`).
        scorers: of `rrg_hf.metrics.shared.build_scorers`, for the metrics that need networks.
        label: a cache to reuse when the same references are scored again.
        cider: document frequencies of a larger corpus that these studies are part of; default: of these references.
        progress: told about every step.
    """
    label = label or LabelCache(settings.clinical_cleaning)
    clean = CLEANERS[settings.cleaning]
    truths = [clean(text) for text in references]
    tokenised = not {"nlg", "meteor"}.isdisjoint(settings.resolved_metrics)
    truth_tokens = tokenize(truths, settings.resolved_tokenizer) if tokenised else []
    stages = [name for name in settings.resolved_metrics if name in ("nlg", "meteor", "rules")]
    results: list[ReportStatistics] = []
    for reports in systems:
        result = ReportStatistics([])
        cleaned = [clean(text) for text in reports]
        result.cleaned = truths, cleaned
        tokens = tokenize(cleaned, settings.resolved_tokenizer) if tokenised else []
        if "nlg" in stages:
            _add_nlg(result, tokens, truth_tokens, cider)
            _tell(progress, "nlg", 1, len(systems))
        if "meteor" in stages:
            groups, absent = meteor_statistics(cleaned, truths, tokens, truth_tokens)
            result.groups += groups
            result.absent |= absent
            _tell(progress, "meteor", 1, len(systems))
        else:
            result.absent |= dict.fromkeys((METEOR_JAVA, METEOR_NLTK), NOT_REQUESTED)
        if "rules" in stages:
            _add_rules(result, reports, references, settings, label)
            _tell(progress, "rules", 1, len(systems))
        results.append(result)
    if scorers:
        _add_scorers(results, systems, references, settings, scorers, progress)
    return results


def _tell(progress: Progress | None, stage: str, done: int, total: int) -> None:
    if progress is not None:
        progress(stage, done, total)


def _add_nlg(
    result: ReportStatistics,
    tokens: Sequence[Sequence[str]],
    truth_tokens: Sequence[Sequence[str]],
    cider: CiderFrequencies | None,
) -> None:
    if cider is None:
        groups, absent = nlg_statistics(tokens, truth_tokens)
        result.groups += groups
        result.absent |= absent
        return
    means = {"rouge_l": rouge_l_per_study(tokens, truth_tokens)}
    if cider.documents > 1:
        means["cider"] = cider.per_study(tokens, truth_tokens)
    else:
        result.absent["cider"] = CIDER_NEEDS_TWO
    result.groups += [bleu_statistics(tokens, truth_tokens), mean_statistics(means)]


def _add_rules(
    result: ReportStatistics,
    reports: Sequence[str],
    references: Sequence[str],
    settings: ScoreSettings,
    label: LabelCache,
) -> None:
    result.labels = [(label(reference), label(report)) for reference, report in zip(references, reports, strict=True)]
    truths, claims = ([pair[side] for pair in result.labels] for side in (0, 1))
    result.labellers["rules"] = len(result.groups)
    result.groups.append(
        label_statistics(truths, claims, policy=settings.policy, zero_division=settings.zero_division)
    )
    truth = label_targets(truths, settings.policy)
    claimed = label_targets(claims, settings.policy) == 1
    result.columns["rules_missed"] = [_names(row) for row in (truth == 1) & ~claimed]
    result.columns["rules_invented"] = [_names(row) for row in (truth == 0) & claimed]


def _names(mask: np.ndarray) -> list[str]:
    return [OBSERVATIONS[column] for column in np.flatnonzero(mask)]


def _add_scorers(
    results: Sequence[ReportStatistics],
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    settings: ScoreSettings,
    scorers: Mapping[str, ReportScorer],
    progress: Progress | None,
) -> None:
    clean = CLEANERS[settings.clinical_cleaning]
    truths = [clean(text) for text in references]
    reports = [[clean(text) for text in texts] for texts in systems]
    chunks = [slice(start, start + CHUNK) for start in range(0, len(truths), CHUNK)]
    outputs: list[dict[str, list[ScorerOutput]]] = [{name: [] for name in scorers} for _ in systems]
    readers = _shared_readers(scorers)
    texts_of = [set(truths[part]).union(*(texts[part] for texts in reports)) for part in chunks]
    for part, distinct in zip(chunks, texts_of, strict=True):
        for reader in readers:
            if len(distinct) <= reader.memory:
                _read_ahead(
                    reader, truths[part], [texts[part] for texts in reports], sum(map(len, texts_of)), progress
                )
        for name, scorer in scorers.items():
            for output, texts in zip(outputs, reports, strict=True):
                output[name].append(scorer.score(texts[part], truths[part]))
                _tell(progress, name, 1, len(chunks) * len(systems))
    for result, output in zip(results, outputs, strict=True):
        for parts in output.values():
            _add_output(result, parts)


def _shared_readers(scorers: Mapping[str, ReportScorer]) -> list[TextReader[Any]]:
    readers = {id(reader): reader for scorer in scorers.values() for reader in scorer.readers()}
    return [reader for reader in readers.values() if reader.reads_reports]


def _read_ahead(
    reader: TextReader[Any],
    references: Sequence[str],
    systems: Sequence[Sequence[str]],
    total: int,
    progress: Progress | None,
) -> None:
    """Fill a reader's memory, so that scorers sharing it find every text of the chunk there."""

    def done(texts: int) -> None:
        _tell(progress, f"{reader.name} reads", texts, total)

    reader(references, persist=True, progress=done)
    known = set(references)
    reader(list(dict.fromkeys(text for texts in systems for text in texts if text not in known)), progress=done)


def _add_output(result: ReportStatistics, parts: Sequence[ScorerOutput]) -> None:
    first = parts[0]
    for index, group in enumerate(first.groups):
        values = [part.groups[index].values for part in parts]
        merged = StudyStatistics(np.concatenate(values), group.score) if len(values) > 1 else group
        labeller = next((name for name in merged.corpus() if name.endswith("_exact_match_top5")), None)
        if labeller is not None:
            result.labellers[labeller.removesuffix("_exact_match_top5")] = len(result.groups)
        result.groups.append(merged)
    for part in parts:
        result.absent |= part.absent
        for name, count in part.counts.items():
            result.counts[name] = result.counts.get(name, 0) + count
    for name in first.columns:
        result.columns[name] = [value for part in parts for value in part.columns[name]]


def normalise_texts(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Ids as strings, so that 101 from one file meets "101" from another.

    Raises:
        DataError: not a mapping, two ids become the same string, or a text is neither a text nor missing.
    """
    if not isinstance(texts, Mapping):
        raise DataError(f"Predictions and references are mappings of study id to text, not a {type(texts).__name__}.")
    normal = {str(study_id): text for study_id, text in texts.items()}
    if len(normal) != len(texts):
        raise DataError("Some study ids differ only in type (101 and '101'). Use one kind of id.")
    for study_id, text in normal.items():
        if not (text is None or isinstance(text, str) or (isinstance(text, float) and math.isnan(text))):
            raise DataError(f"The text of study {study_id} is a {type(text).__name__}. Give a text, or None.")
    return normal
