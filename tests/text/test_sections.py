import pytest

from rrg_hf.errors import DataError
from rrg_hf.text.sections import parse_sections

MIMIC = (
    "                                 FINAL REPORT\n"
    " EXAMINATION:  CHEST (PA AND LAT)\n"
    " \n"
    " INDICATION:  ___ year old woman with cough  // pneumonia?\n"
    " \n"
    " TECHNIQUE:  Chest PA and lateral\n"
    " \n"
    " COMPARISON:  ___\n"
    " \n"
    " FINDINGS: \n"
    " \n"
    " Heart size is normal. The lungs are clear without focal\n"
    " consolidation, pleural effusion or pneumothorax.\n"
    " \n"
    " The bony structures are intact.\n"
    " \n"
    " IMPRESSION: \n"
    " \n"
    " No acute cardiopulmonary process.\n"
)


def test_mimic_report():
    sections = parse_sections(MIMIC)
    assert sections["indication"] == "___ year old woman with cough // pneumonia?"
    assert sections["technique"] == "Chest PA and lateral"
    assert sections["comparison"] is None  # only a placeholder
    assert sections["findings"] == (
        "Heart size is normal. The lungs are clear without focal consolidation, pleural effusion or pneumothorax.\n\n"
        "The bony structures are intact."
    )
    assert sections["impression"] == "No acute cardiopulmonary process."
    assert sections["other"] == {"examination": "CHEST (PA AND LAT)"}


def test_all_keys_are_always_there():
    for text in (None, "", "___", "nan", "Lungs are clear."):
        sections = parse_sections(text)
        assert set(sections) == {"indication", "comparison", "technique", "findings", "impression", "other"}
        assert sections["findings"] is None
        assert sections["impression"] is None
    assert parse_sections("Lungs are clear.")["other"] == {"full report": "Lungs are clear."}


def test_plain_text_in_any_case_and_on_the_first_line():
    sections = parse_sections("Findings: Lungs are clear.\nImpression: Normal chest.")
    assert (sections["findings"], sections["impression"]) == ("Lungs are clear.", "Normal chest.")
    sections = parse_sections("FINDINGS: Lungs are clear. IMPRESSION: Normal chest.")
    assert (sections["findings"], sections["impression"]) == ("Lungs are clear.", "Normal chest.")
    assert parse_sections("Findings:\nHeart: Normal.\nLungs: Clear.")["findings"] == "Heart: Normal. Lungs: Clear."


def test_the_last_section_of_a_name_wins_and_blank_ones_are_dropped():
    text = " FINDINGS: First.\n IMPRESSION: Old.\n FINDINGS: Second.\n IMPRESSION:\n"
    sections = parse_sections(text)
    assert sections["findings"] == "Second."
    assert sections["impression"] == "Old."


def test_trap_findings_made_of_underscores_do_not_hide_the_body():
    sections = parse_sections(" CHEST, TWO VIEWS: ___\n\n HISTORY: cough.\n \n Lungs are clear.\n")
    assert sections["findings"] is None
    assert sections["indication"] == "cough."
    assert sections["other"] == {"history": "cough.", "last_paragraph": "Lungs are clear."}


def test_view_headers_and_combined_headers():
    assert parse_sections(" PA AND LATERAL CHEST: Clear lungs.\n")["findings"] == "Clear lungs."
    assert parse_sections(" FINDINGS AND IMPRESSION: Clear lungs.\n")["impression"] == "Clear lungs."
    assert parse_sections(" REASON FOR EXAMINATION: Fever.\n CONCLUSION: Normal.\n") == {
        "indication": "Fever.",
        "comparison": None,
        "technique": None,
        "findings": None,
        "impression": "Normal.",
        "other": {},
    }


def test_wet_read_and_addendum_stay_apart():
    text = (
        " ADDENDUM  Discussed with the team.\n"
        " ______________________________________________________________________\n"
        "                                 FINAL REPORT\n"
        " WET READ: ___ ___ ___ 9:01 PM\n  Possible effusion.\n"
        " FINDINGS:  Small effusion.\n"
    )
    sections = parse_sections(text)
    assert sections["findings"] == "Small effusion."
    assert "Possible effusion." in sections["other"]["wet read"]
    assert "Discussed" in sections["other"]["preamble"]


@pytest.mark.parametrize("unit", ["A", "FINDINGS: ", "\n ", " : ", "_"])
def test_long_texts_finish(unit):
    parse_sections(unit * (300_000 // len(unit)))


@pytest.mark.parametrize("text", [3, b"FINDINGS: Clear.", ["Clear."]])
def test_what_is_no_text_is_refused_without_quoting_it(text):
    with pytest.raises(DataError, match="must be text") as caught:
        parse_sections(text)
    assert "Clear" not in str(caught.value)
