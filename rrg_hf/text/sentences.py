"""Sentence spans of a radiology report."""

from __future__ import annotations

import re

# Candidates for a break. A stop inside a number ("2.5 cm") has no space behind it and is never a candidate.
_CANDIDATE = re.compile(
    r"(?P<stop>[.!?]{1,8}[\"')\]]{0,4}(?=\s|$)|\.(?=[A-Z][a-z]))"  # "clear.No effusion": the space is often forgotten
    r"|(?P<blank>\n[^\S\n]*\n\s*)"
    r"|(?P<line>\n)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:dr|drs|mr|mrs|ms|vs|e\.g|i\.e|approx|resp|fig|st|ca|incl|esp|cf|viz|[a-z]\.[a-z]|no(?=\.\s*\d))$",
    re.IGNORECASE,
)
_LIST_MARKER = re.compile(r"\s*(?:\(?\d{1,2}|[A-Za-z])$")
_LINE_STARTS_NEW = re.compile(r"\s*(?:\(?\d{1,2}[.)]\s|[-•*]\s|[A-Z][A-Z ()/,-]{2,40}:|_{5,})")
_CAPITALISED = re.compile(r"\s*[A-Z][a-z]")
_SPLIT_DECIMAL = re.compile(r"\d\s$")
_DECIMAL_TAIL = re.compile(r"\s\d+\s*(?:cm|mm)\b")
_SHORT_LINE = 50  # wrapped report lines are longer; a shorter one that no stop ends was ended on purpose


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Character spans of the sentences of a report.

    Breaks at ". ", "! ", "? ", blank lines, list items and headers on a new line. Does not break inside decimals
    ("2.5 cm"), after list markers ("1. Effusion" is one sentence) or common abbreviations, nor at the line wraps of
    MIMIC-CXR reports.

    Args:
        text: a report or a section.

    Returns:
        (start, end) pairs in order, without surrounding whitespace; together they cover every visible character.
    """
    spans: list[tuple[int, int]] = []
    start = 0

    def close(end: int) -> None:
        nonlocal start
        piece = text[start:end]
        left = len(piece) - len(piece.lstrip())
        piece = piece.strip()
        if piece:
            spans.append((start + left, start + left + len(piece)))
        start = end

    for match in _CANDIDATE.finditer(text):
        at, end = match.span()
        if match.lastgroup == "stop":
            # Only the tail of the sentence decides, which keeps the scan linear on texts without any stop.
            before = text[max(start, at - 12) : at]
            if at - start <= 8 and _LIST_MARKER.match(text[start:at]):
                continue
            if text[at] == "." and _ABBREVIATION.search(before):
                continue
            if _SPLIT_DECIMAL.search(before) and _DECIMAL_TAIL.match(text, end):
                continue
            close(end)
        elif match.lastgroup == "blank" or _LINE_STARTS_NEW.match(text, end):
            close(end)
        else:
            line_start = text.rfind("\n", max(0, at - _SHORT_LINE - 1), at)
            short = line_start >= 0 or at <= _SHORT_LINE
            if short and _CAPITALISED.match(text, end) and at > 0 and text[at - 1] not in ",;-":
                close(end)
    close(len(text))
    return spans
