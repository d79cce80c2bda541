import time

import pytest

from rrg_hf.text.sentences import split_sentences


def pieces(text):
    return [text[start:end] for start, end in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Lungs are clear. No effusion.", ["Lungs are clear.", "No effusion."]),
        ("Nodule of 2.5 cm. No effusion", ["Nodule of 2.5 cm.", "No effusion"]),
        ("1. Small effusion. 2. Cardiomegaly.", ["1. Small effusion.", "2. Cardiomegaly."]),
        ("Small effusion\n2. Cardiomegaly", ["Small effusion", "2. Cardiomegaly"]),
        ("lungs are clear . no effusion .", ["lungs are clear .", "no effusion ."]),
        ("Dr. Smith was told. Atelectasis vs. pneumonia.", ["Dr. Smith was told.", "Atelectasis vs. pneumonia."]),
        ("Lungs clear.No effusion.", ["Lungs clear.", "No effusion."]),
        ("Lungs are clear\n\nNo effusion", ["Lungs are clear", "No effusion"]),
        (
            " There is no focal consolidation, pleural effusion,\n or pneumothorax seen.",
            ["There is no focal consolidation, pleural effusion,\n or pneumothorax seen."],
        ),
        ("No pneumothorax\nSmall effusion", ["No pneumothorax", "Small effusion"]),
        ("?Left lower lobe pneumonia.", ["?Left lower lobe pneumonia."]),
        ("Measures 5 . 2 cm today .", ["Measures 5 . 2 cm today ."]),
        ("Tip at T4. No change.", ["Tip at T4.", "No change."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences(text, expected):
    assert pieces(text) == expected


def test_spans_cover_every_visible_character():
    text = " FINAL REPORT\n\n FINDINGS:  1. Clear. 2. 3.5 cm mass!  Really? yes... \n\n\n___\n"
    covered = [False] * len(text)
    last = 0
    for start, end in split_sentences(text):
        assert start >= last
        last = end
        for index in range(start, end):
            covered[index] = True
    assert all(covered[index] for index, char in enumerate(text) if not char.isspace())


@pytest.mark.parametrize("unit", [".", "\n", "1. ", "! ", "a"])
def test_long_texts_take_linear_time(unit):
    start = time.process_time()
    split_sentences(unit * (500_000 // len(unit)) + "a")
    assert time.process_time() - start < 3.0
