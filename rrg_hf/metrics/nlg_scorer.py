"""The text metrics of report generation as one `ReportScorer`: BLEU-1..4, ROUGE-L, CIDEr and METEOR.

How a text is prepared moves these numbers more than most models do, so cleaning and tokeniser are arguments, and their
rules stand in the protocol.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..text.cleaning import CLEANERS, cleaning_rule
from . import require_pycocoevalcap
from .meteor import (
    METEOR_JAVA,
    METEOR_NLTK,
    meteor_java_absent,
    meteor_java_statistics,
    meteor_nltk_absent,
    meteor_nltk_statistics,
)
from .nlg import NLG_SCORES, nlg_statistics
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import StudyStatistics, mean_statistics
from .tokenization import DEFAULT_TOKENIZER, TOKENIZERS, check_tokenizer, tokenize

logger = logging.getLogger(__name__)

# value of `meteor` -> what is computed
METEOR_CHOICES = {
    "auto": "METEOR 1.5 where Java is, else nltk's METEOR where WordNet is, else neither",
    "java": "METEOR 1.5, or an error where Java is not",
    "nltk": "nltk's METEOR, or an error where WordNet is not",
    "both": "both, or an error where one cannot run",
}
ROUGE_SCORE_NAMES = {"rouge_score_1": "rouge1", "rouge_score_2": "rouge2", "rouge_score_l": "rougeL"}
BLEU_NAMES = tuple(name for name in NLG_SCORES if name.startswith("bleu_"))
NOT_REQUESTED = "not requested"


class ReportNlg(ReportScorer):
    """BLEU-1..4, ROUGE-L, CIDEr, METEOR and, if asked for, the rouge_score package's ROUGE.

    Args:
        cleaning: a key of `rrg_hf.text.cleaning.CLEANERS`, applied to both sides: "default" removes de-identification
            marks, "r2gen_mimic", "r2gen_iu" and "r2gengpt_mimic" are the R2Gen family's, "none" leaves texts alone.
        tokenizer: a key of `tokenization.TOKENIZERS`; None: "whitespace" after R2Gen's cleaning, which sets words off
            already, else "default".
        meteor: a key of `METEOR_CHOICES`, or None for no METEOR. The start of Java takes about 10 s a call.
        rouge_score: add `rouge_score_1`, `rouge_score_2` and `rouge_score_l`, F1 by the rouge_score package with
            stemming; other numbers than `rouge_l`.

    Raises:
        ConfigError: a setting that is unknown or cannot run here, before any compute.
    """

    name = "report_nlg"
    primary_key = "bleu_4"

    def __init__(
        self,
        *,
        cleaning: str = "default",
        tokenizer: str | None = None,
        meteor: str | None = "auto",
        rouge_score: bool = False,
    ) -> None:
        if cleaning not in CLEANERS:
            raise ConfigError(f"Unknown cleaning {cleaning!r}. Use one of {sorted(CLEANERS)}.")
        if tokenizer is None:
            tokenizer = "whitespace" if cleaning.startswith("r2gen") else DEFAULT_TOKENIZER
        check_tokenizer(tokenizer)
        if meteor is not None and meteor not in METEOR_CHOICES:
            raise ConfigError(f"meteor is {meteor!r}. Use one of {sorted(METEOR_CHOICES)}, or None.")
        require_pycocoevalcap()
        if rouge_score and find_spec("rouge_score") is None:
            raise ConfigError("rouge_score=True needs the rouge_score package. Run: pip install rouge_score")
        self.cleaning = cleaning
        self.tokenizer = tokenizer
        self.meteor = meteor
        self.rouge_score = bool(rouge_score)
        self._scores: tuple[str, ...] = NLG_SCORES
        self._meteors, self._absent = self._choose_meteors()

    def _choose_meteors(self) -> tuple[list[str], dict[str, str]]:
        """METEORs that will run, and why the others will not."""
        reasons = {METEOR_JAVA: meteor_java_absent, METEOR_NLTK: meteor_nltk_absent}
        wanted = {"java": [METEOR_JAVA], "nltk": [METEOR_NLTK], "both": [METEOR_JAVA, METEOR_NLTK]}
        if self.meteor in wanted:
            for name in wanted[self.meteor]:
                reason = reasons[name]()
                if reason is not None:
                    raise ConfigError(f"meteor={self.meteor!r} asks for {name}, which cannot run: {reason}.")
            return wanted[self.meteor], {name: NOT_REQUESTED for name in reasons if name not in wanted[self.meteor]}
        absent = dict.fromkeys(reasons, NOT_REQUESTED)
        if self.meteor is None:
            return [], absent
        for name, reason_for in reasons.items():
            reason = reason_for()
            if reason is None:
                del absent[name]
                return [name], absent
            absent[name] = reason
            logger.warning("%s is absent from the scores: %s", name, reason)
        return [], absent

    def only(self, key: str) -> ReportNlg:
        computed = {*self._scores, *self._meteors, *(ROUGE_SCORE_NAMES if self.rouge_score else ())}
        if key not in computed:
            return self
        family = {key} | {name for names in (BLEU_NAMES, ROUGE_SCORE_NAMES) if key in names for name in names}
        narrow = copy.copy(self)
        narrow._scores = tuple(name for name in self._scores if name in family)
        narrow._meteors = [name for name in self._meteors if name in family]
        narrow.rouge_score = key in ROUGE_SCORE_NAMES
        narrow._absent = {**self._absent, **dict.fromkeys(computed - family, NOT_REQUESTED)}
        return narrow

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        check_pairs(predictions, references)
        clean = CLEANERS[self.cleaning]
        reports, truths = [clean(text) for text in predictions], [clean(text) for text in references]
        tokens = tokenize([*reports, *truths], self.tokenizer)
        report_tokens, truth_tokens = tokens[: len(reports)], tokens[len(reports) :]
        groups, absent = nlg_statistics(report_tokens, truth_tokens, self._scores)
        absent |= self._absent
        for name in self._meteors:
            if name == METEOR_NLTK:
                groups.append(meteor_nltk_statistics(report_tokens, truth_tokens))
                continue
            # a text of punctuation only counts as empty here too; Java tokenises the rest itself
            texts = [text if words else "" for text, words in zip(reports, report_tokens, strict=True)]
            try:
                groups.append(meteor_java_statistics(texts, truths))
            except DataError as error:  # Java failed: who asked for it must know, the other scores can do without
                if self.meteor != "auto":
                    raise
                logger.warning("%s is absent from the scores: %s", name, error)
                absent[name] = str(error)
        if self.rouge_score:
            groups.append(rouge_score_statistics(reports, truths))
        counts = {
            "nlg_empty_predictions": sum(not words for words in report_tokens),
            "nlg_empty_references": sum(not words for words in truth_tokens),
        }
        if counts["nlg_empty_references"]:
            logger.warning(
                "%d of %d references hold no text after cleaning and score 0: studies without the section should be "
                "left out on both sides.",
                counts["nlg_empty_references"],
                len(truths),
            )
        return ScorerOutput(groups, absent, counts)

    def protocol(self) -> dict[str, Any]:
        averages = {
            "bleu": "corpus, counts of all studies summed",
            "rouge_l": "mean over studies, beta 1.2",
            "cider": "mean over studies, document frequencies of these references",
            METEOR_JAVA: "corpus, counts of all studies summed",
            METEOR_NLTK: "mean over studies",
        }
        absent = {name.partition("_")[0] if name in BLEU_NAMES else name for name in self._absent}
        protocol: dict[str, Any] = {
            "metric": self.name,
            "cleaning": self.cleaning,
            "cleaning_rule": cleaning_rule(self.cleaning),
            "tokenizer": self.tokenizer,
            "tokenizer_rule": TOKENIZERS[self.tokenizer],
            "meteor": list(self._meteors),
            "average": {name: rule for name, rule in averages.items() if name not in absent},
            "empty_text": "a side without tokens scores 0 in every metric, two empty sides too",
        }
        if self.rouge_score:
            protocol["rouge_score"] = "rouge_score package on the cleaned text, Porter stemming, F1, mean over studies"
        return protocol


def rouge_score_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> StudyStatistics:
    """ROUGE-1, -2 and -L F1 by the rouge_score package with stemming, as `rouge_score_1`, `_2` and `_l`.

    Args:
        hypotheses: cleaned reports. The package keeps lower-case letters and digits only; a text without any scores 0.
        references: cleaned references, same order.

    Raises:
        ConfigError: the package is missing.
    """
    if find_spec("rouge_score") is None:
        raise ConfigError("These scores need the rouge_score package. Run: pip install rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_SCORE_NAMES.values()), use_stemmer=True)
    rows = [scorer.score(reference, hypothesis) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    return mean_statistics(
        {name: np.array([row[theirs].fmeasure for row in rows]) for name, theirs in ROUGE_SCORE_NAMES.items()}
    )
