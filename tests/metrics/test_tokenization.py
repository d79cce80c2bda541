from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics.tokenization import TOKENIZERS, check_tokenizer, tokenize

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no java on this machine")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A 2.5 cm nodule, RIGHT-sided.", ["a", "2.5", "cm", "nodule", ",", "right-sided", "."]),
        ("PICC/NG tube; T11.There", ["picc", "/", "ng", "tube", ";", "t11", ".", "there"]),
        ("1,200 mL (patient's)", ["1,200", "ml", "(", "patient's", ")"]),
        ("patient’s heart", ["patient's", "heart"]),
        ("", []),
        ("...", []),
        (" . \n", []),
        ("\x0c", []),
    ],
)
def test_default_rule(text: str, tokens: list[str]) -> None:
    assert tokenize([text]) == [tokens]


def test_whitespace_keeps_case_and_marks() -> None:
    assert tokenize(["No edema .", " . "], "whitespace") == [["No", "edema", "."], []]


def test_full_stop_is_set_off_and_nothing_else() -> None:
    """re.sub(" +", " ", text.replace(".", " .")).split(), as the CvT2DistilGPT2 lineage does."""
    assert tokenize(["No Edema.  A 2.5 cm nodule, right-sided."], "full_stop") == [
        ["No", "Edema", ".", "A", "2", ".5", "cm", "nodule,", "right-sided", "."]
    ]
    assert tokenize(["...", ""], "full_stop") == [[], []]


def test_unknown_tokeniser_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'moses'.*default"):
        tokenize(["a"], "moses")


def test_ptb_without_java_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.metrics.tokenization.shutil.which", lambda _: None)
    with pytest.raises(ConfigError, match="needs Java"):
        check_tokenizer("ptb")
    assert set(TOKENIZERS) == {"default", "whitespace", "full_stop", "ptb"}


@needs_java
def test_ptb_equals_pycocoevalcap_and_does_not_shift_at_empty_texts() -> None:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    texts = ["The lungs are clear.  No 2.5 cm nodule (stable).", "Heart-size isn't enlarged; normal.\nNo effusion"]
    theirs = PTBTokenizer().tokenize({str(i): [{"caption": text}] for i, text in enumerate(texts)})
    expected = [theirs[str(i)][0].split() for i in range(len(texts))]
    assert tokenize(["", texts[0], " \n", "...", texts[1], ""], "ptb") == [[], expected[0], [], [], expected[1], []]
    assert tokenize(["", "  "], "ptb") == [[], []]


@needs_java
def test_ptb_failure_is_an_error_not_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any, **__: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 0, stdout=b"one line\n", stderr=b"")

    monkeypatch.setattr("rrg_hf.metrics.tokenization.subprocess.run", short)
    with pytest.raises(DataError, match="1 lines for 2 texts"):
        tokenize(["a", "b"], "ptb")
