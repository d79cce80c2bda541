"""Tags to spans, with the published decoder's habits."""

from __future__ import annotations

import itertools
import random

import pytest

from rrg_hf.errors import CheckpointError
from rrg_hf.metrics.ratescore_entities import TAGS, check_tags, decode_spans


def spans(*tags: str) -> list[tuple[int, int, str]]:
    """Spans of a sentence whose tags are given from [CLS] to [SEP]."""
    tokens = ["[CLS]", *(f"t{index}" for index in range(1, len(tags) - 1)), "[SEP]"]
    return decode_spans(tokens, tags)


A, D, N = "ABNORMALITY", "DISEASE", "ANATOMY"


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "O", "O", "O"], []),
        (["O", f"B-{A}", "O", "O"], [(1, 1, "abnormality")]),
        (["O", f"B-{A}", f"I-{A}", "O", "O"], [(1, 2, "abnormality")]),
        # the type of I is ignored, also from I to I
        (["O", f"B-{A}", f"I-{D}", f"I-{N}", "O", "O"], [(1, 3, "abnormality")]),
        (["O", f"B-{A}", f"B-{D}", "O", "O"], [(1, 1, "abnormality"), (2, 2, "disease")]),
        (["O", f"B-{A}", f"I-{A}", f"B-{D}", "O", "O"], [(1, 2, "abnormality"), (3, 3, "disease")]),
        # I without B is no entity ...
        (["O", f"I-{A}", "O", "O"], []),
        (["O", f"I-{A}", f"I-{A}", f"B-{D}", "O", "O"], [(3, 3, "disease")]),
        # [CLS] and [SEP] are skipped, but the separator's tag is looked at
        ([f"B-{A}", f"I-{A}", "O", "O"], []),
        (["O", f"B-{A}", f"B-{D}"], [(1, 1, "abnormality")]),
        # open at the end: the separator says inside
        (["O", f"B-{A}", f"I-{A}"], [(1, 1, "abnormality")]),
        (["O", f"B-{A}", f"I-{A}", f"I-{A}"], [(1, 2, "abnormality")]),
        # ... but not if a span ended right before it began
        (["O", f"B-{A}", f"B-{D}", f"I-{D}"], [(1, 1, "abnormality")]),
        (["O", f"B-{A}", f"I-{A}", f"B-{D}", f"I-{D}", f"I-{D}"], [(1, 2, "abnormality")]),
        (["O", f"I-{A}", f"B-{D}", f"I-{D}", f"I-{D}"], []),
        (["O", f"B-{A}", f"B-{D}", "O", f"B-{N}", f"I-{N}"],
         [(1, 1, A.lower()), (2, 2, D.lower()), (4, 4, N.lower())]),
    ],
)  # fmt: skip
def test_habits(tags: list[str], expected: list[tuple[int, int, str]]) -> None:
    assert spans(*tags) == expected


def reference(tokens: list[str], tags: list[str]) -> list[tuple[int, int, str]]:
    """The facts page's rules one by one: B/I with a look-ahead of B, I or O, and a stale end."""
    found, start, end, kind = [], None, None, None
    for i in range(len(tokens)):
        if tokens[i] in ("[CLS]", "[SEP]") or tags[i] == "O" or i + 1 >= len(tags):
            continue
        pair = tags[i][0] + tags[i + 1][0]
        if pair == "BI":
            start, kind = i, tags[i][2:]
        elif pair == "BB":
            found.append((i, i, tags[i][2:]))
            start = end = i
            kind = tags[i][2:]
        elif pair == "BO":
            found.append((i, i, tags[i][2:]))
            start = end = kind = None
        elif pair == "IB":
            end = i
            if start is not None:
                found.append((start, end, kind))
            start, kind = i, tags[i][2:]
        elif pair == "IO":
            if start is not None:
                found.append((start, i, kind))
            start = end = kind = None
    if start is not None and end is None:
        found.append((start, len(tokens) - 2, kind))
    return [(first, last, name.lower()) for first, last, name in found]


def test_every_short_sequence_and_many_long_ones_agree_with_the_slow_rules() -> None:
    few = ["O", f"B-{A}", f"I-{A}", f"B-{D}", f"I-{D}"]
    cases = [list(tags) for size in range(2, 7) for tags in itertools.product(few, repeat=size)]
    rng = random.Random(0)
    everything = sorted(TAGS)
    cases += [[rng.choice(everything) for _ in range(rng.randint(5, 60))] for _ in range(2000)]
    for tags in cases:
        tokens = ["[CLS]", *["x"] * (len(tags) - 2), "[SEP]"]
        assert decode_spans(tokens, tags) == reference(tokens, tags), tags
        padded = [*tags, "O", f"I-{A}"]  # what a batch's padding says has no part in it
        assert decode_spans(tokens, padded) == decode_spans(tokens, tags)


def test_other_tags_are_one_clear_error() -> None:
    good = dict(enumerate(sorted(TAGS)))
    assert set(check_tags(good, "x")) == TAGS
    for bad in (
        {0: "LABEL_0", 1: "LABEL_1"},
        {**good, len(good): "B-OTHER"},
        {index + 1: tag for index, tag in good.items()},
        {**good, 0: good[1]},
    ):
        with pytest.raises(CheckpointError, match="is no RaTE-NER: its config must name the 11 tags"):
            check_tags(bad, "some/model")
