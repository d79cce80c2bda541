"""Statement-by-statement comparison of a generated report with its reference, for the page a person reads.

A statement is one sentence. What it states is what the rule labeller finds in it. The comparison shows where two
reports differ; it is no metric: the scores in `metrics.json` come from `rrg_hf.metrics`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..observations import NO_FINDING, OBSERVATIONS, LabelState

RIGHT, WRONG, INVENTED, NEUTRAL = "right", "wrong", "invented", "neutral"
COVERED, MISSED = "covered", "missed"

# The worst of a sentence's mentions decides its verdict.
_SEVERITY = (WRONG, INVENTED, RIGHT)
_PRESENT = frozenset({LabelState.POSITIVE, LabelState.UNCERTAIN})
# Observations that have a side. The heart, the mediastinum, oedema and devices have none worth comparing.
_SIDED = frozenset(
    {
        "Lung Opacity",
        "Lung Lesion",
        "Consolidation",
        "Pneumonia",
        "Atelectasis",
        "Pneumothorax",
        "Pleural Effusion",
        "Pleural Other",
        "Fracture",
    }
)
# Sentences that deny a group of observations as a whole. The rule labeller finds no single observation in them.
_DENIALS: tuple[tuple[str, re.Pattern[str], frozenset[str]], ...] = (
    (
        "normal chest",
        re.compile(
            r"(?:normal|unremarkable) (?:chest|examination|study)(?: radiographs?| x-?rays?| examination| study)?"
            r"|(?:the )?(?:chest|examination|study) is (?:normal|unremarkable)"
            r"|no (?:radiographic )?abnormalit(?:y|ies)(?: is| are)?(?: seen| identified)?"
        ),
        frozenset(OBSERVATIONS) - {NO_FINDING, "Support Devices"},
    ),
    (
        # An enlarged heart or an old fracture is nothing acute: only what is hardly ever chronic is denied.
        "nothing acute",
        re.compile(
            r"(?:there is )?no (?:radiographic )?(?:evidence of |evidence for |findings of )?(?:an )?(?:acute|active)"
            r"(?: or active)?(?: cardio-?pulmonary| pulmonary| intrathoracic| thoracic| cardiac or pulmonary| chest)?"
            r" (?:process|processes|disease|abnormality|abnormalities|findings?|pathology)(?: is seen| is identified)?"
        ),
        frozenset({"Edema", "Consolidation", "Pneumonia", "Pneumothorax"}),
    ),
    (
        "clear lungs",
        re.compile(
            r"(?:the )?(?:both )?lungs?(?: fields)?(?: are| is| remain| appear)(?: grossly)? clear(?: bilaterally)?"
            r"|clear lungs(?: bilaterally)?"
        ),
        frozenset({"Lung Opacity", "Lung Lesion", "Edema", "Consolidation", "Pneumonia", "Atelectasis"}),
    ),
)
_SIDES = re.compile(r"\b(left|right|bilateral|bilaterally|bibasilar|biapical|both)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """One sentence of a report and its verdict.

    Attributes:
        text: the sentence.
        start, end: its characters in the report.
        verdict: in a generated report "right", "wrong", "invented" or "neutral"; in a reference "covered", "missed"
            or "neutral".
        reasons: one short line for each mention that led to the verdict.
    """

    text: str
    start: int
    end: int
    verdict: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportComparison:
    """Statements of both reports, in text order."""

    generated: tuple[Statement, ...] = ()
    reference: tuple[Statement, ...] = ()

    def counts(self) -> dict[str, int]:
        """How many statements are right, wrong, invented and missed."""
        verdicts = [statement.verdict for statement in (*self.generated, *self.reference)]
        return {name: verdicts.count(name) for name in (RIGHT, WRONG, INVENTED, MISSED)}


@dataclass
class _Sentence:
    """A sentence with its mentions, before it is judged."""

    text: str
    start: int
    end: int
    mentions: list[tuple[str, LabelState]] = field(default_factory=list)
    side: frozenset[str] = frozenset()
    denial: tuple[str, frozenset[str]] | None = None  # (name, observations denied as a whole)


def compare_statements(
    generated: str, reference: str, *, reference_labels: Mapping[str, LabelState | str | None] | None = None
) -> ReportComparison:
    """Mark every statement of a generated report and of its reference.

    A generated sentence is judged by each observation it mentions; its worst mention decides (wrong, then invented,
    then right):

    | the sentence says       | reference: present or uncertain | reference: absent | reference: silent |
    |-------------------------|---------------------------------|-------------------|-------------------|
    | present or uncertain    | right                           | wrong             | invented          |
    | absent                  | wrong                           | right             | right             |

    A sentence that denies a group as a whole ("the lungs are clear", "no acute disease", "normal chest") is wrong when
    the reference states one of the group as present or uncertain, else right. A finding on the other side (left
    against right, each side known from its own sentence) is wrong, and its absence on the other side is right.
    Sentences that mention no observation are neutral.

    A reference sentence is missed when it states a finding as present or uncertain that the generated report does not
    (or states on the other side only). It is covered when the generated report repeats at least one of its statements
    and contradicts none, else neutral: it mentions no observation, only absent ones that the generated report leaves
    out, or an absent one that the generated report calls present (that is marked there, as wrong).

    Args:
        generated: text of the generated report.
        reference: text of the reference report.
        reference_labels: label states of the study, where known better than by the rule labeller on `reference`.
            Observations that are None or left out count as not mentioned.

    Returns:
        The statements of both, with their character spans.

    Raises:
        ValueError: `reference_labels` names an unknown observation or state.
    """
    generated_sentences = _sentences(generated)
    reference_sentences = _sentences(reference)
    stated = _labels_of(generated)
    truth = _labels_of(reference) if reference_labels is None else _check_labels(reference_labels)
    truth_sides = _known_sides(reference_sentences)
    stated_sides = _known_sides(generated_sentences)
    return ReportComparison(
        generated=tuple(_judge_generated(sentence, truth, truth_sides) for sentence in generated_sentences),
        reference=tuple(
            _judge_reference(sentence, generated_sentences, stated, stated_sides) for sentence in reference_sentences
        ),
    )


def _labels_of(text: str) -> dict[str, LabelState]:
    from ..text.rules import label_report

    return {name: LabelState(state) for name, state in label_report(text).items()}


def _check_labels(labels: Mapping[str, LabelState | str | None]) -> dict[str, LabelState]:
    unknown = sorted(set(labels) - set(OBSERVATIONS))
    if unknown:
        raise ValueError(f"Unknown observations {unknown}. The 14 names are {list(OBSERVATIONS)}.")
    return {
        name: LabelState.NOT_MENTIONED if labels.get(name) is None else LabelState(labels[name])
        for name in OBSERVATIONS
    }


def _sentences(text: str) -> list[_Sentence]:
    from ..text.rules import find_mentions
    from ..text.sentences import split_sentences

    sentences = [_Sentence(text[start:end], start, end) for start, end in split_sentences(text)]
    for mention in find_mentions(text):
        for sentence in sentences:
            if sentence.start <= mention.start < sentence.end:
                pair = (mention.observation, LabelState(mention.state))
                if pair not in sentence.mentions and pair[1] is not LabelState.NOT_MENTIONED:
                    sentence.mentions.append(pair)
                break
    for sentence in sentences:
        sentence.side = _side(sentence.text)
        plain = " ".join(sentence.text.lower().split()).rstrip(".")
        sentence.denial = next(((name, group) for name, form, group in _DENIALS if form.fullmatch(plain)), None)
    return sentences


def _side(text: str) -> frozenset[str]:
    """{"left"}, {"right"}, both, or nothing. A sentence that names both sides is never contradicted."""
    found = {match.group(1).lower() for match in _SIDES.finditer(text)}
    return frozenset(found & {"left", "right"} if found <= {"left", "right"} else {"left", "right"})


def _known_sides(sentences: Sequence[_Sentence]) -> dict[str, frozenset[str]]:
    """Observation to the sides where it is present. Left out when any of its sentences names no side."""
    sides: dict[str, frozenset[str]] = {}
    unknown: set[str] = set()
    for sentence in sentences:
        for name, state in sentence.mentions:
            if name not in _SIDED or state not in _PRESENT:
                continue
            if not sentence.side:
                unknown.add(name)
            sides[name] = sides.get(name, frozenset()) | sentence.side
    return {name: side for name, side in sides.items() if name not in unknown}


def _other_side(name: str, sentence: _Sentence, sides: Mapping[str, frozenset[str]]) -> bool:
    """The sentence names one side of a finding and the other report only the opposite one."""
    return name in _SIDED and bool(sentence.side) and name in sides and not (sentence.side & sides[name])


def _judge_generated(
    sentence: _Sentence, truth: Mapping[str, LabelState], sides: Mapping[str, frozenset[str]]
) -> Statement:
    judged = [_judge_mention(name, state, sentence, truth, sides) for name, state in sentence.mentions]
    if sentence.denial is not None:
        name, group = sentence.denial
        present = [other for other in OBSERVATIONS if other in group and truth[other] in _PRESENT]
        against = f"{name}, but the reference states {', '.join(present)}"
        judged.append((WRONG, against) if present else (RIGHT, f"{name}: the reference states nothing against it"))
    verdict = next((level for level in _SEVERITY if level in {found for found, _ in judged}), NEUTRAL)
    reasons = tuple(reason for found, reason in judged if found == verdict)
    return Statement(sentence.text, sentence.start, sentence.end, verdict, reasons)


def _judge_mention(
    name: str,
    state: LabelState,
    sentence: _Sentence,
    truth: Mapping[str, LabelState],
    sides: Mapping[str, frozenset[str]],
) -> tuple[str, str]:
    expected = truth[name]
    side = next(iter(sides.get(name, ()))) if len(sides.get(name, ())) == 1 else ""
    if state in _PRESENT:
        if expected in _PRESENT:
            if _other_side(name, sentence, sides):
                return WRONG, f"{name}: wrong side, the reference says {side}"
            return RIGHT, f"{name}: {_word(state)}, as in the reference"
        if expected is LabelState.NEGATIVE:
            return WRONG, f"{name}: {_word(state)}, but the reference says absent"
        return INVENTED, f"{name}: {_word(state)}, but the reference does not mention it"
    if expected in _PRESENT:
        if _other_side(name, sentence, sides):
            return RIGHT, f"{name}: absent on this side; the reference says {side}"
        return WRONG, f"{name}: absent, but the reference says {_word(expected)}"
    if expected is LabelState.NEGATIVE:
        return RIGHT, f"{name}: absent, as in the reference"
    return RIGHT, f"{name}: absent; the reference does not mention it"


def _judge_reference(
    sentence: _Sentence,
    generated: Sequence[_Sentence],
    stated: Mapping[str, LabelState],
    sides: Mapping[str, frozenset[str]],
) -> Statement:
    missed: list[str] = []
    agreed: list[str] = []
    unsaid: list[str] = []
    contradicted: list[str] = []
    for name, state in sentence.mentions:
        said = stated[name]
        if state in _PRESENT:
            if said not in _PRESENT:
                missed.append(f"{name}: not stated by the generated report")
            elif _other_side(name, sentence, sides):
                missed.append(f"{name}: the generated report states it on the other side only")
            else:
                agreed.append(f"{name}: stated")
        elif said is state:
            agreed.append(f"{name}: stated alike")
        elif said in _PRESENT:
            contradicted.append(f"{name}: the generated report says {_word(said)} (marked there)")
        else:
            unsaid.append(f"{name}: not repeated by the generated report")
    if sentence.denial is not None:
        name, group = sentence.denial
        against = [other for other in OBSERVATIONS if other in group and stated[other] in _PRESENT]
        if against:
            contradicted.append(f"{name}: the generated report states {', '.join(against)} (marked there)")
        elif any(said_sentence.denial == sentence.denial for said_sentence in generated):
            agreed.append(f"{name}: stated alike")
        else:
            unsaid.append(f"{name}: not repeated by the generated report")
    verdict = MISSED if missed else COVERED if agreed and not contradicted else NEUTRAL
    reasons = missed or (agreed if verdict == COVERED else [*contradicted, *unsaid])
    return Statement(sentence.text, sentence.start, sentence.end, verdict, tuple(reasons))


def _word(state: LabelState) -> str:
    return {LabelState.POSITIVE: "present", LabelState.UNCERTAIN: "uncertain", LabelState.NEGATIVE: "absent"}[state]


def statement_table(comparison: ReportComparison) -> list[dict[str, Any]]:
    """The comparison as plain rows (report, text, start, end, verdict, reasons), for JSON."""
    return [
        {
            "report": report,
            "text": item.text,
            "start": item.start,
            "end": item.end,
            "verdict": item.verdict,
            "reasons": list(item.reasons),
        }
        for report, items in (("generated", comparison.generated), ("reference", comparison.reference))
        for item in items
    ]
