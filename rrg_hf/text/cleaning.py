"""Report cleaning: what counts as missing, the default rule for placeholders, and the R2Gen family's cleaning."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

# What pandas, spreadsheets and str() make of an empty cell. Compared in lower case without surrounding punctuation.
_MISSING_WORDS = frozenset({"nan", "none", "n/a", "na", "null", "<na>", "#n/a", "nat", "\\n"})
_HAS_CONTENT = re.compile(r"[^\W_]")

# MIMIC writes removed names and dates as runs of underscores, IU X-Ray as runs of capital X; a date can leave
# several runs joined by punctuation ("___/___", "XXXX-XXXX"). Any run of two underscores or three X counts, and a
# lower-case run of four, because models trained on lower-cased text emit "xxxx".
_PLACEHOLDER = re.compile(r"(?:(?<![A-Za-z])(?:X{3,}|x{4,})(?![A-Za-z])|_{2,}|\[\*\*[^\]\n]{0,80}\*\*\])")
_EMPTY_BRACKETS = re.compile(r"\(\s*[,.;:/-]?\s*\)|\[\s*\]")
_ORPHAN_JOINERS = re.compile(r"(?<!\S)[-/&,;:'’]+(?!\S)")
_SPACE = re.compile(r"\s+")
_SPACE_BEFORE_MARK = re.compile(r" +(?=[,;:.!?](?:\s|$))")
_REPEATED_MARK = re.compile(r"([,;:.])(?:\s*[,;:](?=\s|$))+")
_REPEATED_STOP = re.compile(r"\.(?:\s?\.){1,40}(?=\s|$)")
_LEADING_MARK = re.compile(r"^[\s,;:.!?/-]+(?=[^\W\d_])")
# "1. " or "2) " at the start, after a line break or after a sentence end, and only before text: "2.5 cm" and
# "level 4. No effusion" stay. Its repeats are bounded, or a model's endless "1. 1. 1." would take quadratic time.
_LIST_NUMBER = re.compile(
    r"(^\s*|\n[^\S\n]{0,40}|[.:;!?]\s{1,20})(?:(?:\(?\d{1,2}[.)]|[-•*])\s{1,20}){1,9}(?=[^\W\d_]|[_(\"']|\d+\.\d)"
)


def is_missing(text: Any) -> bool:
    """Whether a cell holds no report text.

    Args:
        text: any value read from a table or a file.

    Returns:
        True for None, NaN, empty or blank text, text without a letter or digit (such as "___" or "--"), and the
        words "nan", "None", "N/A", "NA", "null" that an empty cell turns into on its way through other software.
    """
    if text is None:
        return True
    if not isinstance(text, str):
        try:
            return bool(text != text)  # NaN is the only value that differs from itself
        except (TypeError, ValueError):  # pandas.NA differs from nothing, and an array from itself in places
            return type(text).__name__ == "NAType"
    if not _HAS_CONTENT.search(text):
        return True
    return _is_missing_word(text)


def _is_missing_word(text: str) -> bool:
    return len(text) < 20 and text.strip().strip(".,;:!?()[]\"'").strip().lower() in _MISSING_WORDS


def remove_placeholders(text: str) -> str:
    """Drop de-identification marks (`___`, `XXXX`, `[** ... **]`) and the punctuation they leave behind."""
    if not _PLACEHOLDER.search(text):
        return text
    text = _SPACE.sub(" ", _PLACEHOLDER.sub(" ", text))
    text = _EMPTY_BRACKETS.sub(" ", text)
    text = _ORPHAN_JOINERS.sub(lambda m: m.group() if m.group() in {",", ";", ":", "&"} else " ", text)
    text = _SPACE.sub(" ", text)
    text = _SPACE_BEFORE_MARK.sub("", text)
    text = _REPEATED_MARK.sub(r"\1", text)
    text = _REPEATED_STOP.sub(".", text)
    return _LEADING_MARK.sub("", text).strip()


def clean_report(text: Any) -> str:
    """The default cleaning, applied to references and hypotheses alike.

    De-identification placeholders (MIMIC's `___`, IU X-Ray's `XXXX`) are removed, so neither side of a comparison
    can gain from them; whitespace is collapsed; list numbering is removed. Case, numbers, units and punctuation
    stay: "2.5 cm" stays "2.5 cm".

    Args:
        text: a report, or a missing value (see `is_missing`), which gives "".

    Returns:
        The cleaned text on one line.
    """
    if is_missing(text):
        return ""
    text = _LIST_NUMBER.sub(lambda m: m.group(1), str(text))
    text = remove_placeholders(_SPACE.sub(" ", text).strip())
    return "" if is_missing(text) else text


# R2Gen deletes these from every piece. ":-[" in its character class is a range, so capitals and ":;<=>?@" go too and
# hyphens survive; texts are lower-cased before, which hides the former.
_R2GEN_PIECE = re.compile("[.,?;*!%^&_+():-\\[\\]{}]")
_R2GENGPT_PIECE = re.compile("[.,?;*!%^&_+()\\[\\]{}]")


def _r2gen_pieces(text: str, *, deleted: re.Pattern[str] = _R2GEN_PIECE, before_colon: str = "") -> str:
    text = text.replace("1. ", "")
    for number in "2345":
        text = text.replace(f". {number}. ", ". ")
    for number in "2345":
        text = text.replace(f" {number}. ", ". ")
    pieces = text.replace(":", f"{before_colon}:").strip().lower().split(". ")
    cleaned = []
    for piece in pieces:
        for mark in ('"', "/", "\\", "'"):
            piece = piece.replace(mark, "")
        cleaned.append(deleted.sub("", piece.strip().lower()))
    return " . ".join(cleaned) + " ."


def clean_r2gen_mimic(text: Any) -> str:
    """R2Gen's cleaning for MIMIC-CXR, for comparison with published numbers.

    Lower-cases, drops most punctuation and writes sentence ends as " . ". Known losses, kept on purpose: decimals
    lose the dot ("5.2 cm" becomes "52 cm"), "/" joins words, list numbers above 5 stay, "" becomes " .".
    Source: Chen et al. 2020 (R2Gen), the published tokenizer's behaviour.
    """
    if not isinstance(text, str) or _is_missing_word(text):
        return ""
    return _r2gen_pieces(_r2gen_mimic_runs(text))


def _r2gen_mimic_runs(text: str) -> str:
    text = text.replace("\n", " ")
    for _ in range(7):
        text = text.replace("__", "_")
    for _ in range(6):
        text = text.replace("  ", " ")
    for _ in range(8):
        text = text.replace("..", ".")
    return text


def clean_r2gengpt_mimic(text: Any) -> str:
    """R2GenGPT's cleaning for MIMIC-CXR; like `clean_r2gen_mimic`, but ":" stays as a word of its own.

    For IU X-Ray R2GenGPT uses R2Gen's. Source: Wang et al. 2023 (R2GenGPT), the published code's behaviour.
    """
    if not isinstance(text, str) or _is_missing_word(text):
        return ""
    return _r2gen_pieces(_r2gen_mimic_runs(text), deleted=_R2GENGPT_PIECE, before_colon=" ")


def clean_r2gen_iu(text: Any) -> str:
    """R2Gen's cleaning for IU X-Ray; like `clean_r2gen_mimic`, but "XXXX" stays as "xxxx" and whitespace is kept."""
    if not isinstance(text, str) or _is_missing_word(text):
        return ""
    for _ in range(3):
        text = text.replace("..", ".")
    return _r2gen_pieces(text)


def clean_none(text: Any) -> str:
    """No cleaning: the text as it is; a missing value gives ""."""
    return "" if is_missing(text) else str(text)


CLEANERS: dict[str, Callable[[Any], str]] = {
    "default": clean_report,
    "r2gen_mimic": clean_r2gen_mimic,
    "r2gen_iu": clean_r2gen_iu,
    "r2gengpt_mimic": clean_r2gengpt_mimic,
    "none": clean_none,
}


def cleaning_rule(name: str) -> str:
    """The documented rule of a cleaner, in one line.

    Args:
        name: a key of `CLEANERS`.
    """
    text = inspect.getdoc(CLEANERS[name]) or ""
    return " ".join(text.split("Args:")[0].split())
