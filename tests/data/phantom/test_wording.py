"""Every sentence the phantom can write says what it is meant to say, read by the rule labeller one by one."""

import itertools
import string

import pytest

from rrg_hf.data.phantom.facts import OPTIONS, Fact
from rrg_hf.data.phantom.grammar import _fill
from rrg_hf.data.phantom.wording import DENIALS, IMPRESSIONS, INDICATIONS, NEUTRAL, POSSIBLE, REGION, SHORT, STATEMENTS
from rrg_hf.observations import NO_FINDING, OBSERVATIONS, LabelState
from rrg_hf.text.rules import label_report

FIELDS = {"size", "how", "side", "zone", "change", "where", "base", "dome", "wall", "s", "is"}
KEYS = sorted({f"{name}/{kind}" if kind else name for name in OPTIONS for kind in OPTIONS[name][3] or (None,)})


def facts(key):
    """Every side, zone, severity and change that a fact of this key can have."""
    name, _, kind = key.partition("/")
    sides, zones, severities, _ = OPTIONS[name]
    changes = (None, "new", "stable") if name != "Support Devices" else (None,)
    for side, zone, severity, change in itertools.product(
        sides or (None,), zones or (None,), severities or (None,), changes
    ):
        yield Fact(name, side=side, zone=zone, severity=severity, kind=kind or None, change=change)


def stated(text):
    return {name: state for name, state in label_report(text).items() if state != "not_mentioned"}


@pytest.mark.parametrize("key", KEYS)
def test_every_phrasing_states_its_finding_and_no_other(key):
    for template in STATEMENTS[key]:
        for fact in facts(key):
            text = _fill(template, fact)
            found = stated(text)
            found.pop(NO_FINDING, None)  # devices alone leave it positive
            assert found == {fact.observation: LabelState.POSITIVE}, text


@pytest.mark.parametrize("key", sorted(POSSIBLE))
def test_every_hedge_is_read_as_one(key):
    for template in POSSIBLE[key]:
        for fact in facts(key):
            text = _fill(template.replace("{change} ", ""), fact)
            assert stated(text) == {fact.observation: LabelState.UNCERTAIN}, text


@pytest.mark.parametrize("key", sorted(SHORT))
def test_the_impressions_words_name_the_finding(key):
    for fact in facts(key):
        text = _fill(SHORT[key], fact) + "."
        found = stated(text)
        found.pop(NO_FINDING, None)
        assert found == {fact.observation: LabelState.POSITIVE}, text


def test_denials_deny_what_they_say_and_nothing_else():
    for denial in DENIALS:
        for text in denial.phrasings:
            found = stated(text)
            assert found.pop(NO_FINDING) == LabelState.POSITIVE, text
            assert found == dict.fromkeys(denial.denies, LabelState.NEGATIVE), text
        assert denial.weight > 0 and set(denial.denies + denial.needs_absent) <= set(OBSERVATIONS)


def test_neutral_sentences_and_normal_impressions_name_no_observation():
    for text in (*IMPRESSIONS, *(sentence for _, sentence in NEUTRAL)):
        assert stated(text) == {NO_FINDING: LabelState.POSITIVE}, text


def test_every_key_has_words_of_every_sort():
    assert sorted(STATEMENTS) == sorted(SHORT) == KEYS
    assert {key for key in KEYS if not key.startswith("Support Devices")} == set(POSSIBLE)
    assert set(REGION) == set(OPTIONS)
    regions = [REGION[name] for name in REGION]
    assert sorted(set(regions)) == list(range(5))


def test_placeholders_are_those_that_the_grammar_fills():
    templates = [text for table in (STATEMENTS, POSSIBLE) for texts in table.values() for text in texts]
    for template in (*templates, *SHORT.values()):
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        assert names <= FIELDS, template


def test_no_two_scenarios_share_an_indication():
    """Or the indication could not give the findings away, which is the language prior to fall for."""
    texts = [text for choices in INDICATIONS.values() for text in choices]
    assert len(texts) == len(set(texts))
    assert all(len(choices) > 1 for choices in INDICATIONS.values())
    assert all(text.endswith(".") for text in texts)
