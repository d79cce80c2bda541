"""From texts to per-study statistics: the part that evaluation, comparison and the evidence test share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import ConfigError, DataError
from ..metrics import require_pycocoevalcap
from ..metrics.meteor import METEOR_JAVA, METEOR_NLTK, meteor_statistics
from ..metrics.nlg import nlg_statistics
from ..metrics.observation_scores import label_statistics
from ..metrics.statistics import StudyStatistics
from ..metrics.tokenization import DEFAULT_TOKENIZER, check_tokenizer, tokenize
from ..observations import DEFAULT_UNCERTAINTY_POLICY, UNCERTAINTY_POLICIES, Labels
from ..text.cleaning import CLEANERS, clean_report
from ..text.rules import label_report

METRICS = ("nlg", "rules", "meteor")
DEFAULT_METRICS = ("nlg", "rules")
NOT_REQUESTED = "not requested; add 'meteor' to the metrics"


@dataclass(frozen=True)
class ScoreSettings:
    """What decides a score besides the texts.

    Attributes:
        metrics: of "nlg" (BLEU-1..4, ROUGE-L, CIDEr), "rules" (observations read by the rule labeller) and "meteor"
            (METEOR 1.5 where Java is, nltk's where WordNet is; the JVM's start takes about 10 s).
        cleaning: a key of `rrg_hf.text.cleaning.CLEANERS`, applied to both sides. Labels are always read from the
            text after "default" cleaning, since R2Gen's removes what a labeller reads.
        tokenizer: a key of `rrg_hf.metrics.tokenization.TOKENIZERS`; None: "whitespace" for R2Gen's cleaning, whose
            output is tokens already, else "default".
        policy: a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`.
        zero_division: value of 0/0 in precision, recall and F1.
    """

    metrics: Sequence[str] = DEFAULT_METRICS
    cleaning: str = "default"
    tokenizer: str | None = None
    policy: str = DEFAULT_UNCERTAINTY_POLICY
    zero_division: float = 0.0

    @property
    def resolved_tokenizer(self) -> str:
        if self.tokenizer is not None:
            return self.tokenizer
        return "whitespace" if self.cleaning.startswith("r2gen") else DEFAULT_TOKENIZER

    def check(self) -> None:
        """Fail before any compute.

        Raises:
            ConfigError: an unknown metric, cleaning, tokeniser or policy, a bad zero_division, or a missing library.
        """
        if isinstance(self.metrics, str) or not self.metrics:
            raise ConfigError(f"metrics is {self.metrics!r}. Give one or more of {list(METRICS)} in a list.")
        unknown = [name for name in self.metrics if name not in METRICS]
        if unknown:
            raise ConfigError(f"Unknown metrics {unknown}. Use some of {list(METRICS)}.")
        if self.cleaning not in CLEANERS:
            raise ConfigError(f"Unknown cleaning {self.cleaning!r}. Use one of {sorted(CLEANERS)}.")
        if self.policy not in UNCERTAINTY_POLICIES:
            raise ConfigError(
                f"Unknown uncertainty policy {self.policy!r}. Use one of {sorted(UNCERTAINTY_POLICIES)}."
            )
        if not 0.0 <= self.zero_division <= 1.0:
            raise ConfigError(f"zero_division is {self.zero_division}. Use a value from 0 to 1, usually 0 or 1.")
        check_tokenizer(self.resolved_tokenizer)
        if "nlg" in self.metrics:
            require_pycocoevalcap()


@dataclass
class ReportStatistics:
    """Statistics of aligned reports.

    Attributes:
        groups: all statistics, in a fixed order of scores.
        rules: the label statistics among them, or None.
        absent: score -> why it is missing.
        labels: (reference labels, report labels) per study, when "rules" was asked for.
        cleaned: (references, reports) after cleaning.
    """

    groups: list[StudyStatistics]
    rules: StudyStatistics | None
    absent: dict[str, str]
    labels: list[tuple[Labels, Labels]] = field(default_factory=list)
    cleaned: tuple[list[str], list[str]] = ([], [])

    def corpus(self) -> dict[str, float]:
        """All scores over all studies."""
        scores: dict[str, float] = {}
        for group in self.groups:
            scores.update(group.corpus())
        return scores


class LabelCache:
    """Labels by the rules, each distinct text read once."""

    def __init__(self) -> None:
        self._known: dict[str, Labels] = {}

    def __call__(self, text: str) -> Labels:
        if text not in self._known:
            self._known[text] = label_report(clean_report(text))
        return self._known[text]


def report_statistics(
    reports: Sequence[str], references: Sequence[str], settings: ScoreSettings, *, label: LabelCache | None = None
) -> ReportStatistics:
    """Statistics behind every requested score.

    Args:
        reports: generated reports; "" scores 0.
        references: whole reference texts, same order, none missing.
        settings: checked before (`ScoreSettings.check`).
        label: a cache to reuse when the same references are scored again.
    """
    clean = CLEANERS[settings.cleaning]
    cleaned_references = [clean(text) for text in references]
    cleaned_reports = [clean(text) for text in reports]
    groups: list[StudyStatistics] = []
    absent: dict[str, str] = {}
    if "nlg" in settings.metrics or "meteor" in settings.metrics:
        tokenizer = settings.resolved_tokenizer
        tokens = tokenize([*cleaned_reports, *cleaned_references], tokenizer)
        report_tokens, reference_tokens = tokens[: len(reports)], tokens[len(reports) :]
        if "nlg" in settings.metrics:
            statistics, missing = nlg_statistics(report_tokens, reference_tokens)
            groups += statistics
            absent |= missing
        if "meteor" in settings.metrics:
            statistics, missing = meteor_statistics(
                cleaned_reports, cleaned_references, report_tokens, reference_tokens
            )
            groups += statistics
            absent |= missing
    if "meteor" not in settings.metrics:
        absent |= dict.fromkeys((METEOR_JAVA, METEOR_NLTK), NOT_REQUESTED)
    rules: StudyStatistics | None = None
    labels: list[tuple[Labels, Labels]] = []
    if "rules" in settings.metrics:
        label = label or LabelCache()
        labels = [(label(reference), label(report)) for reference, report in zip(references, reports, strict=True)]
        rules = label_statistics(
            [pair[0] for pair in labels],
            [pair[1] for pair in labels],
            policy=settings.policy,
            zero_division=settings.zero_division,
        )
        groups.append(rules)
    return ReportStatistics(groups, rules, absent, labels, (cleaned_references, cleaned_reports))


def normalise_texts(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Ids as strings, so that 101 from one file meets "101" from another.

    Raises:
        DataError: two ids become the same string.
    """
    normal = {str(study_id): text for study_id, text in texts.items()}
    if len(normal) != len(texts):
        raise DataError("Some study ids differ only in type (101 and '101'). Use one kind of id.")
    return normal
