"""What a GREEN judge's answer says: errors of six kinds and matched findings, or that it cannot be read.

The published parser counts whatever it cannot read as zero, so that a broken answer and a bad report look alike. Here
they do not: `parse_green` gives None for an answer it cannot read. `rules="published"` is the published reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest

from ..errors import ConfigError

# Short names of the six categories, in the judge's order (a) to (f).
ERROR_CATEGORIES: dict[str, str] = {
    "a": "false finding",
    "b": "missing finding",
    "c": "wrong location",
    "d": "wrong severity",
    "e": "comparison not in the reference",
    "f": "comparison left out",
}
LETTERS = tuple(ERROR_CATEGORIES)
PARSE_RULES = ("strict", "published")

_SIGNIFICANT = "Clinically Significant Errors"
_INSIGNIFICANT = "Clinically Insignificant Errors"
_MATCHED = "Matched Findings"


@dataclass(frozen=True)
class GreenAnswer:
    """Counts of one answer.

    Attributes:
        significant: clinically significant errors (a) to (f).
        insignificant: clinically insignificant ones; all 0 where the answer leaves the section out.
        matched: findings that both reports state.
    """

    significant: tuple[int, ...]
    insignificant: tuple[int, ...]
    matched: int

    @property
    def score(self) -> float:
        """matched / (matched + significant errors); 0 without matched findings (Ostmeier et al. 2024, Eq. 1)."""
        return self.matched / (self.matched + sum(self.significant)) if self.matched else 0.0


def parse_green(answer: str, *, rules: str = "strict", finished: bool = True) -> GreenAnswer | None:
    """Read a judge's answer.

    Args:
        answer: the generated text, with or without what stands before its first section.
        rules: "strict" reads numbers in digits or words, followed by any mark, over blank lines, and wants every
            number it needs; "published" is the reading of green-score 0.0.12, which never fails: sections end at
            their first blank line, only "3." is a number, and what is missing counts as 0.
        finished: whether the judge stopped by itself. An answer cut off in its last number is not read.

    Returns:
        The counts, or None when the answer cannot be read: a section is missing or cut off, a listed error has no
        number, a category is listed twice with different texts, or a section says something else than the format.

    Raises:
        ConfigError: unknown rules.

    Example:
        >>> parse_green("[Clinically Significant Errors]:\\n(a) False report: 1. edema\\n\\n[Matched Findings]:\\n3. a; b; c").score
        0.75
    """  # noqa: E501
    if rules not in PARSE_RULES:
        raise ConfigError(f"GREEN parse rules {rules!r} are unknown. Use one of {list(PARSE_RULES)}.")
    return _published(answer) if rules == "published" else _strict(answer, finished)


_HEADING = re.compile(
    r"^[ \t>#*]*\[?(?P<name>Explanation|Clinically (?:Ins|S)ignificant Errors|Matched Findings)\]?[ \t*]*:[ \t*]*"
    r"|\[(?P<inline>Explanation|Clinically (?:Ins|S)ignificant Errors|Matched Findings)\][ \t*]*:?[ \t*]*",
    re.MULTILINE,
)
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_COUNT = rf"(?P<count>\d{{1,3}}|{'|'.join(_WORDS)}|none|no)"
# "2.5 cm" and "3-cm nodule" hold no count.
_AFTER_COUNT = r"(?=[ \t]*(?:[):;,*]|\.(?!\d)|[–-](?!\w)|(?:\w+ ){0,2}(?:errors?|findings?)\b|$|\n))"
_NOTHING = re.compile(r"(?:no\b|none\b|nil\b|n/a\b|zero\b|0\b)", re.IGNORECASE)
# At the start of a line, or in its middle when two categories share a line.
_ITEM = re.compile(r"(?:^[ \t>*-]*\(?(?P<line>[a-f1-6])\)|\((?P<inline>[a-f])\) )", re.MULTILINE | re.IGNORECASE)
# "<Error Type>: <count>." The type may hold a colon, so the first colon with a count behind it decides.
_ITEM_COUNT = re.compile(rf":[ \t*]*\(?{_COUNT}{_AFTER_COUNT}", re.IGNORECASE)
_MATCHED_COUNT = re.compile(rf"[\s>*-]*\(?{_COUNT}{_AFTER_COUNT}", re.IGNORECASE)
_SECOND_OF_LIST = re.compile(r"^[ \t>*-]*\(?2[.)]\s", re.MULTILINE)


def _number(count: str) -> int:
    count = count.lower()
    if count.isdigit():
        return int(count)
    return _WORDS.index(count) if count in _WORDS else 0


def _sections(answer: str) -> dict[str, str] | None:
    """Bodies of the sections by name; None when a section other than the explanation comes twice."""
    headings = list(_HEADING.finditer(answer))
    bodies: dict[str, str] = {}
    for heading, following in zip_longest(headings, headings[1:]):
        name = heading.group("name") or heading.group("inline")
        body = answer[heading.end() : following.start() if following is not None else len(answer)]
        if name in bodies and name != "Explanation":
            return None
        bodies[name] = body.replace("```", " ").strip()
    return bodies


def _errors(body: str) -> tuple[int, ...] | None:
    counts: dict[str, int] = {}
    texts: dict[str, str] = {}
    items = list(_ITEM.finditer(body))
    for item, following in zip_longest(items, items[1:]):
        key = (item.group("line") or item.group("inline")).lower()
        letter = LETTERS[int(key) - 1] if key.isdigit() else key
        text = body[item.end() : following.start() if following is not None else len(body)].strip()
        if letter in texts:
            if texts[letter] != text:
                return None
            continue
        texts[letter] = text
        match = _ITEM_COUNT.search(text)
        if match is None:
            return None
        counts[letter] = _number(match.group("count"))
    if not texts and body and not _NOTHING.match(body):
        return None
    return tuple(counts.get(letter, 0) for letter in LETTERS)


def _strict(answer: str, finished: bool) -> GreenAnswer | None:
    bodies = _sections(answer)
    if bodies is None or _SIGNIFICANT not in bodies or _MATCHED not in bodies:
        return None
    significant = _errors(bodies[_SIGNIFICANT])
    insignificant = _errors(bodies.get(_INSIGNIFICANT, ""))
    match = _MATCHED_COUNT.match(bodies[_MATCHED])
    if significant is None or insignificant is None or match is None:
        return None
    matched = _number(match.group("count"))
    if not finished and match.end() == len(bodies[_MATCHED]):
        return None
    if matched == 1 and _SECOND_OF_LIST.search(bodies[_MATCHED]):
        return None  # a numbered list in place of a count
    return GreenAnswer(significant, insignificant, matched)


def _published_body(answer: str, name: str) -> str:
    """Text of a section up to its first blank line; "" where the section is missing or opens with "No"."""
    start = answer.find(f"[{name}]:")
    if start < 0:
        return ""
    body = answer[start + len(name) + 3 :].lstrip()
    blank = re.search(r"\n\s*\n", body)
    body = body[: blank.start()] if blank else body
    return "" if body.startswith("No") else body


def _published_errors(body: str) -> tuple[int, ...]:
    for keys in (LETTERS, "123456"):
        lines = sorted(re.findall(rf"\([{keys[0]}-{keys[-1]}]\) .*", body))
        if lines:
            break
    counts = dict.fromkeys(keys, 0)
    for line in lines:
        number = re.search(r": (\d+)\.", line)
        if number:
            counts[line[1]] = int(number.group(1))
    return tuple(counts.values())


def _published(answer: str) -> GreenAnswer:
    number = re.match(r"\d+(?=\.)", _published_body(answer, _MATCHED))
    return GreenAnswer(
        _published_errors(_published_body(answer, _SIGNIFICANT)),
        _published_errors(_published_body(answer, _INSIGNIFICANT)),
        int(number.group()) if number else 0,
    )
