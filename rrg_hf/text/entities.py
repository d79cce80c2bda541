"""Entities and relations of a report by rules, offline: the stand-in for RadGraph and for RaTE-NER.

It reads with the rule labeller's vocabulary and scope (`rules`, `rules_scope`) and writes RadGraph's published
annotation format (Jain et al. 2021, "RadGraph: Extracting Clinical Entities and Relations from Radiology Reports").
Scores made with it are called `rules`, never RadGraph or RaTEScore. docs/entities.md holds conventions, measured
agreement and limits.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ..observations import LabelState
from .entities_lexicon import DISEASES, NEGATIONS, SITES, Tag
from .entities_phrases import Entity, Phrase, Word, phrases_of, relate_phrases
from .rules import normalise
from .rules_patterns import Kind, compiled
from .rules_scope import Event, resolve
from .sentences import split_sentences

ENTITY_RULES_VERSION = "1.1"

_WORD = re.compile(r"[/,:.!?()]|[^\s/,:.!?()]+")
_TRIM = ";'\"[]{}<>*#_`-"
_MOST_EVENTS = 100  # as in the labeller: keeps run-on text linear
_MOST_WORDS = 400

_STATED = frozenset({Kind.FINDING, Kind.DEVICE, Kind.OTHER})
_DENYING = frozenset({Kind.NEG_BEFORE, Kind.NEG_AFTER})
_DOUBTING = frozenset({Kind.UNC_BEFORE, Kind.UNC_CLAUSE, Kind.UNC_AFTER, Kind.DIFFERENTIAL, Kind.IGNORE})
_PREDICATES = frozenset({Kind.NORMAL, Kind.ENLARGED, Kind.STABLE, Kind.BORDERLINE, Kind.POOR, Kind.NEUTRAL})
_LABELS = {LabelState.POSITIVE: "OBS-DP", LabelState.NEGATIVE: "OBS-DA", LabelState.UNCERTAIN: "OBS-U"}

Sentence = tuple[list[Phrase], dict[int, LabelState]]


def split_words(text: str) -> list[str]:
    """Words as RadGraph's v1 preprocessing makes them: `/ , : . ! ? ( )` stand alone, blanks part the rest."""
    return _WORD.findall(text)


def _adapted(event: Event, normal: str) -> Event:
    """The labeller's event as RadGraph's guidelines read it: "likely" and "suggests" doubt, "no new" denies."""
    kind = event.kind
    phrase = normal[event.start : event.end]
    if kind in (Kind.HINT, Kind.MARKINGS):
        return event._replace(kind=Kind.OTHER if kind is Kind.HINT else Kind.NEUTRAL)
    if kind is Kind.UNC_BEFORE and phrase.startswith("no new"):
        return event._replace(kind=Kind.NEG_BEFORE)
    if (kind is Kind.TERMINATOR and phrase.startswith("likely")) or (kind is Kind.VERB and phrase.startswith("sugg")):
        return event._replace(kind=Kind.UNC_CLAUSE)
    return event


def _sentences(text: str) -> Iterator[tuple[list[Word], list[Event], str]]:
    """Words and the labeller's events, sentence by sentence; long run-on text in pieces."""
    normal = normalise(text)
    expression, table = compiled()
    starts = [start for start, _ in split_sentences(text)]
    if not starts:
        return
    words: list[list[Word]] = [[] for _ in starts]
    for index, match in enumerate(_WORD.finditer(text)):
        start, end = match.span()
        raw = normal[start:end]
        low = raw.strip().strip(_TRIM)
        words[bisect_right(starts, start) - 1].append(Word(index, start, end, low, raw[-1:] == ";" or low == ":"))
    events: list[list[Event]] = [[] for _ in starts]
    for match in expression.finditer(normal):
        entry = table[match.lastindex or 0]
        event = Event(match.start(), match.end(), entry.kind, entry.observations)
        events[bisect_right(starts, event.start) - 1].append(_adapted(event, normal))
    for of_words, of_events in zip(words, events, strict=True):
        while len(of_events) > _MOST_EVENTS or len(of_words) > _MOST_WORDS:
            cut = len(text)
            if len(of_events) > _MOST_EVENTS:
                cut = of_events[_MOST_EVENTS].start
            if len(of_words) > _MOST_WORDS:
                cut = min(cut, of_words[_MOST_WORDS].start)
            yield [word for word in of_words if word.start < cut], [e for e in of_events if e.start < cut], normal
            of_words = [word for word in of_words if word.start >= cut]
            of_events = [event for event in of_events if event.start >= cut]
        yield of_words, of_events, normal


def _covers(words: Sequence[Word], events: Sequence[Event]) -> list[Event | None]:
    covers: list[Event | None] = []
    at = 0
    for word in words:
        while at < len(events) and events[at].end <= word.start:
            at += 1
        inside = at < len(events) and events[at].start < word.end
        covers.append(events[at] if inside else None)
    return covers


def _read(text: str) -> Iterator[Sentence]:
    """Phrases with their relations, and the state of every observation by the index of its first word."""
    for words, events, normal in _sentences(text):
        if not words:
            continue
        covers = _covers(words, events)
        breaks: list[int] = []
        phrases = phrases_of(words, covers, breaks)
        if not phrases:
            continue
        offset = words[0].position
        gaps = [
            " ".join(word.low for word in words[left.last + 1 - offset : right.first - offset] if word.low)
            for left, right in pairwise(phrases)
        ]
        relate_phrases(phrases, gaps)
        denied = False
        for word, cover in zip(words, covers, strict=True):
            if cover is None and not denied and (word.low == "likely" or word.low.startswith("suggest")):
                events.append(Event(word.start, word.end, Kind.UNC_CLAUSE, ()))
            denied = cover is not None and cover.kind in _DENYING
        events += [Event(start, start, Kind.BREAK, ()) for start in breaks]
        yield phrases, _states(phrases, covers, events, offset, normal)


def _states(
    phrases: Sequence[Phrase], covers: Sequence[Event | None], events: list[Event], offset: int, normal: str
) -> dict[int, LabelState]:
    """States of the observations of a sentence; the labeller's scope decides, over its own findings and ours."""
    fixed: dict[int, LabelState] = {}
    asked: dict[int, tuple[int, int]] = {}  # first word -> span of the event whose state it takes
    table = {(event.start, event.end): event for event in events}
    for phrase in phrases:
        for entity in (*phrase.heads, *phrase.qualities):
            cover = covers[entity.first - offset]
            span = (entity.start, entity.start + max(1, len(entity.low)))
            if cover is None:
                table[span] = Event(*span, Kind.OTHER, ())
                asked[entity.first] = span
                continue
            kind = cover.kind
            where = (cover.start, cover.end)
            if kind in _DENYING:
                clear = entity.low == "clear"  # "the lungs are clear of effusion"
                fixed[entity.first] = LabelState.POSITIVE if clear else LabelState.NEGATIVE
            elif kind in _DOUBTING:
                fixed[entity.first] = LabelState.UNCERTAIN
            elif kind in _STATED:
                asked[entity.first] = where
            elif kind in _PREDICATES and not NEGATIONS.isdisjoint(normal[cover.start : cover.end].split()):
                fixed[entity.first] = LabelState.NEGATIVE
            elif kind in _PREDICATES:
                table[where] = cover._replace(kind=Kind.OTHER)
                asked[entity.first] = where
            else:
                fixed[entity.first] = LabelState.POSITIVE
    ordered = [table[span] for span in sorted(table)]
    resolved: dict[tuple[int, int], LabelState] = {}
    for event, state in resolve(ordered, normal):
        resolved[event.start, event.end] = state
    # A finding that is only asked about ("if edema persists") has no state there; here it is in doubt.
    states = {first: resolved.get(span, LabelState.UNCERTAIN) for first, span in asked.items()}
    states.update(fixed)
    for phrase in phrases:
        for entity in phrase.entities:
            if not entity.is_anatomy and entity.first not in states:
                states[entity.first] = _shared_state(entity, states)
    return states


def _shared_state(entity: Entity, states: dict[int, LabelState]) -> LabelState:
    """State of what a quality qualifies."""
    seen = {entity.first}
    governor = entity.governor
    while governor is not None and governor.first not in seen:
        if governor.first in states:
            return states[governor.first]
        seen.add(governor.first)
        governor = governor.governor
    return LabelState.POSITIVE


def extract_graph(text: str) -> dict[str, Any]:
    """Entities and relations of a report in RadGraph's annotation format, by rules.

    Args:
        text: a report, a section or a sentence. Indication, history, comparison and technique sections inside it, and
            the placeholders `___` and `XXXX`, are passed over, as in `label_report`.

    Returns:
        {"text": the words joined by blanks, "entities": {"1": {"tokens", "label", "start_ix", "end_ix", "relations"}},
        "data_source": None, "data_split": "inference"}. Labels are those of RadGraph v1 (ANAT-DP, OBS-DP, OBS-DA,
        OBS-U), relations ["modify" | "located_at" | "suggestive_of", entity number]; `start_ix` and `end_ix` count
        words, both inclusive. Entities are numbered in reading order. Empty text has no entities.

    Example:
        >>> graph = extract_graph("Mild pulmonary edema.")
        >>> [(entity["tokens"], entity["label"], entity["relations"]) for entity in graph["entities"].values()][1:]
        [('pulmonary', 'ANAT-DP', []), ('edema', 'OBS-DP', [['located_at', '2']])]
    """
    words = split_words(text)
    found: list[tuple[Entity, str]] = []
    for phrases, states in _read(text):
        for phrase in phrases:
            for entity in phrase.entities:
                label = "ANAT-DP" if entity.is_anatomy else _LABELS[states[entity.first]]
                found.append((entity, label))
    numbers = {id(entity): str(number) for number, (entity, _) in enumerate(found, 1)}
    entities: dict[str, Any] = {}
    for entity, label in found:
        relations = sorted(
            ([kind, numbers[id(target)]] for kind, target in entity.relations),
            key=lambda pair: (int(pair[1]), pair[0]),
        )
        entities[numbers[id(entity)]] = {
            "tokens": " ".join(words[entity.first : entity.last + 1]),
            "label": label,
            "start_ix": entity.first,
            "end_ix": entity.last,
            "relations": relations,
        }
    return {"text": " ".join(words), "entities": entities, "data_source": None, "data_split": "inference"}


def extract_typed_entities(text: str) -> list[tuple[str, str]]:
    """Entities of a report with RaTEScore's types, by rules (Zhao et al. 2024, "RaTEScore").

    A finding comes with its qualities and organ adjective ("small pleural effusion"), a place with its sides ("left
    lower lobe").

    Args:
        text: as in `extract_graph`.

    Returns:
        (words of the report joined by blanks, type) in reading order; types are "anatomy", "abnormality", "disease",
        and "non-abnormality", "non-disease" for what is denied or normal. Doubted findings count as present.
    """
    words = split_words(text)
    typed: list[tuple[int, str, str]] = []
    for phrases, states in _read(text):
        for phrase in phrases:
            typed += _typed(phrase, states, words)
    typed.sort(key=lambda row: row[0])
    return [(string, kind) for _, string, kind in typed]


_NORMAL = """
normal clear unremarkable intact midline normally well-expanded well-inflated well-aerated expanded inflated aerated
symmetric symmetrical symmetrically sharp smooth
"""
_NORMAL_WORDS = frozenset(_NORMAL.split())


def _typed(phrase: Phrase, states: dict[int, LabelState], words: Sequence[str]) -> list[tuple[int, str, str]]:
    rows = []
    used: set[int] = set()

    def row(entities: Sequence[Entity], kind: str) -> None:
        string = " ".join(" ".join(words[entity.first : entity.last + 1]) for entity in entities)
        rows.append((entities[0].first, string, kind))
        used.update(entity.first for entity in entities)

    for head in phrase.heads:
        parts = [entity for entity in phrase.entities if entity is head or entity.governor is head]
        before = [entity for entity in phrase.entities if entity.last == head.first - 1 and entity.tag is Tag.ANATOMY]
        if before and not any(site is before[0] for site in phrase.sites if _is_noun(site)):
            parts += before
        parts.sort(key=lambda entity: entity.first)
        denied = states[head.first] is LabelState.NEGATIVE
        kind = "disease" if head.low in DISEASES else "abnormality"
        row(parts, f"non-{kind}" if denied else kind)
    for entity in phrase.entities:
        if entity.first in used or entity.is_anatomy:
            continue
        normal = entity.low in _NORMAL_WORDS or states[entity.first] is LabelState.NEGATIVE
        row([entity], "non-abnormality" if normal else "abnormality")
    group: list[Entity] = []
    for entity in phrase.entities:
        if group and (entity.first in used or not entity.is_anatomy or entity.first != group[-1].last + 1):
            row(group, "anatomy")
            group = []
        if entity.is_anatomy and entity.first not in used:
            group.append(entity)
    if group:
        row(group, "anatomy")
    return rows


def _is_noun(entity: Entity) -> bool:
    """Whether anatomy names a place ("lobe", "basilar") rather than an organ's adjective ("pleural")."""
    return entity.low in SITES or not entity.low.endswith(("al", "ar", "ary", "ic", "ac", "ous", "an"))
