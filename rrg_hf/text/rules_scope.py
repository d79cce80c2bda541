"""From the events of one sentence (findings, cues, scope marks) to the state of every finding in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..observations import LabelState
from .rules_patterns import Kind

POSITIVE, NEGATIVE, UNCERTAIN = LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN


class Event(NamedTuple):
    """A matched phrase of the lexicon or of the cues."""

    start: int
    end: int
    kind: Kind
    observations: tuple[str, ...]


_STATED = frozenset({Kind.FINDING, Kind.HINT, Kind.DEVICE, Kind.OTHER, Kind.MARKINGS})
_PREDICATES = frozenset({Kind.NORMAL, Kind.ENLARGED, Kind.STABLE, Kind.BORDERLINE, Kind.POOR})
_HARD = frozenset({Kind.TERMINATOR, Kind.BREAK})
# Strongest first: "borderline enlarged", "normal but unchanged".
_PREDICATE_STATE = (
    (Kind.BORDERLINE, UNCERTAIN),
    (Kind.ENLARGED, POSITIVE),
    (Kind.NORMAL, NEGATIVE),
    (Kind.POOR, UNCERTAIN),
    (Kind.STABLE, UNCERTAIN),
)

# A list that a negation opened ends where the next item is introduced like this: "no edema, small effusion".
_RESTART = re.compile(
    r"[ ,]{0,8}(?:and +|with +|but +)?(?:again +|now +|also +)?(?:(?:a|an|the|there is|there are|mild|mildly|moderate"
    r"|moderately|minimal|minor|small|tiny|trace|stable|unchanged|persistent|persisting|improved|improving|increased"
    r"|increasing|decreased|decreasing|worsening|worsened|slight|slightly|extensive|residual|chronic|old|healed|known"
    r"|status|severe|marked|low|left lower lobe|right lower lobe|bibasilar|bibasal|interval|continued|some|multiple"
    r"|moderate sized|redemonstrated|similar|mildly)\b)"
)
_SEEN_TAIL = re.compile(
    r"[ -]{0,4}(?:is|are|was|were)? *(?:seen|identified|present|noted|visuali[sz]ed|evident|detected)\b"
)
_TWO_WAY = (
    "unlikely",
    "less likely",
    "least likely",
    "possible",
    "suspected",
    "questioned",
    "probable",
    "questionable",
)
_CONCESSIVE = ("but", "though", "although", "albeit", "yet", "however")  # "stable but enlarged"
_CLAUSE_END = re.compile(r"[.,;]|$")
_WORD = re.compile(r"[a-z0-9']+")


def _words_between(text: str, start: int, end: int) -> int:
    if end - start > 120:
        return 99
    return len(_WORD.findall(text, start, end))


def resolve(events: Sequence[Event], text: str) -> list[tuple[Event, LabelState]]:
    """State of every finding, anatomy and device of one sentence.

    Args:
        events: the sentence's events in reading order.
        text: the normalised report the events' offsets point into.

    Returns:
        (event, state) for each finding that is stated. Anatomy without a predicate, findings that are only asked
        about, and neutral phrases are left out.
    """
    count = len(events)
    states: list[LabelState | None] = [None] * count
    if not any(event.kind in _STATED or event.kind is Kind.ANATOMY for event in events):
        return []
    ignored = [False] * count
    _forward(events, text, states, ignored)
    _backward(events, text, states)
    _alternatives(events, text, states)
    _anatomy(events, text, states)
    return [
        (event, state)
        for event, state, skip in zip(events, states, ignored, strict=True)
        if state is not None and not skip and event.kind in (*_STATED, Kind.ANATOMY)
    ]


def _forward(events: Sequence[Event], text: str, states: list[LabelState | None], ignored: list[bool]) -> None:
    """Cues that stand before what they change."""
    negated = captured = captured_device = verb_after = False
    uncertain: str | None = None  # "phrase": a noun phrase or list; "clause": to the clause's end
    new_only = False
    asking = False
    for index, event in enumerate(events):
        kind = event.kind
        if kind is Kind.NEG_BEFORE:
            negated, captured, captured_device, verb_after = True, False, False, False
            uncertain, asking = None, False
        elif kind is Kind.DIFFERENTIAL:
            negated, uncertain = False, "list"
        elif kind in (Kind.UNC_BEFORE, Kind.UNC_CLAUSE, Kind.BORDERLINE):
            phrase = text[event.start : event.end]
            if phrase.startswith("no new"):
                negated, captured, captured_device, verb_after, new_only = True, False, False, False, True
                continue
            if negated and kind is not Kind.UNC_CLAUSE and not captured:
                continue  # "no suspected fracture", "without apparent effusion": still absent
            if negated and not captured and phrase.startswith(("concern", "suspicious", "worrisome", "a question")):
                continue  # "no findings concerning for pneumonia"
            negated = False
            if uncertain != "list":
                uncertain = "clause" if kind is Kind.UNC_CLAUSE else uncertain or "phrase"
        elif kind in _HARD:
            negated = False
            uncertain = None
            asking = asking and text.startswith("there", event.start)  # "if there is concern for ..."
        elif kind is Kind.IGNORE:
            if not negated:
                asking, uncertain = True, None
        elif kind is Kind.VERB:
            verb_after = captured
            if uncertain == "phrase":
                uncertain = None
        elif kind is Kind.WITH:
            if negated and captured:
                negated = False
            if uncertain == "phrase":
                uncertain = None
        elif kind in (Kind.COMMA, Kind.AND):
            if negated and captured:
                negated = not _list_ends(events, index, text, verb_after)
            if uncertain in ("phrase", "clause") and _reached_finding(events, index, states):
                if kind is Kind.COMMA:
                    if not _or_follows(events, index):
                        uncertain = None
                elif _RESTART.match(text, event.end) and uncertain == "phrase":
                    uncertain = None
            if asking and kind is Kind.COMMA:
                asking = False
        elif kind in _STATED:
            device = kind is Kind.DEVICE
            if asking:
                ignored[index] = True
            if negated and device and captured and not captured_device:
                negated = False  # "no pneumothorax, endotracheal tube in place"
            if negated:
                captured = True
                captured_device = device
                if new_only:
                    states[index] = UNCERTAIN
                    new_only = False
                else:
                    states[index] = NEGATIVE
            elif kind is Kind.HINT or (uncertain and not device):
                states[index] = UNCERTAIN
            elif uncertain == "phrase" and _close(events, index, text):
                states[index] = UNCERTAIN  # "possible catheter fragment"
            else:
                states[index] = POSITIVE


def _reached_finding(events: Sequence[Event], index: int, states: Sequence[LabelState | None]) -> bool:
    """Whether the uncertain cue before `index` has already reached a finding."""
    for back in range(index - 1, -1, -1):
        if events[back].kind in (Kind.UNC_BEFORE, Kind.UNC_CLAUSE):
            return False
        if states[back] is not None:
            return True
    return False


def _close(events: Sequence[Event], index: int, text: str) -> bool:
    previous = events[index - 1]
    return previous.kind is Kind.UNC_BEFORE and _words_between(text, previous.end, events[index].start) <= 2


def _or_follows(events: Sequence[Event], index: int) -> bool:
    """Whether an "or" continues the list before its clause ends."""
    for event in events[index + 1 :]:
        if event.kind is Kind.OR:
            return True
        if event.kind in _HARD or event.kind in (Kind.VERB, Kind.NEG_BEFORE, Kind.WITH, Kind.NORMAL):
            return False
    return False


def _list_ends(events: Sequence[Event], index: int, text: str, verb_after: bool) -> bool:
    """Whether the comma or "and" at `index` ends a negated list."""
    if verb_after:
        return True
    if _or_follows(events, index):
        return False
    if _RESTART.match(text, events[index].start if events[index].kind is Kind.COMMA else events[index].end):
        return True
    # A clause of its own follows when a verb other than "is seen" comes behind its subject.
    for event in events[index + 1 :]:
        if event.kind in (Kind.COMMA, Kind.AND, Kind.OR, Kind.NEG_BEFORE) or event.kind in _HARD:
            return False
        if event.kind is Kind.VERB:
            return not _SEEN_TAIL.match(text, event.start)
    return False


def _backward(events: Sequence[Event], text: str, states: list[LabelState | None]) -> None:
    """Cues that stand behind what they change."""
    for index, event in enumerate(events):
        kind = event.kind
        if kind is Kind.NEG_AFTER or (kind is Kind.NEG_BEFORE and _answers(events, index, text)):
            new = NEGATIVE
        elif kind in (Kind.UNC_AFTER, Kind.POOR) or _faces_back(events, index, text):
            new = UNCERTAIN
        else:
            continue
        reached = _subject(events, index, text)
        if not reached and kind is Kind.NEG_AFTER and text.startswith(("resolved", "interval removal"), event.start):
            continue
        for back in reached:
            if kind is Kind.POOR and events[back].kind is Kind.DEVICE:
                continue
            if new is UNCERTAIN and events[back].kind is Kind.DEVICE:
                continue
            if states[back] is NEGATIVE and new is UNCERTAIN and kind is Kind.POOR:
                continue
            states[back] = new
        if kind is Kind.NEG_AFTER and not reached and event.end - event.start < 24:
            _negate_next(events, index, states, text)


def _answers(events: Sequence[Event], index: int, text: str) -> bool:
    """ "Effusion: no." or "Effusion: negative.": the cue ends the sentence and answers its heading."""
    return index == len(events) - 1 and index > 0 and text[events[index - 1].start] == ":"


def _negate_next(events: Sequence[Event], index: int, states: list[LabelState | None], text: str) -> None:
    """ "Resolved effusion", "absent pneumothorax": the cue has no subject and stands as an adjective."""
    for ahead in range(index + 1, len(events)):
        if events[ahead].kind in _STATED:
            if _words_between(text, events[index].end, events[ahead].start) <= 4:
                states[ahead] = NEGATIVE
            return
        if events[ahead].kind in _HARD or events[ahead].kind in (Kind.VERB, Kind.COMMA):
            return


def _faces_back(events: Sequence[Event], index: int, text: str) -> bool:
    """Whether a two-way hedge ("difficult to exclude") has nothing to its right and so speaks of its subject."""
    if events[index].kind not in (Kind.UNC_CLAUSE, Kind.UNC_BEFORE):
        return False
    phrase = text[events[index].start : events[index].end]
    if not phrase.startswith(_TWO_WAY) and "exclud" not in phrase and "rule" not in phrase:
        return False
    end = len(text)
    for event in events[index + 1 :]:
        if event.kind in _STATED:
            return False
        if event.kind in _HARD or event.kind is Kind.COMMA:
            end = event.start
            break
    if events[index].kind is Kind.UNC_CLAUSE:
        return True
    # "Effusions suspected." ends its clause; "possible, correlate ..." too, but "cardiomegaly, possibly accentuated".
    stop = _CLAUSE_END.search(text, events[index].end, min(end, events[index].end + 40) + 1)
    return stop is not None and _words_between(text, events[index].end, stop.start()) <= 1


def _subject(events: Sequence[Event], index: int, text: str) -> list[int]:
    """Findings before the cue at `index` that belong to its clause."""
    reached: list[int] = []
    if index and events[index - 1].kind is Kind.BREAK and events[index - 1].end + 2 >= events[index].start:
        index -= 1  # "Pneumothorax: none"
    gap = 0  # how many were reached when the nearest comma or "and" was passed
    for back in range(index - 1, -1, -1):
        kind = events[back].kind
        if kind in (Kind.VERB, Kind.UNC_CLAUSE, Kind.NEG_BEFORE, Kind.TERMINATOR):
            if kind in (Kind.VERB, Kind.UNC_CLAUSE) and not reached:
                continue
            if kind is Kind.TERMINATOR and not text.startswith("there", events[back].start):
                break
            # An earlier verb or "no" owns what stands before the last "and": "there is edema and the effusion has
            # resolved".
            return reached[:gap] if gap else reached
        if kind in (Kind.BREAK, Kind.NEG_AFTER, Kind.UNC_AFTER):
            break
        if kind is Kind.STABLE and text.startswith("no ", events[back].start):
            break  # "no change since the previous exam" is complete in itself
        if kind in (Kind.COMMA, Kind.AND):
            if reached and not gap:
                gap = len(reached)
        elif kind in _STATED:
            reached.append(back)
    return reached


def _alternatives(events: Sequence[Event], text: str, states: list[LabelState | None]) -> None:
    """ "Atelectasis or scarring", "edema versus pneumonia": one of them, so both uncertain."""
    for index, event in enumerate(events):
        versus = event.kind is Kind.UNC_CLAUSE and text[event.start : event.end] in ("versus", "vs")
        versus = versus or (event.kind is Kind.UNC_BEFORE and text[event.start : event.end] == "vs")
        if event.kind is not Kind.OR and not versus:
            continue
        if _unchanged_before(events, index, text):
            continue
        left = _neighbour(events, index, -1, text)
        right = _neighbour(events, index, +1, text)
        either = text.startswith("and/or", event.start)
        if left is None or (right is None and not versus and not either):
            continue
        if right is not None and events[left].observations == events[right].observations:
            continue  # "nodule/mass" names one thing twice
        chain = [left] if right is None else [left, right]
        before = left
        listed = index > 0 and events[index - 1].kind is Kind.COMMA  # "edema, pneumonia, or hemorrhage"
        while (
            listed and before - 2 >= 0 and events[before - 1].kind is Kind.COMMA and events[before - 2].kind in _STATED
        ):
            before -= 2
            chain.append(before)
        for at in chain:
            if states[at] is POSITIVE and events[at].kind is not Kind.DEVICE:
                states[at] = UNCERTAIN


def _unchanged_before(events: Sequence[Event], index: int, text: str) -> bool:
    """ "No change in the atelectasis or effusion": an "or" that the "no" asks for."""
    for back in range(index - 1, -1, -1):
        if events[back].kind is Kind.STABLE:
            return text.startswith(("no", "without"), events[back].start)
        if events[back].kind in _HARD or events[back].kind is Kind.VERB:
            return False
    return False


def _neighbour(events: Sequence[Event], index: int, step: int, text: str) -> int | None:
    at = index + step
    while 0 <= at < len(events):
        kind = events[at].kind
        if kind in _STATED:
            near = (
                _words_between(text, events[index].end, events[at].start)
                if step > 0
                else _words_between(text, events[at].end, events[index].start)
            )
            return at if near <= 6 else None
        if kind is Kind.COMMA and at == index + step:
            at += step
            continue
        if kind not in (Kind.NEUTRAL, Kind.STABLE, Kind.ENLARGED, Kind.NORMAL, Kind.UNC_BEFORE):
            return None
        at += step
    return None


def _anatomy(events: Sequence[Event], text: str, states: list[LabelState | None]) -> None:
    """Heart, mediastinum and markings: their state is what their predicate says."""
    inherited: LabelState | None = None
    last: int | None = None
    for index, event in enumerate(events):
        if event.kind not in (Kind.ANATOMY, Kind.MARKINGS, Kind.HINT):
            continue
        before, stable = _predicate_before(events, index, text)
        after = _predicate_after(events, index, text)
        if before is None and last is not None and _joined(events, last, index):
            before = inherited
        state = before
        if before is None or (stable and after in (POSITIVE, NEGATIVE)):
            state = after
        if event.kind is Kind.ANATOMY:
            if state is None and _negated_abnormality(events, index, text):
                state = NEGATIVE
            states[index] = state
        elif before is NEGATIVE or after is NEGATIVE:
            states[index] = NEGATIVE
        inherited, last = before, index


def _joined(events: Sequence[Event], left: int, right: int) -> bool:
    """Whether only "and", "or" or a comma stands between two pieces of anatomy."""
    between = events[left + 1 : right]
    return bool(between) and all(event.kind in (Kind.AND, Kind.OR, Kind.COMMA) for event in between)


def _predicate_before(events: Sequence[Event], index: int, text: str) -> tuple[LabelState | None, bool]:
    """What the adjectives before anatomy say, and whether they say only that it is unchanged."""
    found: set[Kind] = set()
    at = events[index].start
    for back in range(index - 1, -1, -1):
        event = events[back]
        if event.kind in _PREDICATES and _words_between(text, event.end, at) <= 3:
            found.add(event.kind)
            at = event.start
            continue
        if event.kind is Kind.UNC_BEFORE and found:
            return UNCERTAIN, False
        if event.kind is Kind.NEG_BEFORE and Kind.ENLARGED in found:
            return NEGATIVE, False
        if event.kind in (Kind.AND, Kind.OR) and found and back > 0 and events[back - 1].kind in _PREDICATES:
            continue
        break
    return _strongest(found), found == {Kind.STABLE}


def _predicate_after(events: Sequence[Event], index: int, text: str) -> LabelState | None:
    """What the rest of the clause says of the anatomy at `index`."""
    found: set[Kind] = set()
    verb = hedge = negated = listed = False
    for at in range(index + 1, len(events)):
        kind = events[at].kind
        if kind in _PREDICATES:
            if listed and not verb and not found:
                break  # "heart size and abnormal lung pattern": the adjective belongs to what follows
            if negated and kind is Kind.ENLARGED:
                kind = Kind.NORMAL
            found.add(kind)
            continue
        listed_now = False
        if kind in (Kind.ANATOMY, Kind.NEUTRAL, Kind.MARKINGS, Kind.OTHER, Kind.HINT):
            if found or (verb and kind is not Kind.NEUTRAL):
                break
        elif kind is Kind.VERB:
            if found:
                break
            verb = True
        elif kind in (Kind.COMMA, Kind.AND, Kind.OR, Kind.TERMINATOR):
            if found and not (at + 1 < len(events) and events[at + 1].kind in _PREDICATES):
                break
            if kind is Kind.TERMINATOR and not text.startswith(_CONCESSIVE if found else "which", events[at].start):
                break
            listed_now = kind is not Kind.TERMINATOR
        elif kind in (Kind.UNC_BEFORE, Kind.UNC_CLAUSE, Kind.UNC_AFTER):
            hedge = True
            if kind is Kind.UNC_AFTER:
                found.add(Kind.POOR)
        elif kind is Kind.NEG_BEFORE:
            if found:
                break
            negated = True
        elif kind is Kind.BREAK:
            if found or verb:
                break
        else:
            break
        listed = listed_now
    state = _strongest(found)
    if state is POSITIVE and hedge:
        return UNCERTAIN
    return state


def _strongest(found: set[Kind]) -> LabelState | None:
    if Kind.NORMAL in found and Kind.ENLARGED in found:
        return UNCERTAIN  # "upper normal to mildly enlarged"
    for kind, state in _PREDICATE_STATE:
        if kind in found:
            return state
    return None


def _negated_abnormality(events: Sequence[Event], index: int, text: str) -> bool:
    """ "No abnormality of the mediastinum"."""
    if index == 0 or events[index - 1].kind is not Kind.NEG_BEFORE:
        return False
    phrase = text[events[index - 1].start : events[index].start]
    return "abnormalit" in phrase or "enlarge" in phrase or "widen" in phrase
