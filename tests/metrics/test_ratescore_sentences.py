"""Sentences as medspaCy splits them, and the other splitter."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import rrg_hf.metrics.ratescore_sentences as module
from rrg_hf.errors import ConfigError
from rrg_hf.metrics.ratescore_sentences import check_sentences, sentences_of
from tests.metrics.tiny_ratescore import PAIRS

EXPECTED = json.loads((Path(__file__).parent / "data" / "ratescore_expected.json").read_text(encoding="utf-8"))


def test_sentences_are_those_of_the_published_package() -> None:
    pytest.importorskip("PyRuSH", reason="PyRuSH is an optional dependency: pip install 'rrg_hf[ratescore]'")
    for side in (0, 1):
        for pair, expected in zip(PAIRS, EXPECTED["sentences"][side], strict=True):
            assert sentences_of(pair[side]) == expected


def test_pyrush_says_nothing_and_leaves_no_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("PyRuSH", reason="PyRuSH is an optional dependency: pip install 'rrg_hf[ratescore]'")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG):
        sentences_of("Lungs are clear. No effusion.")
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())
    assert not [record for record in caplog.records if record.name.startswith(("PyRuSH", "PyFastNER"))]


@pytest.mark.parametrize("sentences", ["pyrush", "rrg_hf"])
@pytest.mark.parametrize("text", ["", " ", "\n\n", "...", "a", "ab", "-\n-", "\u200b", "\x00", "🫁"])
def test_texts_that_hold_hardly_anything(sentences: str, text: str) -> None:
    if sentences == "pyrush":
        pytest.importorskip("PyRuSH", reason="PyRuSH is an optional dependency: pip install 'rrg_hf[ratescore]'")
    expected = ["..."] if text == "..." else []
    found = sentences_of(text, sentences)
    assert found in ([], expected, [text.strip()])
    assert all(len(sentence) >= 3 for sentence in found)


@pytest.mark.parametrize("sentences", ["pyrush", "rrg_hf"])
def test_no_word_of_long_texts_is_lost(sentences: str) -> None:
    if sentences == "pyrush":
        pytest.importorskip("PyRuSH", reason="PyRuSH is an optional dependency: pip install 'rrg_hf[ratescore]'")
    for text in ("Heart size normal. " * 540, "opacity " * 1300, "x" * 10_000):
        found = sentences_of(text, sentences)
        assert "".join(found).replace(" ", "") == text.replace(" ", "")


def test_own_splitter_is_another_choice() -> None:
    assert check_sentences("rrg_hf") == "rrg_hf"
    assert sentences_of("Lungs clear. No effusion", "rrg_hf") == ["Lungs clear.", "No effusion"]


def test_unknown_and_missing_splitters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"sentences is 'nltk'. Use one of \['pyrush', 'rrg_hf'\]"):
        check_sentences("nltk")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "rrg_hf\[ratescore\]"'):
        check_sentences("pyrush")
