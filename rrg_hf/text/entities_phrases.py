"""From the words of one sentence to phrases (runs of words with content) and the relations in and between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import NamedTuple

from .entities_lexicon import (
    COORDINATION,
    CUE_WORDS,
    DENIAL,
    FILLERS,
    FIXED,
    FUNCTION_WORDS,
    HEDGE,
    LOCATION,
    PART_OF_DEVICE,
    PREDICATE,
    PROGRESS,
    SHARED,
    SHOWING,
    SIGNS,
    STATED_OPENERS,
    SUGGESTING,
    VIEWS,
    WORDS,
    Tag,
    tag_of,
)
from .rules_patterns import Kind
from .rules_scope import Event

MODIFY, LOCATED_AT, SUGGESTIVE_OF = "modify", "located_at", "suggestive_of"


class Word(NamedTuple):
    """A word of the report: its index, its span and its lower-case text without surrounding quotes or semicolon."""

    position: int
    start: int
    end: int
    low: str
    closes: bool  # a semicolon is attached: no phrase goes on behind it


_ANATOMY_TAGS = frozenset({Tag.ANATOMY, Tag.SIDE, Tag.ATTRIBUTE, Tag.DISTANCE})


@dataclass
class Entity:
    """A run of words that is one entity."""

    first: int
    last: int
    tag: Tag
    low: str
    start: int
    relations: list[tuple[str, Entity]] = field(default_factory=list)
    governor: Entity | None = None  # the observation whose state this quality shares

    is_anatomy: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_anatomy = self.tag in _ANATOMY_TAGS

    def relate(self, kind: str, target: Entity) -> None:
        if target is not self and (kind, target) not in self.relations:
            self.relations.append((kind, target))


@dataclass
class Phrase:
    """A maximal run of entities without other words between them."""

    entities: list[Entity]
    heads: list[Entity] = field(default_factory=list)  # findings and devices
    sites: list[Entity] = field(default_factory=list)  # heads of anatomy
    qualities: list[Entity] = field(default_factory=list)  # without a finding of their own to qualify
    subject: list[Entity] = field(default_factory=list)  # what a predicate behind this phrase speaks of
    located: Entity | None = None  # the observation that this place locates

    @property
    def first(self) -> int:
        return self.entities[0].first

    @property
    def last(self) -> int:
        return self.entities[-1].last


_NUMBER = re.compile(r"\d{1,4}")
_UNIT = re.compile(r"(?:cms?|mms?|centimeters?|millimeters?|centimetres?|millimetres?)")
_JOINED_MEASURE = re.compile(r"\d{1,4}-?(?:cm|mm)s?(?:-\w+)?")
_OFFSET = frozenset({"above", "below", "from", "superior", "inferior", "distal", "proximal", "beyond", "cephalad"})
_TUBE_SHORT = frozenset({"et", "ng", "og"})


def measures(words: Sequence[Word]) -> dict[int, tuple[int, Tag]]:
    """Measurements of a sentence: position of the first word -> (position of the last, tag)."""
    found: dict[int, tuple[int, Tag]] = {}
    at = 0
    while at < len(words):
        low = words[at].low
        if not low[:1].isdigit():
            at += 1
            continue
        end = at
        if not _JOINED_MEASURE.fullmatch(low):
            while (
                end < len(words) and end - at < 12 and (_NUMBER.fullmatch(words[end].low) or words[end].low in ".x-")
            ):
                end += 1
            if end == len(words) or not (_UNIT.fullmatch(words[end].low) or _JOINED_MEASURE.fullmatch(words[end].low)):
                at = max(end, at + 1)
                continue
        tag = Tag.MEASURE
        if end + 1 < len(words) and words[end + 1].low in _OFFSET:
            end += 1
            tag = Tag.DISTANCE
        found[at] = (end, tag)
        at = end + 1
    return found


def entities_of(words: Sequence[Word], covers: Sequence[Event | None]) -> list[Entity]:
    """The entities of a sentence, without relations.

    Args:
        words: the sentence's words.
        covers: per word the labeller's event it lies in.
    """
    found: list[Entity] = []
    measured = measures(words) if any(word.low[:1].isdigit() for word in words) else {}
    skip = -1
    for at, word in enumerate(words):
        if at <= skip:
            continue
        if at in measured:
            last, measured_tag = measured[at]
            skip = last
            found.append(Entity(word.position, words[last].position, measured_tag, word.low, word.start))
            continue
        low = word.low
        if not low:
            continue
        fixed = _fixed(words, at) if low in FIXED else None
        if fixed is not None:
            skip = at + fixed[0] - 1
            found.append(Entity(word.position, words[skip].position, Tag.QUALITY, fixed[1], word.start))
            continue
        if low in _TUBE_SHORT and at + 1 < len(words) and words[at + 1].low in ("tube", "tubes"):
            skip = at + 1
            found.append(Entity(word.position, words[at + 1].position, Tag.DEVICE, "tube", word.start))
            continue
        tag: Tag | None = _tag(word, covers[at])
        if low == "both" and at + 1 < len(words) and WORDS.get(words[at + 1].low) in _ANATOMY_TAGS:
            tag = Tag.SIDE
        if low in SIGNS and at + 1 < len(words) and words[at + 1].low == ":":
            continue  # the header of a section
        if tag in (Tag.SIDE, Tag.ANATOMY) and at + 1 < len(words):
            if words[at + 1].low in VIEWS:
                continue  # "lateral view", "chest radiograph"
            if low in ("distal", "proximal") and WORDS.get(words[at + 1].low) is Tag.DEVICE:
                tag = Tag.QUALITY
        if tag is not None:
            found.append(Entity(word.position, word.position, tag, low, word.start))
    return found


def _fixed(words: Sequence[Word], at: int) -> tuple[int, str] | None:
    """Number of words and stand-in of the fixed phrase that starts here."""
    for phrase, stands_for in FIXED[words[at].low]:
        if tuple(word.low for word in words[at : at + len(phrase)]) == phrase:
            return len(phrase), stands_for
    return None


def _tag(word: Word, cover: Event | None) -> Tag | None:
    low = word.low
    tag = WORDS.get(low)
    if cover is None:
        return tag if tag is not None else tag_of(low)
    kind = cover.kind
    if kind is Kind.PSEUDO:
        return None
    if tag is None and low not in FUNCTION_WORDS and low[:1].isalpha():
        if kind in (Kind.FINDING, Kind.HINT, Kind.OTHER):
            return Tag.FINDING
        if kind is Kind.DEVICE:
            return Tag.DEVICE
    if kind in (Kind.NEG_BEFORE, Kind.NEG_AFTER) and (low in CUE_WORDS or (low in SIGNS and word.end < cover.end)):
        return None
    if tag in (Tag.ATTRIBUTE, Tag.DEVICE) and kind in (Kind.FINDING, Kind.HINT, Kind.OTHER):
        # "increased markings", "septal lines" are findings; "volume loss" is one with its second word
        return Tag.FINDING if word.end == cover.end else Tag.QUALITY
    return tag if tag is not None else tag_of(low)


def phrases_of(words: Sequence[Word], covers: Sequence[Event | None], breaks: list[int]) -> list[Phrase]:
    """Phrases of a sentence with the relations inside each.

    Args:
        words: the sentence's words.
        covers: per word the labeller's event it lies in.
        breaks: gets the character offsets at which a denial ends although no mark says so.
    """
    phrases: list[Phrase] = []
    offset = words[0].position if words else 0
    for entity in entities_of(words, covers):
        if phrases and _joined(words[phrases[-1].last - offset : entity.first - offset]):
            phrases[-1].entities.append(entity)
        else:
            phrases.append(Phrase([entity]))
    for phrase in phrases:
        _inside(phrase, [covers[entity.first - offset] for entity in phrase.entities], breaks)
    return phrases


def _joined(words: Sequence[Word]) -> bool:
    """Whether nothing of content stands between two entities: the first one's last word, and what follows it."""
    return not words[0].closes and (len(words) == 1 or all(word.low in FILLERS for word in words[1:]))


_STATED = (Kind.FINDING, Kind.HINT, Kind.DEVICE, Kind.OTHER)


def _segments(phrase: Phrase, covers: Sequence[Event | None]) -> list[tuple[list[Entity], Entity | None]]:
    """A phrase cut behind each finding or device that is one of its own: (entities, its head)."""
    heads = [at for at, entity in enumerate(phrase.entities) if entity.tag in (Tag.FINDING, Tag.DEVICE)]
    own: list[int] = []
    for at, following in zip_longest(heads, heads[1:]):
        if following is not None:
            between = phrase.entities[at + 1 : following]
            here, there = covers[at], covers[following]
            both = here is not None and there is not None and here.kind in _STATED and there.kind in _STATED
            compound = not (both and here is not there) and not any(
                entity.is_anatomy or entity.low in STATED_OPENERS for entity in between
            )
            device = phrase.entities[at].tag is Tag.DEVICE and phrase.entities[following].tag is Tag.DEVICE
            if compound or (device and not between):
                continue  # "compression fracture deformity", "picc line tip"
        own.append(at)
    segments: list[tuple[list[Entity], Entity | None]] = []
    start = 0
    for at in own:
        segments.append((phrase.entities[start : at + 1], phrase.entities[at]))
        start = at + 1
    if start < len(phrase.entities):
        rest = phrase.entities[start:]
        if segments and not any(entity.tag in (Tag.FINDING, Tag.DEVICE) for entity in rest):
            segments[-1] = (segments[-1][0] + rest, segments[-1][1])
        else:
            segments.append((rest, None))
    return segments


def _inside(phrase: Phrase, covers: Sequence[Event | None], breaks: list[int]) -> None:
    segments = _segments(phrase, covers)
    for number, (entities, head) in enumerate(segments):
        if number and entities[0].low in STATED_OPENERS:
            breaks.append(entities[0].start)
        groups = _groups(entities)
        sites = [_site(group) for group in groups]
        others = [entity for entity in entities if not entity.is_anatomy and entity is not head]
        for entity, following in pairwise(others):
            if entity.low.endswith("ly") and following.tag is Tag.QUALITY:
                entity.governor = following  # "mildly enlarged"
                entity.relate(MODIFY, following)
        others = [entity for entity in others if entity.governor is None]
        if head is not None:
            phrase.heads.append(head)
            for entity in others:
                entity.governor = head
                if entity.tag is Tag.DEVICE and head.low in PART_OF_DEVICE:
                    head.relate(MODIFY, entity)
                else:
                    entity.relate(MODIFY, head)
            for site in sites:
                head.relate(LOCATED_AT, site)
        else:
            for entity in others:
                for site in sites[-1:]:
                    entity.relate(LOCATED_AT, site)
            phrase.qualities += others
        phrase.sites += sites
    phrase.subject = phrase.heads[-1:] or phrase.sites[-1:]


def _groups(entities: Sequence[Entity]) -> list[list[Entity]]:
    """Neighbouring anatomy words as groups, each about one place."""
    groups: list[list[Entity]] = []
    previous = -2
    for entity in entities:
        if not entity.is_anatomy:
            continue
        fresh = entity.first != previous + 1 or entity.tag is Tag.DISTANCE
        # "lungs bilaterally": a side behind its noun still belongs to it
        if fresh and groups and entity.tag is Tag.SIDE and entity.low.endswith("ly"):
            fresh = False
        if fresh:
            groups.append([])
        groups[-1].append(entity)
        previous = entity.last
    return groups


def _site(group: Sequence[Entity]) -> Entity:
    """The word of a group that the others modify; relates them."""
    for tags in ((Tag.ANATOMY,), (Tag.ATTRIBUTE,), (Tag.SIDE, Tag.DISTANCE)):
        nouns = [entity for entity in group if entity.tag in tags]
        if nouns:
            break
    site = nouns[-1]
    for entity in group:
        entity.relate(MODIFY, site)
    return site


def relate_phrases(phrases: Sequence[Phrase], gaps: Sequence[str]) -> None:
    """Relations between the phrases of one sentence.

    Args:
        phrases: in reading order, with the relations inside each.
        gaps: the lower-case words between each phrase and the next, joined by blanks.
    """
    explained: Entity | None = None  # the finding that the phrases of a list may explain
    subject: list[Entity] = list(phrases[0].subject) if phrases else []
    for left, right, gap, following in zip(phrases, phrases[1:], gaps, [*gaps[1:], ""], strict=False):
        if not gap or COORDINATION.fullmatch(gap):
            if explained is not None:
                _suggest(explained, right)
            begins = PREDICATE.fullmatch(following) is not None
            _coordinate(left, right, gap, begins=begins)
            alike = not (begins and subject and subject[-1].is_anatomy != bool(right.sites))
            alike = alike and bool(right.heads) == bool(left.heads) and bool(right.sites) == bool(left.sites)
            if right.heads or right.sites:
                subject = [*subject, *right.subject] if alike and "with" not in gap else list(right.subject)
            continue
        if _distance(left, right, gap):
            continue
        findings = [*left.qualities, *(entity for entity in subject if entity.tag is Tag.FINDING)]
        finding = findings[-1] if findings else None
        if finding is not None and right.heads and SUGGESTING.search(gap) and not DENIAL.search(gap):
            explained = explained or finding
            _suggest(explained, right)
            subject = list(right.subject)
        elif LOCATION.fullmatch(gap):
            _locate(left, right, subject)
            if not subject:
                subject = list(right.subject)
        elif right.heads and left.sites and not left.heads and SHOWING.fullmatch(gap):
            explained = None
            _show(right, subject)
            subject = list(right.subject)
        elif PREDICATE.fullmatch(gap):
            explained = None
            _predicate(right, subject)
            if right.heads:
                subject = list(right.subject)
        elif subject and right.qualities and not right.heads and not right.sites and HEDGE.fullmatch(gap):
            for quality in right.qualities:  # "markings, likely chronic": doubted, whatever the markings are
                quality.relate(LOCATED_AT if subject[-1].is_anatomy else MODIFY, subject[-1])
        else:
            explained = None
            subject = list(right.subject)


def _distance(left: Phrase, right: Phrase, gap: str) -> bool:
    """ "Tube terminates 2 cm above the carina"."""
    if left.entities[-1].tag is Tag.DISTANCE and right.sites and not right.heads and gap in ("the", "level of the"):
        left.entities[-1].relate(MODIFY, right.sites[0])
        return True
    if right.entities[0].tag is Tag.DISTANCE and left.heads and gap.count(" ") < 4 and not DENIAL.search(gap):
        left.heads[-1].relate(LOCATED_AT, right.entities[0])
        return True
    return False


def _show(right: Phrase, subject: Sequence[Entity]) -> None:
    """ "The left lung shows a nodule": what has no place of its own is where it is shown."""
    for head in right.heads:
        if not any(kind == LOCATED_AT for kind, _ in head.relations):
            for site in subject:
                if site.is_anatomy:
                    head.relate(LOCATED_AT, site)


def _suggest(finding: Entity, phrase: Phrase) -> None:
    for head in phrase.heads:
        if head.tag is Tag.FINDING:
            finding.relate(SUGGESTIVE_OF, head)


def _coordinate(left: Phrase, right: Phrase, gap: str, *, begins: bool) -> None:
    """ "Small and loculated effusion", "right and left lungs", "mild to moderate", "tube with tip in the stomach".

    Args:
        left: what stands before the "and" or comma.
        right: what stands behind it.
        gap: the words between.
        begins: whether a predicate follows, so that `right` is the subject of a clause of its own.
    """
    if not right.heads and not right.sites:
        _predicate(right, left.subject)  # "effusion, unchanged"; "lungs are clear and expanded"
        return
    if _attribute(right, left.subject):
        return
    if not SHARED.fullmatch(gap):
        if "with" in gap and left.heads and left.heads[-1].tag is Tag.DEVICE:
            for head in right.heads:
                if head.low in PART_OF_DEVICE:
                    head.relate(MODIFY, left.heads[-1])
        return
    only_sides = not left.heads and all(entity.tag is Tag.SIDE for entity in left.entities)
    if only_sides and right.sites and (left.located is None or not right.heads):
        if left.located is not None:  # "in the right mid and lower lung"
            left.located.relations = [pair for pair in left.located.relations if pair[1] not in left.sites]
            left.located.relate(LOCATED_AT, right.sites[0])
            right.located = left.located
        for entity in left.entities:
            entity.relations = []
            entity.relate(MODIFY, right.sites[0])
    elif not left.heads and not left.sites and not left.subject:
        if right.heads:
            _qualify(left, right.heads[0])
        else:
            for entity in left.qualities:
                entity.relate(LOCATED_AT, right.sites[0])
    elif left.sites and right.sites and not left.heads and not right.heads and not right.qualities and not begins:
        site = right.sites[-1]
        if left.located is not None:
            left.located.relate(LOCATED_AT, site)  # "in the left base and lingula"
            right.located = left.located
        for entity in left.qualities:
            if any(target in left.sites for _, target in entity.relations):
                entity.relate(LOCATED_AT, site)  # "normal heart size and mediastinal contours"


def _qualify(phrase: Phrase, head: Entity) -> None:
    for entity in phrase.qualities:
        entity.governor = entity.governor or head
        entity.relate(MODIFY, head)
    phrase.qualities = []


def _locate(left: Phrase, right: Phrase, subject: Sequence[Entity]) -> None:
    """What stands before a preposition and what behind it."""
    if left.heads:
        head = left.heads[-1]
        if right.heads:
            if head.low in PROGRESS or head.low in PART_OF_DEVICE:
                head.relate(MODIFY, right.heads[0])
            return
        for site in right.sites:
            head.relate(LOCATED_AT, site)
        right.located, right.subject = head, left.subject
        if not right.sites:
            _qualify(right, head)
        return
    if left.qualities and right.heads:
        for quality in left.qualities:
            quality.governor = right.heads[0]
            quality.relate(MODIFY, right.heads[0])
        left.qualities = []
        return
    if (left.qualities or left.sites) and _attribute(right, subject):
        return
    if not right.sites and not right.heads:
        _predicate(right, left.subject)  # "tube in stable position"
        return
    if left.qualities and right.sites:
        for quality in left.qualities:
            if not quality.relations:
                quality.relate(LOCATED_AT, right.sites[-1])
        return
    if left.sites and right.sites and not right.heads:
        left.sites[-1].relate(MODIFY, right.sites[-1])  # "apex of the left lung"
        left.subject = right.subject = left.sites[-1:]


def _attribute(phrase: Phrase, subject: Sequence[Entity]) -> bool:
    """ "The heart is normal in size", "mediastinum of normal contour": the attribute is the subject's."""
    places = [entity for entity in subject if entity.is_anatomy]
    if not places or phrase.heads or not phrase.sites or any(site.tag is not Tag.ATTRIBUTE for site in phrase.sites):
        return False
    for site in phrase.sites:
        for place in places:
            site.relate(MODIFY, place)
    for quality in phrase.qualities:
        quality.relations = [pair for pair in quality.relations if pair[0] != LOCATED_AT]
        for place in places:
            quality.relate(LOCATED_AT, place)
    phrase.subject = places
    return True


def _predicate(right: Phrase, subject: Sequence[Entity]) -> None:
    """ "The lungs are clear", "the effusion is small"."""
    if right.heads or not subject or _attribute(right, subject):
        return
    targets = list(subject)
    if right.sites and all(site.tag is Tag.SIDE for site in right.sites):
        # "lungs are clear bilaterally"
        for site in right.sites:
            for quality in right.qualities:
                quality.relations = [pair for pair in quality.relations if pair[1] is not site]
            for target in targets:
                site.relate(MODIFY if target.is_anatomy else LOCATED_AT, target)
            if targets and not targets[-1].is_anatomy:
                site.relations = []
                targets[-1].relate(LOCATED_AT, site)
    elif right.sites:
        return
    for quality in right.qualities:
        for target in targets:
            if target.is_anatomy:
                quality.relate(LOCATED_AT, target)
            else:
                quality.governor = quality.governor or target
                quality.relate(MODIFY, target)
    if any(not target.is_anatomy for target in targets):
        right.qualities = []
    right.subject = targets
