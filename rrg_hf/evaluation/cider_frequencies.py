"""CIDEr over a corpus too large for memory: document frequencies are counted part by part and kept on disk.

CIDEr weighs an n-gram by the share of all evaluated references that hold it, so a shard cannot be scored alone. A
first pass counts each shard's references, a merge adds the counts up, and the second pass scores the shards with the
sums. N-grams are stored as 64-bit hashes; among ten million of them a collision has a probability of 3e-6.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics import require_pycocoevalcap

_ORDERS = (1, 2, 3, 4)
_ENTRY = np.dtype([("key", "<u8"), ("count", "<u4")])
# Merging and looking up go through the sorted counts in pieces of bounded size.
_BUCKETS = 64
_BLOCK = 1 << 18

Tokens = Sequence[Sequence[str]]
Ngram = tuple[str, ...]


def _ngrams(tokens: Sequence[str]) -> set[Ngram]:
    return {tuple(tokens[start : start + n]) for n in _ORDERS for start in range(len(tokens) - n + 1)}


def _keys(ngrams: Iterable[Ngram]) -> np.ndarray:
    """64-bit hashes; tokens hold no spaces, so joined n-grams are unambiguous."""
    digests = (
        hashlib.blake2b(" ".join(ngram).encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
        for ngram in ngrams
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


def count_documents(references: Tokens) -> np.ndarray:
    """How many of the references hold each n-gram, as entries (key, count) sorted by key."""
    counts: Counter[Ngram] = Counter()
    for tokens in references:
        counts.update(_ngrams(tokens))
    entries = np.empty(len(counts), dtype=_ENTRY)
    entries["key"] = _keys(counts)
    entries["count"] = np.fromiter(counts.values(), dtype="<u4", count=len(counts))
    return entries[np.argsort(entries["key"], kind="stable")]


def merge_counts(parts: Sequence[Path], target: Path) -> None:
    """Add up the saved arrays of `count_documents` into one sorted file, written atomically."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    arrays = [np.load(path, mmap_mode="r") for path in parts]
    bounds = [((bucket << 64) // _BUCKETS) for bucket in range(1, _BUCKETS)]
    starts = [np.zeros(len(arrays), dtype=int)]
    for bound in bounds:
        starts.append(np.array([np.searchsorted(array["key"], np.uint64(bound)) for array in arrays], dtype=int))
    starts.append(np.array([len(array) for array in arrays], dtype=int))
    with temporary.open("wb") as file:
        for low, high in itertools.pairwise(starts):
            pieces = [np.asarray(array[a:b]) for array, a, b in zip(arrays, low, high, strict=True)]
            together = np.concatenate(pieces) if pieces else np.empty(0, dtype=_ENTRY)
            keys, places = np.unique(together["key"], return_inverse=True)
            merged = np.zeros(len(keys), dtype=_ENTRY)
            merged["key"] = keys
            merged["count"] = np.bincount(places, weights=together["count"], minlength=len(keys)).astype("<u4")
            merged.tofile(file)
    temporary.replace(target)


class CiderFrequencies:
    """Document frequencies of a corpus, and CIDEr of any part of it.

    Args:
        path: file of `merge_counts`.
        documents: number of references in the corpus.
    """

    def __init__(self, path: str | os.PathLike[str], documents: int) -> None:
        self.path = Path(path)
        self.documents = documents

    def lookup(self, ngrams: Sequence[Ngram]) -> dict[Ngram, float]:
        """Document frequency of each n-gram, 0 where no reference holds it."""
        keys = _keys(ngrams)
        order = np.argsort(keys, kind="stable")
        wanted, found = keys[order], np.zeros(len(keys), dtype=float)
        size = self.path.stat().st_size // _ENTRY.itemsize
        for start in range(0, size, _BLOCK):
            block = np.fromfile(self.path, dtype=_ENTRY, count=_BLOCK, offset=start * _ENTRY.itemsize)
            low = np.searchsorted(wanted, block["key"][0], side="left")
            high = np.searchsorted(wanted, block["key"][-1], side="right")
            places = np.minimum(np.searchsorted(block["key"], wanted[low:high]), len(block) - 1)
            hit = block["key"][places] == wanted[low:high]
            found[low:high] = np.where(hit, block["count"][places], found[low:high])
        frequencies = np.zeros(len(keys))
        frequencies[order] = found
        return dict(zip(ngrams, frequencies.tolist(), strict=True))

    def per_study(self, hypotheses: Tokens, references: Tokens) -> np.ndarray:
        """CIDEr of each study with the corpus's frequencies, (N,): what pycocoevalcap gives on the whole corpus."""
        require_pycocoevalcap()
        from pycocoevalcap.cider.cider_scorer import CiderScorer

        log_documents = np.log(float(self.documents))

        class CorpusCider(CiderScorer):
            """Keeps the corpus's size, which the base class would take from the studies it holds."""

            @property
            def ref_len(self) -> Any:
                return log_documents

            @ref_len.setter
            def ref_len(self, _: Any) -> None:
                pass

        ngrams: dict[Ngram, None] = {}
        scorer = CorpusCider()
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            scorer += (" ".join(hypothesis), [" ".join(reference)])
            ngrams |= dict.fromkeys(_ngrams(hypothesis)) | dict.fromkeys(_ngrams(reference))
        scorer.document_frequency.update(self.lookup(list(ngrams)))
        return np.asarray(scorer.compute_cider(), dtype=float)
