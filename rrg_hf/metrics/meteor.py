"""METEOR, two implementations under two names, because they give different numbers.

`meteor_1.5_java`: METEOR 1.5 (Denkowski & Lavie 2014), English, `-norm`, the jar that pycocoevalcap carries; what
captioning and report-generation papers call METEOR. Java does the alignment; the published formula over its counts is
evaluated here, which gives the same numbers as the jar's own EVAL and lets the score be resampled.
`meteor_nltk`: nltk's METEOR (Banerjee & Lavie 2005 parameters), which needs the WordNet corpus.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..errors import DataError, RrgError
from . import INSTALL_HINT
from .statistics import StudyStatistics, divide, mean_statistics
from .tokenization import pycocoevalcap_folder

logger = logging.getLogger(__name__)

METEOR_JAVA = "meteor_1.5_java"
METEOR_NLTK = "meteor_nltk"

# METEOR 1.5's English ranking parameters and the weights of its exact, stem, synonym and paraphrase matchers.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_MATCHER_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
_N_STATISTICS = 23


def meteor_java_absent() -> str | None:
    """Why `meteor_1.5_java` cannot run here, or None."""
    if find_spec("pycocoevalcap") is None:
        return f"pycocoevalcap is not installed ({INSTALL_HINT})"
    if shutil.which("java") is None:
        return "no `java` on this machine"
    if not pycocoevalcap_folder("meteor", "meteor-1.5.jar").is_file():
        return "the installed pycocoevalcap has no meteor-1.5.jar"
    return None


def meteor_nltk_absent() -> str | None:
    """Why `meteor_nltk` cannot run here, or None."""
    if find_spec("nltk") is None:
        return f"nltk is not installed ({INSTALL_HINT})"
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return "nltk's WordNet corpus is not installed (python -m nltk.downloader wordnet)"
    return None


def _meteor_from_sums(sums: np.ndarray) -> dict[str, np.ndarray]:
    """METEOR 1.5 from its 23 counts (..., 23): lengths, function words, 4 matches x 4 matchers, chunks, totals."""
    length, reference_length, function_words, reference_function_words = (sums[..., i] for i in range(4))
    matches = sums[..., 4:20].reshape(*sums.shape[:-1], 4, 4)  # (..., matcher, hyp content/ref content/hyp fn/ref fn)
    matched = (_MATCHER_WEIGHTS * (_DELTA * matches[..., 0] + (1 - _DELTA) * matches[..., 2])).sum(-1)
    reference_matched = (_MATCHER_WEIGHTS * (_DELTA * matches[..., 1] + (1 - _DELTA) * matches[..., 3])).sum(-1)
    precision = divide(matched, _DELTA * (length - function_words) + (1 - _DELTA) * function_words)
    recall = divide(
        reference_matched,
        _DELTA * (reference_length - reference_function_words) + (1 - _DELTA) * reference_function_words,
    )
    f_mean = divide(precision * recall, _ALPHA * precision + (1 - _ALPHA) * recall)
    fragmentation = divide(sums[..., 20], (sums[..., 21] + sums[..., 22]) / 2)
    return {METEOR_JAVA: f_mean * (1 - _GAMMA * fragmentation**_BETA)}


def _one_line(text: str) -> str:
    """The line protocol separates fields by "|||" and replies by lines: neither may come from a report."""
    return " ".join(text.replace("|||", " ").split())


def meteor_java_statistics(
    hypotheses: Sequence[str], references: Sequence[str], *, timeout_s: float | None = None
) -> StudyStatistics:
    """METEOR 1.5 of texts, one JVM for all (its start takes about 10 s).

    Args:
        hypotheses: generated reports; any white space, "|||" included, counts as one space.
        references: reference reports, same order.
        timeout_s: give up after so long; default 120 s plus 0.2 s per study.

    Returns:
        Statistics with the score "meteor_1.5_java". The corpus score is METEOR of the summed counts, as
        pycocoevalcap reports it, not the mean over studies.

    Raises:
        DataError: unequal lists, or Java failed, timed out or answered with other than one line per study.
        RrgError: METEOR cannot run here (see `meteor_java_absent`).
    """
    if len(hypotheses) != len(references) or not references:
        raise DataError(f"{len(hypotheses)} hypotheses and {len(references)} references: give one of each per study.")
    reason = meteor_java_absent()
    if reason is not None:
        raise RrgError(f"{METEOR_JAVA} cannot run: {reason}.")
    pairs = zip(hypotheses, references, strict=True)
    lines = [f"SCORE ||| {_one_line(reference)} ||| {_one_line(hypothesis)}\n" for hypothesis, reference in pairs]
    timeout = 120 + 0.2 * len(lines) if timeout_s is None else timeout_s
    command = ["java", "-Xmx2G", "-Dfile.encoding=UTF-8", "-Dstdin.encoding=UTF-8", "-jar", "meteor-1.5.jar"]
    try:
        # run() feeds and drains both pipes and kills the process at the timeout: no deadlock, nothing left behind.
        done = subprocess.run(
            [*command, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=pycocoevalcap_folder("meteor"),
            input="".join(lines).encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{METEOR_JAVA} gave no answer within {timeout:.0f} s for {len(lines)} studies.") from error
    replies = done.stdout.decode("utf-8", errors="replace").split("\n")[:-1]
    if done.returncode != 0 or len(replies) != len(lines):
        raise DataError(
            f"{METEOR_JAVA} failed: exit code {done.returncode}, {len(replies)} replies for {len(lines)} studies."
        )
    try:
        values = np.array([[float(number) for number in reply.split()] for reply in replies])
    except ValueError as error:
        raise DataError(f"{METEOR_JAVA} gave a reply that is not a list of numbers.") from error
    if values.shape != (len(lines), _N_STATISTICS):
        raise DataError(f"{METEOR_JAVA} gave {values.shape[-1]} numbers per study, expected {_N_STATISTICS}.")
    # METEOR charges no fragmentation for a perfect match, also inside a corpus sum.
    perfect = (values[:, 0] == values[:, 21]) & (values[:, 1] == values[:, 22]) & (values[:, 20] == 1)
    values[perfect, 20] = 0
    return StudyStatistics(values, _meteor_from_sums)


def meteor_nltk_statistics(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, wordnet: Any = None
) -> StudyStatistics:
    """nltk's METEOR of tokens, the mean over studies, as the score "meteor_nltk".

    Args:
        hypotheses: tokens of each generated report; none scores 0.
        references: tokens of each reference, same order.
        wordnet: a WordNet corpus reader; default nltk's own.

    Raises:
        DataError: unequal or empty lists.
        RrgError: nltk or WordNet is missing (see `meteor_nltk_absent`).
    """
    if len(hypotheses) != len(references) or not references:
        raise DataError(f"{len(hypotheses)} hypotheses and {len(references)} references: give one of each per study.")
    if wordnet is None:
        reason = meteor_nltk_absent()
        if reason is not None:
            raise RrgError(f"{METEOR_NLTK} cannot run: {reason}.")
        from nltk.corpus import wordnet as nltk_wordnet

        wordnet = nltk_wordnet
    from nltk.translate.meteor_score import meteor_score

    scores = [
        meteor_score([list(reference)], list(hypothesis), wordnet=wordnet) if hypothesis and reference else 0.0
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return mean_statistics({METEOR_NLTK: np.asarray(scores, dtype=float)})


def meteor_statistics(
    hypotheses: Sequence[str],
    references: Sequence[str],
    hypothesis_tokens: Sequence[Sequence[str]],
    reference_tokens: Sequence[Sequence[str]],
) -> tuple[list[StudyStatistics], dict[str, str]]:
    """Every METEOR that can run here, each under its own name.

    Args:
        hypotheses, references: cleaned texts, for Java, which tokenises itself.
        hypothesis_tokens, reference_tokens: the same texts tokenised, for nltk.

    Returns:
        The statistics, and name -> reason for the variants that are absent.
    """
    statistics: list[StudyStatistics] = []
    absent: dict[str, str] = {}
    reason = meteor_java_absent()
    if reason is None:
        try:
            # A text of punctuation only counts as empty here too.
            texts = [text if tokens else "" for text, tokens in zip(hypotheses, hypothesis_tokens, strict=True)]
            statistics.append(meteor_java_statistics(texts, references))
        except DataError as error:
            reason = str(error)
    if reason is not None:
        absent[METEOR_JAVA] = reason
    reason = meteor_nltk_absent()
    if reason is None:
        statistics.append(meteor_nltk_statistics(hypothesis_tokens, reference_tokens))
    else:
        absent[METEOR_NLTK] = reason
    for name, why in absent.items():
        logger.warning("%s is absent from the scores: %s", name, why)
    return statistics, absent
