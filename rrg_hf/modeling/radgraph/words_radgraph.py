"""From a report to what the network reads: words, the pieces of each word, and segments of pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import regex
import torch

# RadGraph v1 sets these apart and leaves hyphens alone.
_V1_MARKS = re.compile(r"([/,:.!?()])")
# What RadGraph-XL's annotators saw: runs of word characters and runs of other marks. The engine matters for combining
# accents, superscripts and fractions: nltk, which the published package calls, matches with `regex` (since 3.10).
_XL_WORD = regex.compile(r"\w+|[^\w\s]+")
_BLANKS = re.compile(r"\s+")
# Control sequences that its source texts carried in writing, and their replacement by the same width of blanks.
_XL_WRITTEN = (("\\n", "  "), ("\\f", "  "), ("\\u2122", "      "), ("\n", " "), ('\\"', "``"))
# Runs of marks that are taken apart again, in this order.
_XL_MARKS = ((").", ") ."), ("%.", "% ."), (".'", ". '"), ("%,", "% ,"), ("%)", "% )"))

_MAX_CACHED_WORDS = 200_000


def split_words(text: str, preprocessing: str) -> list[str]:
    """The words of a report, as each archive's training data had them. A report is one sequence of words.

    Args:
        text: report; "" or only whitespace has no words.
        preprocessing: "v1": marks among `/ , : . ! ? ( )` stand alone, the rest is split at whitespace. "xl": runs of
            word characters and runs of other marks, with the clean-up of RadGraph-XL; radgraph 0.1.18 uses it for
            EchoGraph too. "echograph": split at whitespace, final periods removed, "/" and ">" take words apart.

    Raises:
        ValueError: another preprocessing.
    """
    if preprocessing == "v1":
        return _V1_MARKS.sub(r" \1 ", text).split()
    if preprocessing == "xl":
        for written, blanks in _XL_WRITTEN:
            text = text.replace(written, blanks)
        joined = " ".join(_XL_WORD.findall(_BLANKS.sub(" ", text)))
        for run, apart in _XL_MARKS:
            joined = joined.replace(run, apart)
        return joined.split()
    if preprocessing == "echograph":
        return [part for word in text.split() for part in _echograph_parts(word.rstrip("."))]
    raise ValueError(f"Unknown preprocessing {preprocessing!r}. Use 'v1', 'xl' or 'echograph'.")


def _echograph_parts(word: str) -> list[str]:
    if "/" in word:
        return word.split("/")
    if ">" in word:
        before, after = word.split(">")[:2]
        return [before, ">" + after]
    return [word]


@dataclass(frozen=True)
class EncodedReport:
    """One report's pieces.

    Attributes:
        words: its words.
        pieces: ids of all pieces of all words, without special tokens.
        owners: index of the word of each piece; a word may have none.
    """

    words: list[str]
    pieces: list[int]
    owners: list[int]


class ReportEncoder:
    """Turns reports into pieces and batches. Reports repeat the same few words, so the pieces of a word are kept.

    Every word is tokenized on its own, without a blank before it: byte-level tokenizers would give other ids for a
    word inside a sentence.

    Args:
        tokenizer: the encoder's tokenizer.
        preprocessing: see `split_words`.
        segments: "enclosed": each segment is [CLS], max_length - 2 pieces, [SEP]. "bare": segments are max_length
            pieces without special tokens, and a word reads the pieces one place to the right of its own. That is what
            radgraph does with tokenizers that are of no class of their own, such as ModernBERT's, so its networks
            were made that way; see `collate`.
        max_length: length of a segment, special tokens included.
    """

    def __init__(self, tokenizer: Any, preprocessing: str, segments: str, max_length: int) -> None:
        self.enclosed = segments == "enclosed"
        if self.enclosed and (tokenizer.cls_token_id is None or tokenizer.sep_token_id is None):
            raise ValueError("The tokenizer has no cls_token or no sep_token, which enclose every segment.")
        self.tokenizer = tokenizer
        self.preprocessing = preprocessing
        self.max_length = max_length
        self._pieces: dict[str, list[int]] = {}

    def __call__(self, texts: Iterable[str]) -> list[EncodedReport]:
        """Words and pieces of reports; "" is read as the word "None", as radgraph does."""
        reports = [split_words(text or "None", self.preprocessing) for text in texts]
        if len(self._pieces) > _MAX_CACHED_WORDS:
            self._pieces.clear()
        unseen = list({word: None for words in reports for word in words if word not in self._pieces})
        if unseen:
            encoding = self.tokenizer(
                [word[1:] if word in ("/.", "/?") else word for word in unseen],
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
            self._pieces.update(zip(unseen, encoding["input_ids"], strict=True))
        encoded = []
        for words in reports:
            pieces: list[int] = []
            owners: list[int] = []
            for index, word in enumerate(words):
                ids = self._pieces[word]
                pieces += ids
                owners += [index] * len(ids)
            encoded.append(EncodedReport(words, pieces, owners))
        return encoded

    def length(self, report: EncodedReport) -> int:
        """What a report weighs in a batch: the positions of its segments."""
        specials = 2 if self.enclosed else 0
        return len(report.pieces) + specials * max(1, -(-len(report.pieces) // (self.max_length - specials)))

    def collate(self, reports: Sequence[EncodedReport]) -> dict[str, torch.Tensor]:
        """Inputs of `RadGraphModel.forward`; rows are segments, which may end inside a word.

        A report without pieces has no segment. In "bare" segments the first and last position of every segment are
        taken for the special tokens they are not: only those of the report's first and last piece are kept.
        """
        rows: list[list[int]] = []
        owners: list[list[int]] = []
        first_word = 0
        for report in reports:
            segments = self._enclosed(report) if self.enclosed else self._bare(report)
            for ids, words in segments:
                rows.append(ids)
                owners.append([word if word < 0 else first_word + word for word in words])
            first_word += len(report.words)
        width = max(map(len, rows), default=0)
        pad = self.tokenizer.pad_token_id or 0
        return {
            "input_ids": _padded(rows, width, pad),
            "attention_mask": _padded([[1] * len(row) for row in rows], width, 0),
            "word_index": _padded(owners, width, -1),
            "num_words": torch.tensor([len(report.words) for report in reports], dtype=torch.long),
        }

    def _enclosed(self, report: EncodedReport) -> Iterable[tuple[list[int], list[int]]]:
        cls, sep, body = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id, self.max_length - 2
        for start in range(0, len(report.pieces), body):
            pieces, owners = report.pieces[start : start + body], report.owners[start : start + body]
            yield [cls, *pieces, sep], [-1, *owners, -1]

    def _bare(self, report: EncodedReport) -> Iterable[tuple[list[int], list[int]]]:
        count, length = len(report.pieces), self.max_length
        segments = -(-count // length)
        # positions that are left when each segment has lost its ends, and the report's own first and last are back
        kept = [
            segment * length + column
            for segment in range(segments)
            for column in range(1, min(length - 1, count - segment * length))
        ]
        kept = [0, *kept[: count - 2 * segments], count - 1] if count > 1 else [0]
        owners = [-1] * count
        for place in range(1, len(kept)):
            owners[kept[place]] = report.owners[place - 1]
        for start in range(0, count, length):
            yield report.pieces[start : start + length], owners[start : start + length]


def _padded(rows: list[list[int]], width: int, value: int) -> torch.Tensor:
    padded = [row + [value] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)
