"""Sentences as RaTEScore's entity recogniser reads them.

The published package splits with medspaCy, which runs PyRuSH's rules over spaCy's words. PyRuSH alone gives the same
sentences and installs beside current NumPy, which medspaCy does not; it is an optional dependency. The project's own
splitter is the other choice. Which one ran is part of the protocol, because the sentence decides the entities.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..text.sentences import split_sentences

SENTENCES = {
    "pyrush": "PyRuSH with medspaCy's additional rules, aligned to the words of spaCy's blank English; published",
    "rrg_hf": "rrg_hf.text.sentences.split_sentences; not the published convention",
}
INSTALL_HINT = 'pip install "rrg_hf[ratescore]"'
SHORTEST = 3  # characters; what is shorter is not read

# what medspaCy 1.3 has in its copy of PyRuSH's rules and PyRuSH has not: pattern, score, mark
_MEDSPACY_RULES = (
    r"\a)\e	2	stend",
    r"\a)\w+\e	2	stend",
    r"\s\a\.\w+and	3	stend",
    r"\.\a\.\w+and	3	stend",
)


def require_pyrush() -> None:
    """Check the optional dependency.

    Raises:
        ConfigError: PyRuSH is not installed; the message holds the pip line.
    """
    if find_spec("PyRuSH") is None:
        raise ConfigError(
            "RaTEScore's published sentence splitting needs PyRuSH, which is not installed. Run: "
            f"{INSTALL_HINT}; or choose sentences='rrg_hf', whose scores are close but not the published convention."
        )


def check_sentences(sentences: str) -> str:
    """Name and version of a splitter, for protocols.

    Raises:
        ConfigError: an unknown splitter, or one that is not installed.
    """
    if sentences not in SENTENCES:
        raise ConfigError(f"sentences is {sentences!r}. Use one of {sorted(SENTENCES)}.")
    if sentences == "pyrush":
        require_pyrush()
        return f"PyRuSH {version('PyRuSH')}"
    return sentences


def sentences_of(text: str, sentences: str = "pyrush") -> list[str]:
    """Sentences of a report without surrounding blanks; those below `SHORTEST` characters are left out.

    Args:
        text: a report.
        sentences: a key of `SENTENCES`.
    """
    if sentences == "pyrush":
        pieces = _pyrush_pieces(text)
    else:
        pieces = [text[start:end] for start, end in split_sentences(text)]
    stripped = (piece.strip() for piece in pieces)
    return [piece for piece in stripped if len(piece) >= SHORTEST]


@cache
def _pyrush() -> tuple[Any, Any]:
    """RuSH with the rules, and spaCy's word splitter. PyRuSH's own spaCy component logs every sentence: not used."""
    import PyRuSH
    import spacy

    folder = Path(PyRuSH.__file__).parents[1]
    rules = (folder / "conf" / "rush_rules.tsv").read_text(encoding="utf-8").splitlines()
    return PyRuSH.RuSH("\n".join([*rules, *_MEDSPACY_RULES, ""])), spacy.blank("en").tokenizer


def _pyrush_pieces(text: str) -> list[str]:
    rush, tokenizer = _pyrush()
    words = tokenizer(text)
    if not len(words):
        return []
    begins = [word.idx for word in words]
    blank = [word.is_space for word in words]
    spans = [(span.begin, span.end) for span in rush.segToSentenceSpans(text)]
    starts = sorted({0, *_first_words(begins, blank, spans)})
    bounds = [*(begins[word] for word in starts), len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


def _first_words(begins: Sequence[int], blank: Sequence[bool], spans: Sequence[tuple[int, int]]) -> set[int]:
    """Words that begin a piece, given PyRuSH's spans, which need not begin or end with a word.

    A span that begins inside a word does not part it. What lies between two spans is a piece of its own, and so is a
    run of blanks there. Behind the last span only blanks part.

    Args:
        begins: first character of each word.
        blank: which words are blanks.
        spans: (begin, end) of PyRuSH's sentences.
    """
    firsts: set[int] = set()
    for begin, end in spans:
        inside, behind = bisect_left(begins, begin), bisect_left(begins, end)
        if inside < behind:
            firsts.add(behind)
            if begins[inside] == begin:
                firsts.add(inside)
    for (_, end), (begin, _) in pairwise(spans):
        gap = range(bisect_left(begins, end), bisect_left(begins, begin))
        if gap:
            firsts.add(next((word for word in gap if blank[word]), gap[0]))
    tail = bisect_left(begins, spans[-1][1]) if spans else 0
    firsts.update(word for word in range(tail, len(begins)) if blank[word])
    return {word for word in firsts if word < len(begins)}
