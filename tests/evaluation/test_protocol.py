from __future__ import annotations

import hashlib
import json
import math

import pytest

from rrg_hf.errors import DataError
from rrg_hf.evaluation.protocol import (
    Protocol,
    library_versions,
    phantom_flag,
    skip_entry,
    text_sha256,
    tokenizer_rule,
)
from rrg_hf.metrics.tokenization import TOKENIZERS


def test_round_trip_and_unknown_fields() -> None:
    protocol = Protocol("findings", ["nlg"], "default", "default", "uncertain_as_positive", 0.0, sources=["phantom"])
    assert Protocol.from_dict(json.loads(json.dumps(protocol.to_dict()))) == protocol
    with pytest.raises(DataError, match="beam"):
        Protocol.from_dict({**protocol.to_dict(), "beam": 3})
    with pytest.raises(DataError, match="section"):
        Protocol.from_dict({})


def test_every_tokeniser_has_a_rule_in_words() -> None:
    assert all(len(tokenizer_rule(name)) > 40 for name in TOKENIZERS)


def test_hash_depends_on_ids_and_texts_only() -> None:
    expected = hashlib.sha256('["1", "lungs “clear”"]\n["2", null]\n'.encode()).hexdigest()
    assert text_sha256({"2": None, "1": "lungs “clear”"}) == expected
    assert text_sha256({"1": "lungs “clear”", "2": math.nan}) == expected  # type: ignore[dict-item]
    assert text_sha256({"1": "lungs “clear” ", "2": None}) != expected
    # a text cannot be moved into an id unnoticed
    assert text_sha256({"1": "2"}) != text_sha256({"12": ""})


def test_phantom_flag() -> None:
    assert phantom_flag(set()) is None
    assert phantom_flag({"phantom"}) is True
    assert phantom_flag({"iu_xray", "mimic_cxr"}) is False
    with pytest.raises(DataError, match="separately"):
        phantom_flag({"phantom", "iu_xray"})


def test_versions_and_skips() -> None:
    assert {"rrg_hf", "numpy", "pycocoevalcap"} <= set(library_versions())
    assert skip_entry([f"s{i}" for i in range(9, 0, -1)]) == {"count": 9, "first_ids": ["s1", "s2", "s3", "s4", "s5"]}
