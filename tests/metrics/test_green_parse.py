"""Reading a judge's answer: zero errors and unreadable are different things."""

from __future__ import annotations

import ast
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrg_hf.errors import ConfigError
from rrg_hf.metrics.green_parse import LETTERS, GreenAnswer, parse_green

FALSE = "(a) False report of a finding in the candidate"
MISSING = "(b) Missing a finding present in the reference"


def answer(
    errors: str = f"{FALSE}: 1. edema.", matched: str = "3. lungs; heart; tube.", minor: str = "No errors"
) -> str:
    return (
        "[Explanation]:\nThe candidate adds edema.\n\n"
        f"[Clinically Significant Errors]:\n{errors}\n\n"
        f"[Clinically Insignificant Errors]:\n{minor}\n\n"
        f"[Matched Findings]:\n{matched}"
    )


def test_the_format_as_asked() -> None:
    text = answer(
        f"{FALSE}: 1. edema.\n{MISSING}: 2. effusion; line.\n(d) Misassessment of the severity of a finding: 0.",
        minor="(f) Omitting a comparison detailing a change from a prior study: 1. stable.",
    )
    for rules in ("strict", "published"):
        read = parse_green(text, rules=rules)
        assert read == GreenAnswer((1, 2, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1), 3)
        assert read.score == 0.5


def test_public_fault_green_parse() -> None:
    """public_faults.jsonl green-parse: (base), (i) other number formats, (ii) cut off, (iii) blank line."""
    assert parse_green(answer()).score == 0.75
    for matched in ("3) lungs; heart; tube.", "Three. lungs; heart; tube."):
        assert parse_green(answer(matched=matched)).score == 0.75
        assert parse_green(answer(matched=matched), rules="published").score == 0.0
    cut = answer().split("[Matched Findings]")[0]
    assert parse_green(cut) is None
    assert parse_green(cut, rules="published").score == 0.0
    spaced = answer(f"{FALSE}: 1. edema.\n\n{MISSING}: 2. effusion; line.")
    assert parse_green(spaced).score == 0.5
    assert parse_green(spaced, rules="published").score == 0.75


@pytest.mark.parametrize(
    ("matched", "count"),
    [
        ("0.", 0), ("No matched findings.", 0), ("None", 0), ("no findings match", 0), ("12. a; b", 12), ("(3) a", 3),
        ("3: a; b; c", 3), ("3", 3), ("3 matched findings: a", 3), ("two - a; b", 2), ("**3.** a", 3),
        ("```\n3. a\n```", 3), ("  3. a", 3), ("1. a; b; c", 1),
    ],
)  # fmt: skip
def test_matched_findings_that_can_be_read(matched: str, count: int) -> None:
    assert parse_green(answer(matched=matched)).matched == count


@pytest.mark.parametrize(
    "matched",
    ["", "There are 3 matched findings", "3 cm nodule", "2.5 cm nodule", "3-cm nodule", "Nothing", "1. a\n2. b"],
)
def test_matched_findings_that_cannot_be_read(matched: str) -> None:
    assert parse_green(answer(matched=matched)) is None


@pytest.mark.parametrize(
    ("errors", "counts"),
    [
        ("No errors", (0, 0, 0, 0, 0, 0)),
        ("None.", (0, 0, 0, 0, 0, 0)),
        ("", (0, 0, 0, 0, 0, 0)),
        (f"{FALSE}: none\n{MISSING}: No errors.", (0, 0, 0, 0, 0, 0)),
        (f"{FALSE}: 2 errors. a; b", (2, 0, 0, 0, 0, 0)),
        (f"{FALSE}: two. a; b", (2, 0, 0, 0, 0, 0)),
        ("(A) False report: edema: 1. edema", (1, 0, 0, 0, 0, 0)),
        ("(1) False report: 1. a\n(6) Omitting: 3. a", (1, 0, 0, 0, 0, 3)),
        (f"{FALSE}: 1. a {MISSING}: 2. b; c", (1, 2, 0, 0, 0, 0)),
        (f"{FALSE}: 1. a\n{FALSE}: 1. a", (1, 0, 0, 0, 0, 0)),
        (f"- {FALSE}: 1. a\n* {MISSING}: 1. b", (1, 1, 0, 0, 0, 0)),
        (f"{FALSE}: 1. measures 2.5 cm: 3 cm before", (1, 0, 0, 0, 0, 0)),
    ],
)
def test_errors_that_can_be_read(errors: str, counts: tuple[int, ...]) -> None:
    assert parse_green(answer(errors)).significant == counts


@pytest.mark.parametrize(
    "errors",
    [
        f"{FALSE}: edema; effusion",
        f"{FALSE}: 2.5 cm nodule",
        f"{FALSE}",
        f"{FALSE}: 1. a\n{FALSE}: 2. b; c",
        "The candidate adds edema.",
    ],
)
def test_errors_that_cannot_be_read(errors: str) -> None:
    assert parse_green(answer(errors)) is None
    assert parse_green(answer(minor=errors)) is None


def test_structure_that_cannot_be_read() -> None:
    assert parse_green("") is None
    assert parse_green("The reports agree.") is None
    assert parse_green(answer().replace("[Clinically Significant Errors]:", "")) is None
    assert parse_green(answer() + "\n\n[Matched Findings]:\n5. again") is None


def test_cut_off_in_the_last_number() -> None:
    text = answer(matched="1")
    assert parse_green(text).matched == 1
    assert parse_green(text, finished=False) is None
    assert parse_green(answer(matched="1. lungs; hea"), finished=False).matched == 1


def test_nothing_matched_scores_zero() -> None:
    assert parse_green(answer("No errors", "No matched findings")).score == 0.0


def test_the_last_of_repeated_categories_wins_as_published() -> None:
    text = answer(f"{FALSE}: 2. b; c\n{FALSE}: 1. a")
    assert parse_green(text, rules="published").significant == (2, 0, 0, 0, 0, 0)


def test_unknown_rules() -> None:
    with pytest.raises(ConfigError, match="parse rules"):
        parse_green("", rules="lenient")


PIECES = st.sampled_from(
    ["[Clinically Significant Errors]:", "[Clinically Insignificant Errors]:", "[Matched Findings]:", "[Explanation]:",
     "\n", "\n\n", "(a) x: ", "(b) y: ", "(1) z: ", "1.", "2)", "three", "No", " ", "```", "effusion;", "2.5 cm", ":"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25).map("".join), st.booleans())
def test_any_answer_is_read_or_refused(text: str, finished: bool) -> None:
    published = parse_green(text, rules="published")
    assert published is not None and 0 <= published.score <= 1
    strict = parse_green(text, finished=finished)
    if strict is not None:
        assert 0 <= strict.score <= 1 and len(strict.significant) == len(LETTERS)
        assert "[Matched Findings]" in text and "[Clinically Significant Errors]" in text


def test_time_is_linear_in_hostile_text() -> None:
    for piece in ("(a) ", "(a) x: ", "[Matched Findings]", "\n \n", "```", ": 1", "no "):
        parse_green(piece * 20_000)
        parse_green(piece * 20_000, rules="published")


def test_published_example_completions() -> None:
    """The five completions of green-score's own test give the scores its authors state."""
    archive = os.environ.get("RRG_GREEN_SDIST")
    if not archive or not Path(archive).is_file():
        pytest.skip("set RRG_GREEN_SDIST to green_score-0.0.12.tar.gz to read the published completions")
    with tarfile.open(archive) as tar:
        member = next(info for info in tar if info.name.endswith("tests/test_repro.py"))
        source = tar.extractfile(member).read()
    completions = next(
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "expected_green_score_list"
    )
    for rules in ("strict", "published"):
        assert [parse_green(text, rules=rules).score for text in completions] == [0, 1 / 6, 1 / 3, 1 / 2, 1 / 4]
