"""The lexicon and the cues of the rule labeller as one compiled expression, so a report is read in a single pass."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import IntEnum, auto

from . import rules_cues as cues
from . import rules_lexicon as lexicon


class Kind(IntEnum):
    """What a piece of text is to the labeller."""

    FINDING = auto()
    HINT = auto()  # a finding that is uncertain by itself (vascular congestion)
    ANATOMY = auto()
    MARKINGS = auto()
    DEVICE = auto()
    OTHER = auto()
    NEUTRAL = auto()
    NEG_BEFORE = auto()
    NEG_AFTER = auto()
    UNC_BEFORE = auto()
    UNC_CLAUSE = auto()
    DIFFERENTIAL = auto()
    UNC_AFTER = auto()
    NORMAL = auto()
    ENLARGED = auto()
    STABLE = auto()
    BORDERLINE = auto()
    POOR = auto()
    TERMINATOR = auto()
    VERB = auto()
    WITH = auto()
    AND = auto()
    OR = auto()
    COMMA = auto()
    BREAK = auto()
    IGNORE = auto()
    PSEUDO = auto()


@dataclass(frozen=True)
class Entry:
    """One phrase: its kind and, for findings and anatomy, the observations it speaks of."""

    kind: Kind
    observations: tuple[str, ...] = ()


def _all_entries() -> list[tuple[str, Entry]]:
    entries: list[tuple[str, Entry]] = []
    for kind, table in (
        (Kind.FINDING, lexicon.FINDINGS),
        (Kind.HINT, lexicon.UNCERTAIN_FINDINGS),
        (Kind.ANATOMY, lexicon.ANATOMY),
        (Kind.MARKINGS, lexicon.MARKINGS),
    ):
        for observations, phrases in table.items():
            entries += [(phrase, Entry(kind, observations)) for phrase in phrases]
    plain = (
        (Kind.DEVICE, lexicon.DEVICES),
        (Kind.OTHER, lexicon.OTHER),
        (Kind.NEUTRAL, lexicon.NEUTRAL),
        (Kind.NEG_BEFORE, cues.NEGATION_BEFORE),
        (Kind.NEG_AFTER, cues.NEGATION_AFTER),
        (Kind.UNC_BEFORE, cues.UNCERTAIN_BEFORE),
        (Kind.UNC_CLAUSE, cues.UNCERTAIN_CLAUSE),
        (Kind.NEUTRAL, cues.ALMOST),
        (Kind.DIFFERENTIAL, cues.DIFFERENTIAL),
        (Kind.UNC_AFTER, cues.UNCERTAIN_AFTER),
        (Kind.NORMAL, cues.NORMAL),
        (Kind.ENLARGED, cues.ENLARGED),
        (Kind.STABLE, cues.STABLE),
        (Kind.BORDERLINE, cues.BORDERLINE),
        (Kind.POOR, cues.POOR),
        (Kind.TERMINATOR, cues.TERMINATORS),
        (Kind.VERB, cues.VERBS),
        (Kind.WITH, cues.WITH),
        (Kind.AND, cues.AND),
        (Kind.OR, cues.OR),
        (Kind.IGNORE, cues.IGNORE),
        (Kind.PSEUDO, cues.PSEUDO),
    )
    for kind, phrases in plain:
        observations = (lexicon.DEV,) if kind is Kind.DEVICE else ()
        entries += [(phrase, Entry(kind, observations)) for phrase in phrases]
    return entries


def _split_group(pattern: str) -> tuple[list[str], str, str]:
    """The alternatives of a pattern's leading group, the group's quantifier, and the rest."""
    depth, start, alternatives = 0, 3, []
    index = 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 2
            continue
        if char == "[":
            index = pattern.index("]", index)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                alternatives.append(pattern[start:index])
                break
        elif char == "|" and depth == 1:
            alternatives.append(pattern[start:index])
            start = index + 1
        index += 1
    rest = pattern[index + 1 :]
    for quantifier in ("*", "+", "?"):
        if rest.startswith(quantifier):
            return alternatives, quantifier, rest[1:]
    return alternatives, "", rest


def _expand_head(pattern: str) -> list[str]:
    """Patterns that together match the same texts, each starting with a literal letter."""
    if not pattern.startswith("(?:"):
        if len(pattern) > 1 and pattern[1] == "?":  # an optional first letter
            return [pattern[0] + pattern[2:], pattern[2:]]
        return [pattern]
    alternatives, quantifier, rest = _split_group(pattern)
    group = pattern[: len(pattern) - len(rest)]
    if quantifier in ("*", "+"):
        heads = [alternative + group[:-1] + "*" + rest for alternative in alternatives]
    else:
        heads = [alternative + rest for alternative in alternatives]
    if quantifier in ("*", "?"):
        heads.append(rest)
    return [piece for head in heads for piece in _expand_head(head)]


def _width(pattern: str) -> tuple[int, int]:
    parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    low, high = parsed.getwidth()
    return low, min(high, 400)


_PUNCTUATION = {",": Kind.COMMA, ";": Kind.BREAK, ":": Kind.BREAK, "?": Kind.UNC_BEFORE, "/": Kind.OR, "&": Kind.AND}


@functools.cache
def compiled() -> tuple[re.Pattern[str], list[Entry]]:
    """The expression over lower-case text and, per capturing group number, the entry it stands for.

    Alternatives are nested by their first two letters, which keeps the number tried at each word small, and sorted
    by length within, so the longest phrase wins.
    """
    buckets: dict[str, list[tuple[tuple[int, int], str, Entry]]] = {}
    for phrase, entry in _all_entries():
        for piece in _expand_head(phrase):
            head = piece[:2]
            if not re.fullmatch(r"[a-z][a-z ]?", head) or (len(piece) > 2 and piece[2] in "?*+{"):
                head = piece[:1]
            buckets.setdefault(head, []).append((_width(piece), piece, entry))
    by_entry: dict[tuple[str, Entry], None] = {}
    table: list[Entry] = [Entry(Kind.NEUTRAL)]
    single: list[str] = []
    # Two-letter buckets first see their own phrases; one-letter pieces join every bucket that shares the letter.
    short = {head: rows for head, rows in buckets.items() if len(head) == 1}
    groups: list[str] = []
    heads = sorted({head for head in buckets if len(head) == 2})
    for head in heads:
        rows = buckets[head]
        merged: dict[tuple[str, Entry], tuple[int, int]] = {}
        for width, piece, entry in rows:
            merged.setdefault((piece, entry), width)
        ordered = sorted(merged.items(), key=lambda item: (-item[1][0], -item[1][1], item[0][0]))
        options = []
        for (piece, entry), _ in ordered:
            table.append(entry)
            by_entry[(piece, entry)] = None
            options.append(_spaces(piece[2:]) + r"(?!\w)()")
        groups.append(_spaces(head) + "(?:" + "|".join(options) + ")")
    for head in sorted(short):
        rows = short[head]
        for _, piece, entry in sorted(rows, key=lambda row: (-row[0][0], -row[0][1], row[1])):
            table.append(entry)
            single.append(_spaces(piece) + r"(?!\w)()")
    marks = []
    for mark, kind in _PUNCTUATION.items():
        table.append(Entry(kind))
        marks.append(re.escape(mark) + "()")
    expression = r"(?<!\w)(?:" + "|".join(groups + single) + ")|" + "|".join(marks)
    return re.compile(expression), table


def _spaces(pattern: str) -> str:
    """Spell out blanks, and bound every repeat, so that no text costs more than a fixed amount per character."""
    pattern = re.sub(r" (\??)", lambda match: "[ -]{0,8}" if match.group(1) else "[ -]{1,8}", pattern)
    pattern = pattern.replace(r"\w+", r"\w{1,24}")
    return pattern.replace(")*", "){0,6}").replace(")+", "){1,6}")
