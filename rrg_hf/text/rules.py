"""The rule labeller: 14 CheXpert observations from any English chest X-ray report, offline and without weights.

It is called `rules` wherever a score names its labeller. Conventions follow chexpert-labeler (Irvin et al. 2019,
"CheXpert: a large chest radiograph dataset with uncertainty labels"), with an own lexicon and clause-level scoping in
place of a dependency parser; docs/labeller.md describes both and gives measured agreement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..observations import NO_FINDING, Labels, LabelState, empty_labels
from .cleaning import is_missing
from .rules_lexicon import CARD
from .rules_patterns import Entry, Kind, compiled
from .rules_scope import Event, resolve
from .sentences import split_sentences

# Part of every protocol whose labels come from here. Raise it whenever the same text could get other labels: the
# second number for phrases and cues, the first for conventions or the reading itself.
RULES_VERSION = "1.1"


@dataclass(frozen=True)
class Mention:
    """One place where a report speaks of an observation. `text == report[start:end]`."""

    observation: str
    state: LabelState
    start: int
    end: int
    text: str


# Same length before and after: offsets into the normalised text are offsets into the report.
_TRANSLATE = str.maketrans(
    {
        "\n": " ",
        "\r": " ",
        "\t": " ",
        "\f": " ",
        "\v": " ",
        "\u00a0": " ",
        "\u2010": "-",
        "\u2011": "-",
        "\u2012": "-",
        "\u2013": "-",
        "\u2014": ",",
        "\u2018": "'",
        "\u2019": "'",
        "_": " ",
    }
)
_IU_PLACEHOLDER = re.compile(r"(?<![a-z])x{3,}(?![a-z])")
# Sections that ask or describe the examination. Their text gives no labels.
_HEADER = re.compile(
    r"(?:^|(?<=[\n.;:]))[ \t]*(?:"
    r"(?P<skip>(?i:(?:clinical )?(?:indications?|history|information|data|details|question)|reason for[a-z ]{1,24}"
    r"|comparisons?|technique|procedure(?: comments?)?|exam(?:ination)?s?(?: type)?|study|wet read[^:\n]{0,40}"
    r"|accession[a-z ]{0,12}|narrative|ordering[a-z ]{0,20}|notifications?))"
    r"|(?P<keep>(?i:findings?|impressions?|conclusions?|opinion|summary|findings and impression|addendum"
    r"|recommendations?)|[A-Z][A-Z ,/()-]{1,60})"
    r")[ \t]*:(?=\s|$)",
)
_VISIBLE = re.compile(r"\S")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
# No sentence of a report comes near this many cues; run-on text is resolved piece by piece, which keeps it linear.
_MOST_EVENTS = 100


def normalise(text: str) -> str:
    """Lower case, plain blanks, question sections and placeholders blanked out; every character keeps its place."""
    if ":" in text:
        text = _blank_questions(text)
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters grow when lowered (the Turkish dotted capital I)
        lowered = "".join(char.lower() if len(char.lower()) == 1 else "i" for char in text)
    lowered = lowered.translate(_TRANSLATE)
    if "xxx" in lowered:
        lowered = _IU_PLACEHOLDER.sub(lambda match: " " * (match.end() - match.start()), lowered)
    return lowered


def _blank_questions(text: str) -> str:
    headers = list(_HEADER.finditer(text))
    if not any(header.group("skip") for header in headers):
        return text
    pieces, at = [], 0
    for index, header in enumerate(headers):
        if not header.group("skip"):
            continue
        end = headers[index + 1].start() if index + 1 < len(headers) else len(text)
        if index + 1 == len(headers):
            # Without a later header the question section ends at its line's or paragraph's end.
            blank = _BLANK_LINE.search(text, header.end())
            end = blank.start() if blank else len(text)
        pieces.append(text[at : header.start()])
        pieces.append(_VISIBLE.sub(" ", text[header.start() : end]))
        at = end
    pieces.append(text[at:])
    return "".join(pieces)


def _sentences_of_events(text: str) -> Iterable[tuple[list[Event], str]]:
    normal = normalise(text)
    expression, table = compiled()
    spans = split_sentences(text)
    if not spans:
        return
    index, last = 0, len(spans) - 1
    events: list[Event] = []
    for match in expression.finditer(normal):
        start = match.start()
        while index < last and start >= spans[index + 1][0]:
            if events:
                yield events, normal
                events = []
            index += 1
        if len(events) >= _MOST_EVENTS:
            yield events, normal
            events = []
        group = match.lastindex
        entry: Entry = table[group] if group is not None else table[0]
        events.append(Event(start, match.end(), entry.kind, entry.observations))
    if events:
        yield events, normal


def find_mentions(text: Any) -> list[Mention]:
    """Every mention of the 13 observations (all but "No Finding") with its state, in reading order.

    Args:
        text: a report, a section or a sentence. Missing values (see `is_missing`) have no mentions.

    Returns:
        Mentions whose `start` and `end` are character offsets into `text` as given. A phrase that speaks of two
        observations ("nodular opacity") gives two mentions with the same span.
    """
    if is_missing(text):
        return []
    text = str(text)
    mentions = []
    for events, normal in _sentences_of_events(text):
        for event, state in resolve(events, normal):
            for observation in event.observations:
                mentions.append(Mention(observation, state, event.start, event.end, text[event.start : event.end]))
    mentions.sort(key=lambda mention: mention.start)
    return mentions


_RANK = {LabelState.NOT_MENTIONED: 0, LabelState.NEGATIVE: 1, LabelState.UNCERTAIN: 2, LabelState.POSITIVE: 3}
_HEART_FAILURE = ("chf", "heart failure")


def label_report(text: Any) -> Labels:
    """The 14 labels of a report.

    Conflicting mentions of one observation: positive wins over uncertain, uncertain over negative. Heart failure that
    is present or uncertain makes Cardiomegaly at least uncertain. "No Finding" is positive when nothing but support
    devices is positive or uncertain, neither among the observations nor among other abnormalities (emphysema,
    scoliosis, hernia, calcified granuloma ...); otherwise it is not mentioned, and it is never negative or uncertain.

    Args:
        text: a report, a section or a sentence. Indication, history, comparison and technique sections inside it are
            not labelled. Missing or empty text has no labels at all, and no "No Finding" either.

    Returns:
        Observation name to `LabelState`, all 14 of `OBSERVATIONS`, in that order.

    Example:
        >>> label_report("Small left effusion. No pneumothorax.")["Pleural Effusion"].value
        'positive'
    """
    labels = empty_labels()
    if is_missing(text):
        return labels
    finding = False
    for events, normal in _sentences_of_events(str(text)):
        for event, state in resolve(events, normal):
            rank = _RANK[state]
            if rank > 1 and event.kind is not Kind.DEVICE:
                finding = True
            for observation in event.observations:
                if rank > _RANK[labels[observation]]:
                    labels[observation] = state
            if (
                rank > 1
                and labels[CARD] in (LabelState.NOT_MENTIONED, LabelState.NEGATIVE)
                and normal[event.start : event.end].endswith(_HEART_FAILURE)
            ):
                labels[CARD] = LabelState.UNCERTAIN
    if not finding:
        labels[NO_FINDING] = LabelState.POSITIVE
    return labels
