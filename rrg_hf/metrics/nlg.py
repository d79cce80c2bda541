"""BLEU-1..4, ROUGE-L and CIDEr as pycocoevalcap computes them, the convention of report-generation papers.

BLEU: Papineni et al. 2002, corpus level, clipped counts, additive constants 1e-15 and 1e-9 instead of smoothing.
ROUGE-L: Lin 2004, LCS F-measure with beta 1.2, mean over studies.
CIDEr (not CIDEr-D): Vedantam et al. 2015, n = 1..4, document frequencies over the evaluated references, times 10.

A side without tokens scores exactly 0 in all of them, also when both are empty: pycocoevalcap itself would give two
empty texts a ROUGE-L of 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..errors import DataError
from . import require_pycocoevalcap
from .statistics import StudyStatistics, mean_statistics
from .tokenization import DEFAULT_TOKENIZER, tokenize

BLEU_ORDERS = (1, 2, 3, 4)
NLG_SCORES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider")
CIDER_NEEDS_TWO = (
    "CIDEr weighs n-grams by their rarity over the evaluated references, which is 0 for all of them with one study"
)

Tokens = Sequence[Sequence[str]]


def _check_lengths(hypotheses: Tokens, references: Tokens) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} hypotheses but {len(references)} references. Give one of each per study.")
    if not references:
        raise DataError("No reports to score: both lists are empty.")


def bleu_from_sums(sums: np.ndarray) -> dict[str, np.ndarray]:
    """BLEU-1..4 from summed counts.

    Args:
        sums: (..., 10): hypothesis length, reference length, n-grams in the hypothesis for n = 1..4, of them matched.

    Returns:
        "bleu_1" .. "bleu_4", each (...).
    """
    tiny, small = 1e-15, 1e-9  # pycocoevalcap's constants; they show in the eighth decimal
    length, reference_length = sums[..., 0], sums[..., 1]
    precision = (sums[..., 6:10] + tiny) / (sums[..., 2:6] + small)
    ratio = (length + tiny) / (reference_length + small)
    brevity = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
    counted = (length > 0) & (reference_length > 0)
    scores = {}
    for n in BLEU_ORDERS:
        geometric_mean = np.prod(precision[..., :n], axis=-1) ** (1.0 / n)
        scores[f"bleu_{n}"] = np.where(counted, geometric_mean * brevity, 0.0)
    return scores


def bleu_statistics(hypotheses: Tokens, references: Tokens) -> StudyStatistics:
    """Counts behind BLEU-1..4; `values` has the columns of `bleu_from_sums`.

    Args:
        hypotheses: tokens of each generated report.
        references: tokens of each reference, same order.

    Raises:
        ConfigError: pycocoevalcap is missing.
        DataError: lists of unequal length or empty.
    """
    _check_lengths(hypotheses, references)
    require_pycocoevalcap()
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=len(BLEU_ORDERS))
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scorer += (" ".join(hypothesis), [" ".join(reference)])
    rows = [[counts["testlen"], counts["reflen"][0], *counts["guess"], *counts["correct"]] for counts in scorer.ctest]
    return StudyStatistics(np.asarray(rows, dtype=float), bleu_from_sums)


def rouge_l_per_study(hypotheses: Tokens, references: Tokens) -> np.ndarray:
    """ROUGE-L F-measure (beta 1.2) of each study, (N,); 0 where a side has no tokens."""
    _check_lengths(hypotheses, references)
    require_pycocoevalcap()
    from pycocoevalcap.rouge.rouge import Rouge

    scorer = Rouge()
    scores = [
        scorer.calc_score([" ".join(hypothesis)], [" ".join(reference)]) if hypothesis and reference else 0.0
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return np.asarray(scores, dtype=float)


def cider_per_study(hypotheses: Tokens, references: Tokens) -> np.ndarray:
    """CIDEr of each study, (N,), with document frequencies over these references.

    With a single study every score is 0, because log N is; see `CIDER_NEEDS_TWO`.
    """
    _check_lengths(hypotheses, references)
    require_pycocoevalcap()
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    if not any(references):
        return np.zeros(len(references))
    scorer = CiderScorer()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scorer += (" ".join(hypothesis), [" ".join(reference)])
    return np.asarray(scorer.compute_score()[1], dtype=float)


def nlg_statistics(
    hypotheses: Tokens, references: Tokens, scores: Collection[str] = NLG_SCORES
) -> tuple[list[StudyStatistics], dict[str, str]]:
    """BLEU, ROUGE-L and CIDEr as per-study statistics.

    Args:
        hypotheses: tokens of each generated report.
        references: tokens of each reference, same order.
        scores: of `NLG_SCORES`, those that are needed; the four orders of BLEU come together.

    Returns:
        The statistics, and score name -> reason for the scores that cannot be computed (CIDEr of a single study).
        CIDEr's document frequencies are those of the references given here, also in resamples of the studies.

    Raises:
        ConfigError: pycocoevalcap is missing.
        DataError: lists of unequal length or empty.
    """
    groups: list[StudyStatistics] = []
    means: dict[str, np.ndarray] = {}
    absent: dict[str, str] = {}
    if any(name.startswith("bleu_") for name in scores):
        groups.append(bleu_statistics(hypotheses, references))
    if "rouge_l" in scores:
        means["rouge_l"] = rouge_l_per_study(hypotheses, references)
    if "cider" in scores and len(references) > 1:
        means["cider"] = cider_per_study(hypotheses, references)
    elif "cider" in scores:
        absent["cider"] = CIDER_NEEDS_TWO
    if means:
        groups.append(mean_statistics(means))
    return groups, absent


def nlg_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenizer: str = DEFAULT_TOKENIZER
) -> dict[str, float]:
    """BLEU-1..4, ROUGE-L and CIDEr of texts.

    Args:
        hypotheses: generated reports, cleaned as their references were.
        references: the whole reference texts, never cut to a training length.
        tokenizer: a key of `tokenization.TOKENIZERS`.

    Returns:
        Score name to value; "cider" is left out for a single study.
    """
    statistics, _ = nlg_statistics(tokenize(hypotheses, tokenizer), tokenize(references, tokenizer))
    scores: dict[str, float] = {}
    for group in statistics:
        scores.update(group.corpus())
    return scores
