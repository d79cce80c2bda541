"""The lexicon: every phrase can match, names what it should, and look-alikes win over what they look like."""

import re

import pytest

from rrg_hf.observations import NO_FINDING, OBSERVATIONS
from rrg_hf.text import rules_lexicon as lexicon
from rrg_hf.text.rules import find_mentions, label_report
from rrg_hf.text.rules_patterns import Kind, compiled

LISTS = {"DEVICES": lexicon.DEVICES, "OTHER": lexicon.OTHER, "NEUTRAL": lexicon.NEUTRAL}
TABLES = {name: table for name, table in vars(lexicon).items() if isinstance(table, dict) and name.isupper()}
PHRASES = [
    *(phrase for table in TABLES.values() for phrases in table.values() for phrase in phrases),
    *(phrase for phrases in LISTS.values() for phrase in phrases),
]


def first_text(pattern):
    """A text that the pattern matches: the first alternative of every group, optional parts left out."""
    parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]

    def write(items):
        text = ""
        for code, value in items:
            name = str(code)
            if name == "LITERAL":
                text += chr(value)
            elif name == "BRANCH":
                text += write(value[1][0])
            elif name == "SUBPATTERN":
                text += write(value[3])
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                low, _, inner = value
                text += write(inner) * low
            elif name == "IN":
                kind, chosen = value[0]
                text += "a" if str(kind) == "CATEGORY" else chr(chosen if isinstance(chosen, int) else chosen[0])
            elif name not in ("AT", "ASSERT", "ASSERT_NOT"):
                raise AssertionError(f"{name} in {pattern}")
        return text

    return write(parsed)


@pytest.mark.parametrize("phrase", PHRASES)
def test_every_phrase_is_in_the_notation_and_matches_its_own_text(phrase):
    assert phrase == phrase.lower() and "  " not in phrase and phrase == phrase.strip()
    assert not re.search(r"\((?!\?)", phrase), "capturing group"
    text = first_text(phrase)
    assert re.fullmatch(phrase, text) and re.match("[a-z]", text)
    expression, _ = compiled()
    match = expression.match(text)
    assert match is not None and match.end() == len(text)


def test_every_observation_but_no_finding_has_phrases():
    named = {name for table in TABLES.values() for key in table for name in key} | {lexicon.DEV}
    assert named == set(OBSERVATIONS) - {NO_FINDING}


def test_no_phrase_stands_in_one_list_twice():
    for name, phrases in LISTS.items():
        repeated = {phrase for phrase in phrases if phrases.count(phrase) > 1}
        assert not repeated, f"{name}: {repeated}"
    for table in TABLES.values():
        for key, phrases in table.items():
            assert len(phrases) == len(set(phrases)), key


@pytest.mark.parametrize(
    ("phrase", "observation"),
    [(text, key) for table in (lexicon.FINDINGS,) for key, texts in table.items() for text in texts],
)
def test_a_finding_alone_in_a_sentence_is_that_finding(phrase, observation):
    text = first_text(phrase)
    found = {mention.observation for mention in find_mentions(f"There is {text}.")}
    assert set(observation) <= found, (text, found)


@pytest.mark.parametrize(
    "text",
    [
        "No mass effect.",
        "Muscle mass is preserved.",
        "The heart rate is regular.",
        "A catheter projects over the heart.",
        "The pleural line is thin.",
        "The endplates are smooth.",
        "Portable radiograph.",
        "The chest wall is normal.",
        "Bone density is normal.",
        "There is a massive goiter.",
    ],
)
def test_look_alikes_name_no_finding_of_the_lungs_heart_or_bones(text):
    states = label_report(text)
    named = {name for name, state in states.items() if state != "not_mentioned"} - {NO_FINDING, lexicon.DEV}
    assert named == set(), named


@pytest.mark.parametrize("text", ["Emphysema.", "Hiatal hernia.", "Scoliosis.", "Calcified granuloma."])
def test_other_abnormalities_are_no_label_but_no_normal_film_either(text):
    assert set(label_report(text).values()) == {"not_mentioned"}


def test_longest_phrases_are_devices_and_not_their_parts():
    expression, table = compiled()
    for text in ("central venous catheter fracture", "sternotomy wires", "aortic valve replacement", "ivc filter"):
        match = expression.match(text)
        assert match is not None and match.lastindex is not None
        assert match.group() == text and table[match.lastindex].kind is Kind.DEVICE
