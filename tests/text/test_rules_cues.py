"""Cues around a finding, each tried on a plain sentence: absent before, absent behind, uncertain, normal, enlarged."""

import re

import pytest

from rrg_hf.observations import LabelState
from rrg_hf.text import rules_cues as cues
from rrg_hf.text.rules import label_report
from tests.text.test_rules_lexicon import first_text

LISTS = {name: value for name, value in vars(cues).items() if name.isupper() and isinstance(value, list)}
NEGATIVE, UNCERTAIN, POSITIVE = LabelState.NEGATIVE, LabelState.UNCERTAIN, LabelState.POSITIVE


def effusion(text):
    return label_report(text)["Pleural Effusion"]


@pytest.mark.parametrize("name", sorted(LISTS))
def test_every_cue_is_in_the_notation_and_stands_once(name):
    assert LISTS[name]
    for cue in LISTS[name]:
        assert cue == cue.lower() and cue == cue.strip() and not re.search(r"\((?!\?)", cue)
        re.compile(cue)
    assert len(LISTS[name]) == len(set(LISTS[name]))


@pytest.mark.parametrize("cue", cues.NEGATION_BEFORE)
def test_a_negation_before_the_finding_denies_it(cue):
    text = first_text(cue)
    if "(?=" in cue:  # read only in front of certain words
        pytest.skip("depends on the words behind it; see test_rules.py")
    assert effusion(f"The film {text} effusion.") == NEGATIVE, text


@pytest.mark.parametrize("cue", cues.UNCERTAIN_BEFORE)
def test_a_hedge_before_the_finding_makes_it_uncertain(cue):
    text = first_text(cue)
    assert effusion(f"There is {text} effusion.") == UNCERTAIN, text


@pytest.mark.parametrize("cue", cues.UNCERTAIN_CLAUSE)
def test_a_hedge_reaches_to_the_end_of_its_clause(cue):
    text = first_text(cue)
    labels = label_report(f"Opacity {text} effusion.")
    assert labels["Pleural Effusion"] == UNCERTAIN, text


@pytest.mark.parametrize("cue", cues.UNCERTAIN_AFTER)
def test_a_hedge_behind_the_finding_makes_it_uncertain(cue):
    text = first_text(cue)
    assert effusion(f"A small effusion {text}.") == UNCERTAIN, text


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("no", NEGATIVE),
        ("without", NEGATIVE),
        ("possible", UNCERTAIN),
        ("probable", UNCERTAIN),
        ("likely", POSITIVE),
        ("stable", POSITIVE),
        ("new", POSITIVE),
        ("no new", UNCERTAIN),
        ("border line", UNCERTAIN),
    ],
)
def test_words_of_the_conventions(word, state):
    assert effusion(f"There is {word} effusion.") == state


@pytest.mark.parametrize(
    ("predicate", "state"),
    [
        ("is normal", NEGATIVE),
        ("is within normal limits", NEGATIVE),
        ("is not enlarged", NEGATIVE),
        ("is enlarged", POSITIVE),
        ("is mildly enlarged", POSITIVE),
        ("is borderline", UNCERTAIN),
        ("is border line", UNCERTAIN),
        ("is stable", UNCERTAIN),
        ("is obscured", UNCERTAIN),
        ("may be enlarged", UNCERTAIN),
    ],
)
def test_predicates_of_the_heart(predicate, state):
    assert label_report(f"The heart {predicate}.")["Cardiomegaly"] == state
