"""How reports become words, pieces and segments."""

from __future__ import annotations

from typing import Any

import pytest

from rrg_hf.modeling.radgraph.words_radgraph import EncodedReport, ReportEncoder, split_words
from tests.tiny_radgraph import converted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No effusion.", "No effusion ."),
        ("left/right, 2.5cm (old)?!", "left / right , 2 . 5cm ( old ) ? !"),
        ("well-aerated; 50%", "well-aerated; 50%"),  # hyphens, semicolons and signs stay
        ("a  b\n\tc\u00a0d", "a b c d"),
        (" \n ", ""),
    ],
)
def test_v1_words(text: str, words: str) -> None:
    assert split_words(text, "v1") == words.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No effusion.", "No effusion ."),
        ("well-aerated; 2.5cm", "well - aerated ; 2 . 5cm"),
        ("40%. 50%, (60%) (x).", "40 % . 50 % , ( 60 % ) ( x ) ."),
        ("it's.'end'", "it ' s . ' end '"),
        (r"a\nb\fc\u2122d", "a b c d"),  # written control sequences
        ('a \\"b\\" c', "a `` b `` c"),
        ("really?!...", "really ?!..."),
        ("cm² e\u0301", "cm ² e\u0301"),  # as the regex engine that nltk calls
        ("\n", ""),
    ],
)
def test_xl_words(text: str, words: str) -> None:
    assert split_words(text, "xl") == words.split()


def test_echograph_words() -> None:
    assert split_words("LV/RV normal. EF >55 PA<30. a>b", "echograph") == (
        ["LV", "RV", "normal", "EF", "", ">55", "PA<30", "a", ">b"]
    )


def test_unknown_preprocessing() -> None:
    with pytest.raises(ValueError, match="Use 'v1', 'xl' or 'echograph'"):
        split_words("a", "v2")


def encoder(shape: str, **changes: Any) -> ReportEncoder:
    model, tokenizer = converted(shape)
    config = model.config
    settings = {"preprocessing": config.preprocessing, "segments": config.segments, "max_length": config.max_length}
    return ReportEncoder(tokenizer, **{**settings, **changes})


def test_words_are_tokenized_alone_and_normalised() -> None:
    """No byte-level blank before a word, and "/." is read as "." while the words keep it."""
    encode = encoder("modern")
    first, second = encode(["effusion effusion", "/. ."])
    tokens = encode.tokenizer.convert_ids_to_tokens(first.pieces)
    assert not any("\u0120" in token for token in tokens)
    assert first.pieces[: len(first.pieces) // 2] == first.pieces[len(first.pieces) // 2 :]
    assert second.words == ["/.", "."] and second.pieces[0] == second.pieces[1] and second.owners == [0, 1]


def test_empty_report_is_the_word_none() -> None:
    assert encoder("v1")([""])[0].words == ["None"]
    assert encoder("v1")([" \n"])[0].words == []


def test_enclosed_segments() -> None:
    encode = encoder("v1", max_length=5)
    cls, sep, pad = (encode.tokenizer.convert_tokens_to_ids(token) for token in ("[CLS]", "[SEP]", "[PAD]"))
    reports = [EncodedReport(["a", "b"], [7, 8, 9, 10], [0, 0, 1, 1]), EncodedReport(["c"], [], []),
               EncodedReport(["d", "e"], [11], [1])]  # fmt: skip
    batch = encode.collate(reports)
    assert batch["input_ids"].tolist() == [[cls, 7, 8, 9, sep], [cls, 10, sep, pad, pad], [cls, 11, sep, pad, pad]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
    # words are counted over the batch: d is 3, e is 4
    assert batch["word_index"].tolist() == [[-1, 0, 0, 1, -1], [-1, 1, -1, -1, -1], [-1, 4, -1, -1, -1]]
    assert batch["num_words"].tolist() == [2, 1, 2]
    assert [encode.length(report) for report in reports] == [8, 2, 3]


def test_bare_segments() -> None:
    """No special tokens; word positions are one to the right; inner ends of segments belong to nobody."""
    encode = encoder("modern", max_length=5)
    # 5 pieces or fewer: one segment; the last word's own piece is followed by nothing
    batch = encode.collate([EncodedReport(list("abcd"), [7, 8, 9, 10], [0, 1, 2, 3])])
    assert batch["input_ids"].tolist() == [[7, 8, 9, 10]]
    assert batch["word_index"].tolist() == [[-1, 0, 1, 2]]
    # 12 pieces, 3 segments: 12 - 6 inner positions and the report's own two ends are left
    batch = encode.collate([EncodedReport(list("abcdefghijkl"), list(range(20, 32)), list(range(12)))])
    assert batch["input_ids"].tolist()[:2] == [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29]]
    assert batch["word_index"].tolist() == [[-1, 0, 1, 2, -1], [-1, 3, 4, 5, -1], [-1, 6, -1, -1, -1]]


def test_nothing_to_read() -> None:
    batch = encoder("v1").collate([EncodedReport([], [], [])])
    assert batch["input_ids"].shape == (0, 0) and batch["num_words"].tolist() == [0]


def test_tokenizer_without_specials_is_refused() -> None:
    class Bare:
        cls_token_id = sep_token_id = None

    with pytest.raises(ValueError, match="cls_token"):
        ReportEncoder(Bare(), "v1", "enclosed", 8)
