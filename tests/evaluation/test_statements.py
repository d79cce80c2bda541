"""Every cell of the verdict table, sides, several mentions in one sentence, and the reference's side of it."""

from __future__ import annotations

import pytest

from rrg_hf.evaluation.statements import compare_statements, statement_table
from rrg_hf.text.rules import label_report

SAYS = {
    "positive": "There is a pleural effusion.",
    "uncertain": "There may be a pleural effusion.",
    "negative": "There is no pleural effusion.",
    "silent": "The trachea is midline.",
}


def verdicts(generated: str, reference: str) -> tuple[list[str], list[str]]:
    comparison = compare_statements(generated, reference)
    return [item.verdict for item in comparison.generated], [item.verdict for item in comparison.reference]


def test_the_test_sentences_mean_what_the_table_says() -> None:
    for name, text in SAYS.items():
        expected = "not_mentioned" if name == "silent" else name
        assert label_report(text)["Pleural Effusion"] == expected


@pytest.mark.parametrize(
    ("generated", "reference", "verdict", "reference_verdict"),
    [
        ("positive", "positive", "right", "covered"),
        ("positive", "uncertain", "right", "covered"),
        ("uncertain", "positive", "right", "covered"),
        ("uncertain", "uncertain", "right", "covered"),
        ("positive", "negative", "wrong", "neutral"),
        ("uncertain", "negative", "wrong", "neutral"),
        ("positive", "silent", "invented", "neutral"),
        ("uncertain", "silent", "invented", "neutral"),
        ("negative", "positive", "wrong", "missed"),
        ("negative", "uncertain", "wrong", "missed"),
        ("negative", "negative", "right", "covered"),
        ("negative", "silent", "right", "neutral"),
        ("silent", "positive", "neutral", "missed"),
        ("silent", "uncertain", "neutral", "missed"),
        ("silent", "negative", "neutral", "neutral"),
        ("silent", "silent", "neutral", "neutral"),
    ],
)
def test_verdict_table(generated: str, reference: str, verdict: str, reference_verdict: str) -> None:
    assert verdicts(SAYS[generated], SAYS[reference]) == ([verdict], [reference_verdict])


def test_the_worst_mention_decides_a_sentence() -> None:
    reference = "There is a pleural effusion. There is no pneumothorax."
    assert verdicts("There is a pleural effusion and a pneumothorax.", reference)[0] == ["wrong"]
    assert verdicts("There is a pleural effusion and a rib fracture.", reference)[0] == ["invented"]
    assert verdicts("There is a pleural effusion without pneumothorax.", reference) == (["right"], ["covered"] * 2)


def test_reasons_name_the_observation() -> None:
    comparison = compare_statements("There is a pneumothorax.", "No pneumothorax. There is a pleural effusion.")
    assert comparison.generated[0].reasons == ("Pneumothorax: present, but the reference says absent",)
    assert comparison.reference[1].reasons == ("Pleural Effusion: not stated by the generated report",)
    mixed = compare_statements("No pneumothorax, but a pleural effusion.", "No pneumothorax. No pleural effusion.")
    assert mixed.generated[0].reasons == ("Pleural Effusion: present, but the reference says absent",)
    assert comparison.counts() == {"right": 0, "wrong": 1, "invented": 0, "missed": 1}


@pytest.mark.parametrize(
    ("generated", "reference", "verdict", "reference_verdict"),
    [
        ("left", "left", "right", "covered"),
        ("left", "right", "wrong", "missed"),
        ("left", "bilateral", "right", "covered"),
        ("bilateral", "right", "right", "covered"),
        ("left", "", "right", "covered"),
        ("", "right", "right", "covered"),
    ],
)
def test_sides(generated: str, reference: str, verdict: str, reference_verdict: str) -> None:
    texts = [f"There is a small {side} pleural effusion.".replace("  ", " ") for side in (generated, reference)]
    assert verdicts(*texts) == ([verdict], [reference_verdict])


def test_a_finding_absent_on_the_other_side_is_right() -> None:
    assert verdicts("No left pleural effusion.", "There is a right pleural effusion.") == (["right"], ["missed"])
    assert verdicts("No right pleural effusion.", "There is a right pleural effusion.")[0] == ["wrong"]


def test_sides_are_not_compared_where_one_is_unknown_or_meaningless() -> None:
    reference = "There is a right pleural effusion. The pleural effusion has grown."
    assert verdicts("There is a left pleural effusion.", reference)[0] == ["right"]
    assert verdicts("A left pacemaker is in place.", "A right pacemaker is in place.")[0] == ["right"]


@pytest.mark.parametrize(
    ("denial", "against", "not_against"),
    [
        ("Normal chest.", "There is mild cardiomegaly.", "A pacemaker is in place."),
        ("No acute cardiopulmonary abnormality.", "There is a pneumothorax.", "There is mild cardiomegaly."),
        ("There is no evidence of acute disease.", "There is pulmonary edema.", "Old rib fracture."),
        ("The lungs are clear.", "There is bibasilar atelectasis.", "There is a pleural effusion."),
        ("Lungs are clear bilaterally.", "Right lower lobe consolidation.", "There is mild cardiomegaly."),
    ],
)
def test_sentences_that_deny_a_group(denial: str, against: str, not_against: str) -> None:
    assert verdicts(denial, against)[0] == ["wrong"]
    assert verdicts(against, denial)[1] == ["neutral"]
    assert verdicts(denial, not_against)[0] == ["right"]
    assert verdicts(denial, denial) == (["right"], ["covered"])
    assert verdicts("The trachea is midline.", denial) == (["neutral"], ["neutral"])


@pytest.mark.parametrize(
    "text", ["The left lung is clear.", "The lungs are otherwise clear.", "Clear lungs elsewhere."]
)
def test_limited_denials_are_not_taken_for_whole_ones(text: str) -> None:
    assert verdicts(text, "There is bibasilar atelectasis.")[0] == ["neutral"]


def test_given_labels_replace_the_labeller_on_the_reference() -> None:
    text = "There is a pleural effusion."
    assert (
        compare_statements(text, "", reference_labels={"Pleural Effusion": "negative"}).generated[0].verdict == "wrong"
    )
    assert compare_statements(text, "", reference_labels={"Pleural Effusion": None}).generated[0].verdict == "invented"
    with pytest.raises(ValueError, match="Unknown observations"):
        compare_statements(text, "", reference_labels={"Effusion": "positive"})
    with pytest.raises(ValueError, match="maybe"):
        compare_statements(text, "", reference_labels={"Edema": "maybe"})


def test_spans_and_table_cover_both_reports() -> None:
    generated, reference = "The heart is enlarged. Lungs are clear.", "Normal heart size. 2.5 cm nodule on the left."
    comparison = compare_statements(generated, reference)
    for text, items in ((generated, comparison.generated), (reference, comparison.reference)):
        assert [text[item.start : item.end] for item in items] == [item.text for item in items]
        assert len(items) == 2
    table = statement_table(comparison)
    assert [row["report"] for row in table] == ["generated", "generated", "reference", "reference"]
    assert table[0]["verdict"] == comparison.generated[0].verdict


@pytest.mark.parametrize(("generated", "reference"), [("", ""), ("", "There is a pleural effusion."), ("   \n", "")])
def test_empty_reports(generated: str, reference: str) -> None:
    comparison = compare_statements(generated, reference)
    assert comparison.generated == ()
    assert comparison.counts()["missed"] == bool(reference)
