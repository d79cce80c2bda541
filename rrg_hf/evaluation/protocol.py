"""The protocol of an evaluation: everything that must be equal before two numbers may be compared."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import DataError
from ..metrics.tokenization import TOKENIZERS

_LIBRARIES = ("numpy", "pycocoevalcap", "nltk")
_NETWORK_LIBRARIES = ("torch", "transformers", "tokenizers")
FIRST_IDS = 5
ALLOW_MISSING = "Generate them, or pass allow_missing (--allow-missing) to score the rest; the protocol will say so"


@dataclass
class Protocol:
    """How a set of scores was made. Saved beside every number.

    Attributes:
        section: what the references are, e.g. "findings".
        split, column: where the references were read, if from a file.
        metrics: the requested groups of scores.
        absent: score -> why it is not there.
        cleaning, cleaning_rule: applied to references and reports alike before the text metrics.
        tokenizer, tokenizer_rule: of BLEU, ROUGE-L, CIDEr and meteor_nltk.
        clinical_cleaning: applied to both sides before every other metric.
        labeller: who read the observations of the table per observation, "rules" or "chexbert", and
            `labeller_version`; "" where nobody did.
        scorers: metric -> its own protocol: backend, revision of the weights, conventions.
        counts: what a reader must know beside the scores, e.g. answers that could not be parsed.
        policy: how uncertain labels count (`rrg_hf.observations.UNCERTAINTY_POLICIES`).
        zero_division: value of 0/0 in precision, recall and F1.
        bootstrap: {"resamples", "seed", "confidence", "method"}; None when no intervals were asked for.
        studies: {"references", "predictions", "evaluated"} counts.
        skipped: reason -> {"count", "first_ids"}; nothing is left out of the scores without a line here.
        empty_predictions: evaluated reports without any text, which score 0.
        sources: the references' data sets by name.
        phantom: True if all references are phantoms, False if none, None if nobody said.
        generation: model, revision and settings that wrote the reports, as their file states them.
        versions: of rrg_hf and the libraries behind the scores.
        sha256: "predictions" and "references", over study ids and texts of what was given.
    """

    section: str
    metrics: list[str]
    cleaning: str
    tokenizer: str
    policy: str
    zero_division: float
    clinical_cleaning: str = "default"
    labeller: str = ""
    labeller_version: str = ""
    scorers: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    cleaning_rule: str = ""
    tokenizer_rule: str = ""
    absent: dict[str, str] = field(default_factory=dict)
    split: str | None = None
    column: str | None = None
    bootstrap: dict[str, Any] | None = None
    studies: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, dict[str, Any]] = field(default_factory=dict)
    empty_predictions: int = 0
    sources: list[str] = field(default_factory=list)
    phantom: bool | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Protocol:
        """Inverse of `to_dict`.

        Raises:
            DataError: a required field is missing or a field is unknown.
        """
        try:
            return cls(**values)
        except TypeError as error:
            raise DataError(f"Not an evaluation protocol: {error}") from error


def tokenizer_rule(name: str) -> str:
    """The documented rule of a tokeniser."""
    return TOKENIZERS[name]


def library_versions(*, networks: bool = False) -> dict[str, str]:
    """Versions of rrg_hf and of the libraries the scores rest on; "not installed" where one is missing.

    Args:
        networks: with those of the libraries that run networks.
    """
    from .. import __version__

    versions = {"rrg_hf": __version__}
    for name in (*_LIBRARIES, *(_NETWORK_LIBRARIES if networks else ())):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def text_sha256(texts: Mapping[str, str | None]) -> str:
    """SHA-256 over study ids and texts, whatever their order and file format."""
    digest = hashlib.sha256()
    for study_id in sorted(texts):
        text = texts[study_id]
        # NaN, which tables give for an empty cell, has no JSON; it stands for "no text".
        pair = [study_id, text if isinstance(text, str) else None]
        digest.update(json.dumps(pair, ensure_ascii=False).encode("utf-8", errors="surrogatepass") + b"\n")
    return digest.hexdigest()


def phantom_flag(sources: Mapping[str, Any] | list[str] | set[str]) -> bool | None:
    """Whether the named data sets are the phantom.

    Raises:
        DataError: phantom and other data together; they are never scored as one.
    """
    names = set(sources)
    if not names:
        return None
    if "phantom" in names and len(names) > 1:
        raise DataError(
            f"The references mix phantom studies with {sorted(names - {'phantom'})}. Evaluate them separately: "
            "phantoms are drawn, not patients."
        )
    return names == {"phantom"}


def skip_entry(ids: list[str]) -> dict[str, Any]:
    """Count and first ids of what is left out for one reason."""
    return {"count": len(ids), "first_ids": sorted(ids)[:FIRST_IDS]}
