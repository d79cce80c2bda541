"""Writes the phantom's report from its facts: indication, findings, impression, and the labels the findings state.

The labels are what the text says, as CheXpert's labeller counts it: "consolidation" makes Consolidation positive and
says nothing of Lung Opacity; an absent finding is negative only where a sentence denies it. Every drawn finding is
stated; which absent ones are denied is drawn by chance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...observations import NO_FINDING, OBSERVATIONS, Labels, LabelState, empty_labels
from .facts import Fact
from .prior import SCENARIOS, Case
from .wording import DENIALS, IMPRESSIONS, INDICATIONS, NEUTRAL, POSSIBLE, REGION, SHORT, STATEMENTS

# Words per findings section: denials are added until a number drawn from this range is reached.
WORDS = (24, 52)
# How often a report uses its scenario's own phrasing, where the prior holds.
STOCK_SHARE = 0.7


@dataclass(frozen=True)
class PhantomReport:
    indication: str | None
    comparison: str | None
    technique: str
    findings: str
    impression: str
    labels: Labels


def write_report(case: Case, rng: np.random.Generator) -> PhantomReport:
    """Report and labels of a case."""
    labels = empty_labels()
    stated: list[tuple[int, str]] = []
    for fact in case.facts:
        labels[fact.observation] = fact.state
        templates = POSSIBLE if fact.state is LabelState.UNCERTAIN else STATEMENTS
        text = _pick(templates[_key(fact)], case, rng, OBSERVATIONS.index(fact.observation))
        stated.append((REGION[fact.observation], _fill(text, fact)))
    denied = _denials(case, rng, labels, sum(len(text.split()) for _, text in stated))
    # CheXpert: "No Finding" where nothing but support devices is positive or uncertain
    present = {name for name, state in labels.items() if state in (LabelState.POSITIVE, LabelState.UNCERTAIN)}
    if present <= {"Support Devices"}:
        labels[NO_FINDING] = LabelState.POSITIVE
    changed = any(fact.change for fact in case.facts)
    comparison = "Prior chest radiograph." if changed or rng.random() < 0.15 else None
    return PhantomReport(
        indication=_indication(case, rng),
        comparison=comparison,
        technique="Single frontal view of the chest.",
        findings=" ".join(_order(stated, denied, rng)),
        impression=_impression(case, rng),
        labels=labels,
    )


def _key(fact: Fact) -> str:
    return f"{fact.observation}/{fact.kind}" if fact.kind else fact.observation


def _pick(choices: Sequence[str], case: Case, rng: np.random.Generator, number: int) -> str:
    """One of the phrasings; the scenario's own one most of the time where the prior holds."""
    if case.stock_phrases and rng.random() < STOCK_SHARE:
        return choices[(list(SCENARIOS).index(case.scenario) + number) % len(choices)]
    return choices[int(rng.integers(len(choices)))]


_ADVERBS = {"mild": "mildly", "moderate": "moderately", "severe": "severely"}


def _fill(template: str, fact: Fact) -> str:
    both = fact.side == "bilateral"
    words = {
        "size": fact.severity or "",
        "how": _ADVERBS.get(fact.severity or "", ""),
        "side": fact.side or "",
        "zone": fact.zone or "",
        "change": {"new": "new", "stable": "stable", None: ""}[fact.change],
        "where": f"both {fact.zone} lung zones" if both else f"the {fact.side} {fact.zone} lung zone",
        "base": "both lung bases" if both else f"the {fact.side} lung base",
        "dome": "both hemidiaphragms" if both else f"the {fact.side} hemidiaphragm",
        "wall": "both lateral chest walls" if both else f"the {fact.side} lateral chest wall",
        "s": "s" if both else "",
        "is": "are" if both else "is",
    }
    # "a" goes where the plural follows
    text = template.replace("[a] ", "" if both else "a ").format(**words)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]


def _denials(case: Case, rng: np.random.Generator, labels: Labels, words: int) -> list[tuple[int, str]]:
    """Sentences that deny absent findings, until the report is long enough; sets their labels to negative."""
    target = int(rng.integers(WORDS[0], WORDS[1] + 1))
    drawn = {fact.observation for fact in case.facts}
    sentences: list[tuple[int, str]] = []
    # weighted order without replacement (Efraimidis and Spirakis 2006)
    keys = rng.random(len(DENIALS)) ** (1.0 / np.array([denial.weight for denial in DENIALS]))
    for i in np.argsort(-keys):
        denial = DENIALS[i]
        if words >= target:
            break
        known = any(labels[name] is LabelState.NEGATIVE for name in denial.denies)
        if known or drawn & {*denial.denies, *denial.needs_absent}:
            continue
        text = _pick(denial.phrasings, case, rng, int(i))
        words += len(text.split())
        sentences.append((denial.region, text))
        for name in denial.denies:
            labels[name] = LabelState.NEGATIVE
    for i in rng.permutation(len(NEUTRAL)):
        if words >= max(WORDS[0], target - 6):
            break
        region, text = NEUTRAL[i]
        words += len(text.split())
        sentences.append((region, text))
    return sentences


def _order(stated: list[tuple[int, str]], denied: list[tuple[int, str]], rng: np.random.Generator) -> list[str]:
    """Head to toe by region mostly; else what is wrong first; else in any order."""
    style = rng.random()
    everything = [*stated, *denied]
    if style < 0.6:
        everything.sort(key=lambda sentence: sentence[0])
    elif style < 0.8:
        rng.shuffle(stated)
        everything = [*stated, *sorted(denied)]
    else:
        rng.shuffle(everything)
    return [text for _, text in everything]


def _indication(case: Case, rng: np.random.Generator) -> str | None:
    if rng.random() < 0.06:
        return None
    choices = INDICATIONS[case.scenario]
    return choices[int(rng.integers(len(choices)))]


def _impression(case: Case, rng: np.random.Generator) -> str:
    if not case.facts:
        return IMPRESSIONS[int(rng.integers(len(IMPRESSIONS)))]
    parts = []
    for fact in case.facts:
        text = _fill(SHORT[_key(fact)], fact)
        if fact.state is LabelState.UNCERTAIN:
            text = f"Possible {text[0].lower()}{text[1:]}"
        parts.append(text)
    rng.shuffle(parts)
    if len(parts) > 1 and rng.random() < 0.5:
        return " ".join(f"{number}. {text}." for number, text in enumerate(parts, start=1))
    return " ".join(f"{text}." for text in parts)
