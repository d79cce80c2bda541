"""Entities from the tags of RaTE-NER, decoded as the published RaTEScore decodes them.

The published decoder is no textbook IOB: it looks one tag ahead, the separator's tag included, keeps the type of a
span's first token whatever follows, and may lose the last span of a sentence. Scores are only comparable with its
rules, so they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import CheckpointError
from .ratescore_matrices import TYPES

OUTSIDE = "O"
TAGS = frozenset({OUTSIDE} | {f"{mark}-{name.upper()}" for mark in "BI" for name in TYPES})
_SKIPPED = frozenset({"[CLS]", "[SEP]"})


def check_tags(id2label: Mapping[int, str], name: str) -> list[str]:
    """The tags by class index.

    Args:
        id2label: of the model's config.
        name: what an error calls the model.

    Raises:
        CheckpointError: not exactly the begin and inside tags of the five types, and "O".
    """
    tags = [str(id2label[index]) for index in sorted(id2label)]
    if len(tags) != len(TAGS) or set(tags) != TAGS or sorted(id2label) != list(range(len(tags))):
        raise CheckpointError(
            f"{name} is no RaTE-NER: its config must name the {len(TAGS)} tags {sorted(TAGS)} in id2label, but it "
            f"names {tags}. RaTEScore needs Angelakeke/RaTE-NER-Deberta or a model trained on the same tags."
        )
    return tags


def decode_spans(tokens: Sequence[str], tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Spans of one sentence.

    Args:
        tokens: pieces with "[CLS]" and "[SEP]", without padding.
        tags: one per token, and possibly more (of padding).

    Returns:
        (first token, last token, type in lower case), in order.
    """
    spans: list[tuple[int, int, str]] = []
    start: int | None = None
    kind = ""
    closed = False  # a boundary was seen since the last "O": then the published rule forgets a span left open
    for index, (token, tag) in enumerate(zip(tokens, tags, strict=False)):
        if token in _SKIPPED or tag == OUTSIDE or index == len(tags) - 1:
            continue
        here, ahead = tag[0], tags[index + 1][0]
        if here == "B":
            start, kind = index, tag[2:]
        if ahead == "I":
            continue
        if start is not None:
            spans.append((start, index, kind))
        closed = ahead == "B"
        start, kind = (index, tag[2:]) if closed else (None, "")
    if start is not None and not closed:
        spans.append((start, len(tokens) - 2, kind))
    return [(first, last, kind.lower()) for first, last, kind in spans]
