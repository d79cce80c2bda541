"""What every report metric is: texts in, per-study statistics out, with its protocol."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import DataError
from .reading import TextReader
from .statistics import StudyStatistics


@dataclass
class ScorerOutput:
    """Scores of aligned reports.

    Attributes:
        groups: statistics behind every score; sums over studies give the corpus scores, so they can be resampled.
        absent: score -> why it could not be computed.
        counts: what a reader must know beside the scores, e.g. {"green_unparsable": 3}.
        columns: further values per study that are no scores (lists of names, answers), name -> one entry per study.
    """

    groups: list[StudyStatistics]
    absent: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def corpus(self) -> dict[str, float]:
        """All scores over all studies."""
        return {name: value for group in self.groups for name, value in group.corpus().items()}

    def per_study(self) -> dict[str, list[float | None]]:
        """Every score of each study alone; None where a study has none (it is then left out of the corpus score)."""
        rows: dict[str, list[float | None]] = {}
        for group in self.groups:
            for name, values in group.per_study().items():
                rows[name] = [None if math.isnan(value) else float(value) for value in values]
        return rows


class ReportScorer(ABC):
    """A metric of generated reports.

    Attributes:
        name: of the metric, e.g. "radgraph_f1".
        primary_key: the score a table shows when it shows one.
        higher_is_better: direction of `primary_key`.
    """

    name: ClassVar[str]
    primary_key: str
    higher_is_better: bool = True

    @abstractmethod
    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        """Compare aligned reports; use `check_pairs` first.

        Args:
            predictions: generated reports; "" is a report that says nothing.
            references: whole reference texts, same order.

        Raises:
            DataError: lists of unequal length, empty, or holding something that is not a text.
        """

    @abstractmethod
    def protocol(self) -> dict[str, Any]:
        """Everything that must be equal before two numbers may be compared: backend, revision, conventions."""

    def only(self, key: str) -> ReportScorer:
        """This metric for someone who reads one score: it may leave out others that cost time and `key` does not need.

        Args:
            key: name of a score; with one that this metric does not know, nothing is left out.
        """
        return self

    def readers(self) -> list[TextReader[Any]]:
        """The readers behind this metric; metrics may share them, and then each text is read once for all."""
        return []

    def compute(
        self, predictions: Sequence[str], references: Sequence[str], *, per_sample: bool = False
    ) -> dict[str, Any]:
        """Corpus scores by name, with "protocol", and "per_sample" (score name to one value or None per pair)."""
        return self.result(self.score(predictions, references), per_sample=per_sample)

    def result(self, output: ScorerOutput, *, per_sample: bool = False) -> dict[str, Any]:
        """What `compute` returns, from what `score` returned."""
        result: dict[str, Any] = dict(output.corpus())
        result.update(output.counts)
        if per_sample:
            result["per_sample"] = {**output.per_study(), **output.columns}
        result["protocol"] = {**self.protocol(), **({"absent": output.absent} if output.absent else {})}
        return result


def check_pairs(predictions: Sequence[str], references: Sequence[str]) -> None:
    """Refuse what cannot be scored.

    Raises:
        DataError: see `ReportScorer.score`.
    """
    for name, texts in (("predictions", predictions), ("references", references)):
        if isinstance(texts, (str, Mapping)):
            raise DataError(f"{name} is one {type(texts).__name__}. Give a list with one report per study.")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(
                    f"{name}[{index}] is {type(text).__name__}, not a text. Leave studies without a report out, or "
                    'give "" for a report that says nothing.'
                )
    if len(predictions) != len(references):
        raise DataError(f"{len(predictions)} predictions but {len(references)} references. Give one of each a study.")
    if not references:
        raise DataError("No reports to score: both lists are empty.")
