import re

import pytest

from rrg_hf.text.rules_patterns import Kind, _expand_head, compiled


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("(?:no|without) change", ["no change", "without change"]),
        ("(?:very )?large", ["very large", "large"]),
        ("(?:a |b )*c", ["c", "a c", "a b c"]),
        ("(?:(?:left|right) )?base", ["base", "left base", "right base"]),
        ("o?edema", ["oedema", "edema"]),
    ],
)
def test_expanded_heads_match_the_same_texts_and_start_with_a_letter(pattern, texts):
    pieces = _expand_head(pattern)
    assert all(re.match("[a-z]", piece) for piece in pieces)
    for text in [*texts, "zzz"]:
        expected = bool(re.fullmatch(pattern, text))
        assert any(re.fullmatch(piece, text) for piece in pieces) is expected


def test_longest_phrase_wins():
    expression, table = compiled()

    def kinds(text):
        return [(match.group(), table[match.lastindex].kind) for match in expression.finditer(text)]

    assert kinds("pericardial effusion") == [("pericardial effusion", Kind.OTHER)]
    assert kinds("pleural line") == [("pleural line", Kind.NEUTRAL)]
    assert kinds("heart failure") == [("heart failure", Kind.FINDING)]
    assert kinds("cannot be excluded") == [("cannot be excluded", Kind.UNC_AFTER)]
    assert kinds("massive nondisplaced") == [("massive", Kind.NEUTRAL)]


def test_every_group_has_an_entry():
    expression, table = compiled()
    assert expression.groups == len(table) - 1
