"""How far a cue reaches: over lists, to the end of its clause, back to its subject, and no further."""

import pytest

from rrg_hf.observations import LabelState
from rrg_hf.text.rules import normalise
from rrg_hf.text.rules_patterns import compiled
from rrg_hf.text.rules_scope import Event, resolve

SIGN = {LabelState.POSITIVE: "+", LabelState.NEGATIVE: "-", LabelState.UNCERTAIN: "?"}


def states(sentence):
    """ "effusion- edema+": the findings of one sentence in reading order."""
    text = normalise(sentence)
    expression, table = compiled()
    events = [
        Event(match.start(), match.end(), table[match.lastindex].kind, table[match.lastindex].observations)
        for match in expression.finditer(text)
    ]
    return " ".join(f"{text[event.start : event.end]}{SIGN[state]}" for event, state in resolve(events, text))


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        # a negation runs over a list, and ends where the next item is stated
        ("No edema, consolidation or effusion.", "edema- consolidation- effusion-"),
        ("No edema, small effusion.", "edema- effusion+"),
        ("No edema but there is an effusion.", "edema- effusion+"),
        ("No edema, and the effusion is larger.", "edema- effusion+"),
        ("No pneumothorax, endotracheal tube in place.", "pneumothorax- endotracheal tube+"),
        ("No effusion or pneumothorax is seen.", "effusion- pneumothorax-"),
        # behind the finding
        ("The effusion has resolved.", "effusion-"),
        ("Edema and effusion are not seen.", "edema- effusion-"),
        ("There is edema and the effusion has resolved.", "edema+ effusion-"),
        ("Effusion: none.", "effusion-"),
        ("Resolved effusion.", "effusion-"),
        # hedges
        ("Possible edema, effusion.", "edema? effusion+"),
        ("Possible edema or effusion.", "edema? effusion?"),
        ("Opacity may represent edema or pneumonia.", "opacity+ edema? pneumonia?"),
        ("Effusion cannot be excluded.", "effusion?"),
        ("Atelectasis versus pneumonia.", "atelectasis? pneumonia?"),
        ("Nodule/mass in the left lung.", "nodule+ mass+"),
        ("No new effusion.", "effusion?"),
        ("No suspected effusion.", "effusion-"),
        # asked about, not stated
        ("Evaluate for effusion.", ""),
        ("If there is concern for effusion, repeat the film.", ""),
        # anatomy speaks by its predicate
        ("The heart is enlarged but there is no effusion.", "heart+ effusion-"),
        ("Heart size is normal and an effusion is present.", "heart size- effusion+"),
    ],
)
def test_reach_of_cues(sentence, expected):
    assert states(sentence) == expected


def test_a_sentence_without_findings_has_no_states():
    assert states("The film is well exposed and not rotated.") == ""
    assert resolve([], "") == []


def test_anatomy_without_a_predicate_says_nothing():
    assert states("A line projects over the aorta; the heart.") == states("A line projects over the aorta.")


def test_devices_are_rarely_uncertain():
    assert states("Possible effusion, endotracheal tube.").endswith("endotracheal tube+")
    assert states("Endotracheal tube cannot be excluded.") == "endotracheal tube+"
