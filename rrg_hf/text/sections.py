"""Sections of a chest X-ray report: MIMIC-CXR's upper-case headers and plain "Findings: ... Impression: ..." text.

The MIMIC-CXR rules follow the behaviour of the parser published with the data set (MIT-LCP/mimic-cxr): header form,
name mapping, last occurrence wins, last paragraph as a fallback. Three of its traps are mended: a header on the
first line counts, a section made only of underscores or punctuation is empty (so "CHEST, TWO VIEWS: ___" does not
hide the body of the report), and a second main header on the same line starts its own section.
"""

from __future__ import annotations

import re
from typing import TypedDict

from ..errors import DataError
from .cleaning import is_missing


class Sections(TypedDict):
    """Text of each section, None where the report has none; everything else by its own name in `other`."""

    indication: str | None
    comparison: str | None
    technique: str | None
    findings: str | None
    impression: str | None
    other: dict[str, str]


# A header: capitals, spaces and ( ) / , - up to a colon, at the start of a line.
_CAPS_HEADER = re.compile(r"(?m)^[^\S\n]*(?P<name>[A-Z][A-Z ()/,-]{1,78}):(?=\s|$)")
# Reports typed in mixed case: only these names count, because "Lungs:" or "Note:" are part of the text there.
_KNOWN = (
    r"findings?(?: and impression|/impression)?|impressions?|conclusions?|opinion|indications?"
    r"|clinical (?:indication|history|information|data|details)|history|reason for (?:the )?(?:exam(?:ination)?|study)"
    r"|comparisons?|technique|procedure|examination|exam|recommendations?|addendum"
)
_MIXED_HEADER = re.compile(rf"(?mi)^[^\S\n]*(?P<name>{_KNOWN})[^\S\n]*:(?=\s|$)")
_INLINE_HEADER = re.compile(
    r"(?<=[\s.])(?P<name>FINDINGS|IMPRESSION|INDICATION|COMPARISON|TECHNIQUE|HISTORY):(?=\s|$)"
)
_RULE_LINE = re.compile(r"(?m)^[^\S\n]*_{10,}[^\S\n]*$")
_BANNER = re.compile(r"(?m)^[^\S\n]*(?:FINAL|PRELIMINARY|ADDENDUM)\s+REPORT[^\S\n]*$")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SPACE = re.compile(r"\s+")

_ALIASES = {
    "indication": "indication",
    "indications": "indication",
    "clinical indication": "indication",
    "clinical indications": "indication",
    "reason for exam": "indication",
    "reason for examination": "indication",
    "reason for the exam": "indication",
    "reason for the examination": "indication",
    "reason for study": "indication",
    "reason for the study": "indication",
    "reason": "indication",
    "history": "history",
    "clinical history": "history",
    "patient history": "history",
    "clinical information": "history",
    "clinical data": "history",
    "clinical details": "history",
    "pfi": "history",
    "comparison": "comparison",
    "comparisons": "comparison",
    "comparison exam": "comparison",
    "comparison study": "comparison",
    "technique": "technique",
    "techniques": "technique",
    "procedure": "technique",
    "finding": "findings",
    "findings": "findings",
    "observations": "findings",
    "report": "findings",
    "impression": "impression",
    "impressions": "impression",
    "conclusion": "impression",
    "conclusions": "impression",
    "opinion": "impression",
    "summary": "impression",
    "findings and impression": "impression",
    "findings/impression": "impression",
    "impression and findings": "impression",
    # Slips that occur in dictated headers.
    "impresion": "impression",
    "impressoin": "impression",
    "imprssion": "impression",
    "impresson": "impression",
    "ndication": "indication",
    "inidication": "indication",
    "indicaton": "indication",
    "findngs": "findings",
    "finidngs": "findings",
    "fidings": "findings",
    "comparision": "comparison",
    "comparsion": "comparison",
    "comparisions": "comparison",
    "compairson": "comparison",
    "tecnique": "technique",
    "techinque": "technique",
}
_CONTAINED = ("impression", "finding", "history", "indication", "comparison", "technique", "addendum")
_VIEW_WORDS = re.compile(
    r"\b(?:chest|portable|pa and lat(?:eral)?|pa (?:&|/) lateral|ap|frontal|lateral|(?:one|two|three|single) views?"
    r"|views?|upright|supine|semi-?erect|ribs?|bone windows?|radiographs?|x-?rays?|babygram)\b"
)
_NOT_FINDINGS = ("exam", "procedure", "study", "type", "wet read", "read", "recommend", "notif", "reason", "order")


def _canonical(name: str) -> str:
    name = _SPACE.sub(" ", name).strip().lower()
    if name in _ALIASES:
        return _ALIASES[name]
    for word in _CONTAINED:
        if word in name:
            return "findings" if word == "finding" else word
    if _VIEW_WORDS.search(name) and not any(word in name for word in _NOT_FINDINGS):
        return "findings"
    return name


def _split(text: str) -> list[tuple[str, str]]:
    """(canonical name, raw text) in order. Text before the first header is "preamble"; no header: "full report"."""
    starts: dict[int, tuple[int, str]] = {}
    for pattern in (_CAPS_HEADER, _MIXED_HEADER, _INLINE_HEADER):
        for match in pattern.finditer(text):
            starts.setdefault(match.start("name"), (match.end(), match.group("name")))
    cuts = [(start, end, name) for start, (end, name) in sorted(starts.items())]
    # A ruled line closes an addendum; what follows is a new report whose preamble is nothing to keep.
    cuts += [(m.start(), m.end(), "preamble") for m in _RULE_LINE.finditer(text)]
    cuts += [(m.start(), m.end(), "preamble") for m in _BANNER.finditer(text)]
    cuts.sort()
    if not any(name != "preamble" for *_, name in cuts):
        body = _BANNER.sub(" ", _RULE_LINE.sub(" ", text))
        return [("full report", body)]
    parts = [("preamble", text[: cuts[0][0]])]
    for index, (_, end, name) in enumerate(cuts):
        stop = cuts[index + 1][0] if index + 1 < len(cuts) else len(text)
        parts.append((_canonical(name), text[end:stop]))
    return parts


def _tidy(text: str) -> str:
    """Join wrapped lines, keep paragraphs."""
    paragraphs = [_SPACE.sub(" ", part).strip() for part in _BLANK_LINE.split(text)]
    return "\n\n".join(part for part in paragraphs if part)


def parse_sections(text: str | None) -> Sections:
    """Split a report into its sections.

    Args:
        text: a whole report: MIMIC-CXR style (FINAL REPORT banner, WET READ, addendum above a ruled line, upper-case
            headers), or plain "Findings: ... Impression: ..." in any case, headers at line starts.

    Returns:
        `indication`, `comparison`, `technique`, `findings`, `impression`: the LAST non-empty section of that name, or
        None. `indication` falls back to a history section. `other` holds everything else by lower-case header name,
        and `history`, `addendum`, `wet read`, `preamble`; `full report` when there is no header at all; and
        `last_paragraph` when the report has neither findings nor impression: the last section's text behind its
        first blank line, where such reports keep their body. Lines are joined, paragraphs kept.

    Raises:
        DataError: `text` is neither text nor a missing value.
    """
    sections: Sections = {
        "indication": None,
        "comparison": None,
        "technique": None,
        "findings": None,
        "impression": None,
        "other": {},
    }
    if text is None or is_missing(text):
        return sections
    if not isinstance(text, str):
        raise DataError(f"A report must be text or None, got {type(text).__name__}.")
    named = [(name, body) for name, body in _split(text.replace("\r\n", "\n")) if not is_missing(body)]
    if named and not any(name in ("findings", "impression") for name, _ in named):
        name, body = named[-1]
        pieces = _BLANK_LINE.split(body.strip(), maxsplit=1)
        if len(pieces) == 2:
            named[-1:] = [(name, pieces[0]), ("last_paragraph", pieces[1])]
    history: str | None = None
    for name, body in named:
        tidy = _tidy(body)
        if name in ("indication", "comparison", "technique", "findings", "impression"):
            sections[name] = tidy  # type: ignore[literal-required]
        else:
            sections["other"][name] = tidy
            if name == "history":
                history = tidy
    if sections["indication"] is None:
        sections["indication"] = history
    return sections
