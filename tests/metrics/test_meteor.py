from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import DataError, RrgError
from rrg_hf.metrics import meteor
from rrg_hf.metrics.meteor import (
    METEOR_JAVA,
    METEOR_NLTK,
    meteor_java_absent,
    meteor_java_statistics,
    meteor_nltk_absent,
    meteor_nltk_statistics,
    meteor_statistics,
)

needs_java = pytest.mark.skipif(meteor_java_absent() is not None, reason=str(meteor_java_absent()))

REFERENCES = [
    "the lungs are clear .",
    "Lungs clear.\n\nHeart normal.",
    "Lungs|||clear.\rHeart normal.\x85",
    "no acute cardiopulmonary process .",
    "no pneumothorax is seen .",
    "the heart is enlarged with small bilateral pleural effusions .",
    "",
]
REPORTS = [
    "lungs clear . heart normal",
    "Lungs clear.\nHeart normal.",
    "Lungs ||| clear.\r\nHeart\u2028normal.\x0b",
    "no acute cardiopulmonary process .",
    "pneumothorax is seen . no",
    "the cardiac silhouette is large with a small effusion on both sides",
    "clear",
]


@pytest.fixture(scope="module")
def group() -> Any:
    """One JVM for both tests: its start takes about 10 s."""
    return meteor_java_statistics([*REPORTS, ""], [*REFERENCES, "clear lungs"])


@needs_java
@pytest.mark.slow
def test_equals_the_jar_per_study_and_for_the_corpus(group: Any) -> None:
    """The counts are Java's; the formula is ours: compare with what pycocoevalcap's wrapper reads back."""
    from pycocoevalcap.meteor.meteor import Meteor

    flat = [
        [" ".join(text.replace("|||", " ").split()) for text in side]
        for side in ([*REPORTS, ""], [*REFERENCES, "clear lungs"])
    ]
    theirs = Meteor()
    try:
        corpus, per_study = theirs.compute_score(
            {i: [text] for i, text in enumerate(flat[1])}, {i: [text] for i, text in enumerate(flat[0])}
        )
    finally:
        process = theirs.meteor_p
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        process.stderr.close()
    assert np.allclose(group.per_study()[METEOR_JAVA], per_study, rtol=0, atol=1e-12)
    assert group.corpus()[METEOR_JAVA] == pytest.approx(corpus, abs=1e-12)


@needs_java
@pytest.mark.slow
def test_line_protocol_survives_any_text(group: Any) -> None:
    """Maluuba/nlg-eval#91: newlines, "|||" and carriage returns are spaces, shift nothing and hang nothing."""
    scores = group.per_study()[METEOR_JAVA]
    assert scores[1] == pytest.approx(1.0)
    assert scores[2] == pytest.approx(1.0)
    assert scores[3] == pytest.approx(1.0)
    assert 0 < scores[4] < 1  # the same words in another order
    assert scores[6] == scores[7] == 0.0  # an empty side


def fake_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A `java` that runs a Python line instead."""
    script = tmp_path / "java"
    script.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_hanging_java_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jvm(tmp_path, monkeypatch, "time.sleep(60)")
    start = time.monotonic()
    with pytest.raises(DataError, match="no answer within 1 s for 2 studies"):
        meteor_java_statistics(["a", "b"], ["a", "b"], timeout_s=1)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("sys.stdin.read(); print('1 2')", "1 replies for 2 studies"),
        ("sys.stdin.read(); print('Error: x'); print('y')", "not a list of numbers"),
        ("sys.stdin.read(); print('1 2'); print('3 4')", "2 numbers per study, expected 23"),
    ],
)
def test_java_that_misbehaves_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    fake_jvm(tmp_path, monkeypatch, code)
    with pytest.raises(DataError, match=message):
        meteor_java_statistics(["a", "b"], ["a", "b"], timeout_s=30)


def test_absent_variants_are_named_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meteor.shutil, "which", lambda _: None)
    monkeypatch.setattr(meteor, "meteor_nltk_absent", lambda: "no WordNet")
    groups, absent = meteor_statistics(["a"], ["a"], [["a"]], [["a"]])
    assert groups == []
    assert absent == {METEOR_JAVA: "no `java` on this machine", METEOR_NLTK: "no WordNet"}
    with pytest.raises(RrgError, match="no `java`"):
        meteor_java_statistics(["a"], ["a"])


def test_failing_java_is_absent_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jvm(tmp_path, monkeypatch, "sys.exit(1)")
    monkeypatch.setattr(meteor, "meteor_nltk_absent", lambda: "no WordNet")
    groups, absent = meteor_statistics(["a"], ["a"], [["a"]], [["a"]])
    assert groups == [] and "exit code 1" in absent[METEOR_JAVA]


class NoSynonyms:
    """A WordNet without entries: nltk's METEOR then matches words and stems only."""

    def synsets(self, _: str) -> list[Any]:
        return []


def test_nltk_variant_is_the_mean_under_its_own_name() -> None:
    group = meteor_nltk_statistics(
        [["clear", "lungs"], [], ["no", "effusions"]],
        [["clear", "lungs"], ["clear"], ["no", "effusion"]],
        wordnet=NoSynonyms(),
    )
    # nltk: perfect match of m words in one chunk has the penalty 0.5 (1/m)^3
    per_study = group.per_study()[METEOR_NLTK]
    assert per_study.tolist() == pytest.approx([1 - 0.5 / 8, 0.0, 1 - 0.5 / 8])
    assert group.corpus() == {METEOR_NLTK: pytest.approx(np.mean(per_study))}
    with pytest.raises(DataError, match="1 hypotheses and 2"):
        meteor_nltk_statistics([["a"]], [["a"], ["b"]], wordnet=NoSynonyms())


@pytest.mark.skipif(meteor_nltk_absent() is None, reason="WordNet is installed here")
def test_nltk_without_wordnet_says_how_to_get_it() -> None:
    assert "wordnet" in str(meteor_nltk_absent())
    with pytest.raises(RrgError, match=METEOR_NLTK):
        meteor_nltk_statistics([["a"]], [["a"]])


def test_no_process_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "pid"
    fake_jvm(tmp_path, monkeypatch, f"import os; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    with pytest.raises(DataError):
        meteor_java_statistics(["a"], ["a"], timeout_s=3)
    ps = shutil.which("ps", path="/bin:/usr/bin")
    if ps is None:
        assert not Path(f"/proc/{marker.read_text()}").exists()
    else:
        assert subprocess.run([ps, "-p", marker.read_text()], capture_output=True, check=False).returncode != 0
