"""The text metrics as one scorer: published tables, the public faults, and the settings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics import nlg_scorer
from rrg_hf.metrics.meteor import METEOR_JAVA, METEOR_NLTK, meteor_java_absent
from rrg_hf.metrics.nlg import NLG_SCORES, nlg_scores
from rrg_hf.metrics.nlg_scorer import ReportNlg, rouge_score_statistics

needs_java = pytest.mark.skipif(meteor_java_absent() is not None, reason=str(meteor_java_absent()))

REPORTS = ["The lungs are clear. No pneumothorax.", "Mild cardiomegaly.", "1. A 2.5 cm nodule."]
REFERENCES = ["The lungs are clear. No effusion.", "Mild cardiomegaly without edema.", "A 2.5 cm nodule."]


def scorer(**settings: Any) -> ReportNlg:
    return ReportNlg(**{"meteor": None, **settings})


@pytest.fixture(scope="module")
def golden(shared_dir: Path) -> dict[str, dict[str, Any]]:
    path = shared_dir / "cases" / "metric_golden.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return {case["metric"]: case for case in json.loads(path.read_text())["cases"]}


def test_published_bleu_and_rouge_table(golden: dict[str, dict[str, Any]]) -> None:
    """RadEval's regression table: BLEU on raw white-space tokens, ROUGE by rouge_score with stemming."""
    case = golden["bleu_rouge"]
    raw = scorer(cleaning="none", tokenizer="whitespace", rouge_score=True)
    result = raw.compute(case["inputs"]["HYPS"], case["inputs"]["REFS"], per_sample=True)
    names = {"bleu": "bleu_4", "rouge1": "rouge_score_1", "rouge2": "rouge_score_2", "rougeL": "rouge_score_l"}
    for theirs, value in {**case["expected"]["default"], **case["expected"]["detailed"]}.items():
        assert result[names.get(theirs, theirs)] == pytest.approx(value, abs=case["tol"])
    for theirs, values in case["expected"]["per_sample"].items():
        assert result["per_sample"][names[theirs]] == pytest.approx(values, rel=1e-6, abs=1e-20)


def test_published_rouge_l_and_cider(golden: dict[str, dict[str, Any]]) -> None:
    case = golden["coco_rougeL_cider"]
    raw = scorer(cleaning="none", tokenizer="whitespace")
    result = raw.compute(case["inputs"]["HYPS"], case["inputs"]["REFS"], per_sample=True)
    for ours, theirs in {"rouge_l": "ROUGE_L", "cider": "CIDEr"}.items():
        assert result[ours] == pytest.approx(case["expected"][theirs], abs=case["tol"])
        assert result["per_sample"][ours] == pytest.approx(case["expected"][f"{theirs}_per"], abs=case["tol"])


def test_blank_side() -> None:
    """bleu-blank (huggingface/evaluate#601, #764): 0, no exception, the rest unchanged."""
    blanks = [("", "Clear lungs."), ("Clear lungs.", "\x0c"), ("", "")]
    predictions, references = [*REPORTS, *(p for p, _ in blanks)], [*REFERENCES, *(r for _, r in blanks)]
    with_blanks = scorer(rouge_score=True).compute(predictions, references, per_sample=True)
    alone = scorer(rouge_score=True).compute(REPORTS, REFERENCES, per_sample=True)
    assert (with_blanks["nlg_empty_predictions"], with_blanks["nlg_empty_references"]) == (2, 2)
    for name, values in with_blanks["per_sample"].items():
        assert len(values) == len(references) and values[-3:] == [0.0, 0.0, 0.0]
        if name != "cider":  # its document frequencies are the corpus's
            assert values[:3] == alone["per_sample"][name]


@pytest.mark.parametrize("degenerate", [".", "...", "_", "\u200b"])
@pytest.mark.parametrize("tokenizer", ["default", "whitespace"])
def test_report_of_full_stops(degenerate: str, tokenizer: str) -> None:
    """rouge-period (pltrdy/rouge#53): emptiness is decided after tokenisation; the bad item stays in the mean."""
    result = scorer(cleaning="none", tokenizer=tokenizer, rouge_score=True).compute(
        [degenerate, "clear lungs"], ["clear lungs", "clear lungs"], per_sample=True
    )
    for name in ("rouge_l", "rouge_score_l"):
        assert result["per_sample"][name] == [0.0, 1.0]
        assert result[name] == 0.5


@needs_java
@pytest.mark.slow
def test_newlines_do_not_shift_meteor() -> None:
    """meteor-newline (Maluuba/nlg-eval#91): one JVM scores each odd pair among others and its plain twin apart."""
    odd = [("Lungs clear.\nHeart normal.", "Lungs clear.\n\nHeart normal."), ("a ||| b\rc", "a b |||c")]
    flat = [tuple(" ".join(text.replace("|||", " ").split()) for text in pair) for pair in odd]
    plain = [("no effusion", "no effusion seen"), ("mild edema", "severe edema")]
    pairs = [plain[0], odd[0], plain[1], odd[1], plain[0], *flat, plain[1]]
    nlg = ReportNlg(cleaning="none", meteor="java")
    scores = nlg.compute([p for p, _ in pairs], [r for _, r in pairs], per_sample=True)["per_sample"][METEOR_JAVA]
    assert scores[1] == scores[5] == pytest.approx(1.0)
    assert scores[3] == scores[6]
    assert scores[0] == scores[4] and scores[2] == scores[7]
    assert len(scores) == 8


@pytest.mark.parametrize("tokenizer", ["default", "whitespace"])
def test_reference_is_not_truncated(tokenizer: str) -> None:
    """ref-truncated (Event-AHU/Medical_Image_Analysis#6): half a report pays the brevity penalty."""
    reference = "one two three four five six seven eight nine ten eleven twelve"
    half = " ".join(reference.split()[:6])
    result = scorer(tokenizer=tokenizer, rouge_score=True).compute([half], [reference])
    for order in (1, 2, 3, 4):
        assert result[f"bleu_{order}"] == pytest.approx(math.exp(1 - 12 / 6), abs=1e-6)
    assert result["rouge_score_l"] == pytest.approx(2 / 3)  # F1; rouge_l weighs recall more
    assert result["rouge_l"] == pytest.approx((1 + 1.44) * 0.5 / (0.5 + 1.44))


@pytest.mark.parametrize("mark", ["XXXX", "___"])
def test_deidentification_marks(mark: str) -> None:
    """iu-placeholder (LX-doctorAI1/M2KT#4): removed on both sides, nothing to gain by writing them."""
    reference = f"{mark} lungs are clear. Heart and mediastinum are normal."
    reports = ["Lungs are clear. Heart and mediastinum are normal.", reference]
    result = scorer(rouge_score=True).compute(reports, [reference] * 2, per_sample=True)
    for name in ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "rouge_score_l"):
        assert result["per_sample"][name] == pytest.approx([1.0, 1.0], abs=1e-8)
    assert "XXXX" in result["protocol"]["cleaning_rule"]
    kept = scorer(cleaning="r2gen_iu").compute(["XXXX lungs are clear."], ["XXXX lungs are clear."])
    assert 'stays as "xxxx"' in kept["protocol"]["cleaning_rule"]


def test_missing_sections_are_no_words(caplog: pytest.LogCaptureFixture) -> None:
    """nan-findings (Stanford-AIMI/RRG24#9): what an empty cell turns into has no tokens, and is counted."""
    missing = ["", "None", "N/A", "NA", "nan"]
    result = scorer(rouge_score=True).compute(["nan", "none", "n/a", "na", "nan"], missing, per_sample=True)
    assert all(value == 0.0 for values in result["per_sample"].values() for value in values)
    assert (result["nlg_empty_predictions"], result["nlg_empty_references"]) == (5, 5)
    assert "5 of 5 references hold no text" in caplog.text
    with pytest.raises(DataError, match=r"references\[0\] is NoneType"):
        scorer().compute(["clear"], [None])  # type: ignore[list-item]


def test_cleaning_decides_the_default_tokeniser() -> None:
    assert scorer().tokenizer == "default"
    assert scorer(cleaning="r2gen_mimic").tokenizer == scorer(cleaning="r2gen_iu").tokenizer == "whitespace"
    assert scorer(cleaning="r2gen_iu", tokenizer="default").tokenizer == "default"
    r2gen = scorer(cleaning="r2gen_mimic").compute(["A 2.5 cm Nodule. No edema."], ["a 25 cm nodule . no edema ."])
    assert r2gen["bleu_4"] == pytest.approx(1.0, abs=1e-6)  # R2Gen's cleaning loses the decimal point
    assert scorer().compute(["A 2.5 cm nodule"], ["A 25 cm nodule"])["bleu_1"] == pytest.approx(0.75, abs=1e-6)


@needs_java
def test_ptb_convention() -> None:
    """Raw text and the Stanford tokenizer: lower case, no punctuation."""
    ptb = scorer(cleaning="none", tokenizer="ptb").compute(["The Lungs are clear!", "x"], ["the lungs are clear", "y"])
    assert ptb["rouge_l"] == 0.5
    assert "PTBTokenizer" in ptb["protocol"]["tokenizer_rule"]


def test_equals_the_plain_functions() -> None:
    result = scorer().compute(REPORTS, REFERENCES)
    cleaned = [*REPORTS[:2], "A 2.5 cm nodule."]
    assert {name: result[name] for name in NLG_SCORES} == nlg_scores(cleaned, REFERENCES)


def test_single_study_has_no_cider() -> None:
    result = scorer().compute(REPORTS[:1], REFERENCES[:1])
    assert "cider" not in result and "one study" in result["protocol"]["absent"]["cider"]


def test_protocol_names_what_is_not_there() -> None:
    protocol = scorer().compute(REPORTS, REFERENCES)["protocol"]
    assert protocol["absent"] == {METEOR_JAVA: "not requested", METEOR_NLTK: "not requested"}
    assert protocol["meteor"] == [] and METEOR_JAVA not in protocol["average"]
    assert protocol["cleaning"] == "default" and protocol["tokenizer"] == "default"


def test_choice_of_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nlg_scorer, "meteor_java_absent", lambda: "no `java`")
    monkeypatch.setattr(nlg_scorer, "meteor_nltk_absent", lambda: None)
    auto = ReportNlg(meteor="auto")
    assert auto._meteors == [METEOR_NLTK] and auto._absent == {METEOR_JAVA: "no `java`"}
    for meteor in ("java", "both"):
        with pytest.raises(ConfigError, match=f"{METEOR_JAVA}, which cannot run: no `java`"):
            ReportNlg(meteor=meteor)
    monkeypatch.setattr(nlg_scorer, "meteor_nltk_absent", lambda: "no WordNet")
    neither = ReportNlg(meteor="auto")
    assert neither._meteors == [] and neither._absent == {METEOR_JAVA: "no `java`", METEOR_NLTK: "no WordNet"}
    monkeypatch.setattr(nlg_scorer, "meteor_java_absent", lambda: None)
    assert ReportNlg(meteor="auto")._meteors == [METEOR_JAVA]
    assert ReportNlg(meteor="auto")._absent == {METEOR_NLTK: "not requested"}


def test_java_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under "auto" the other scores stay; who asked for Java gets the error."""

    def broken(*_: Any) -> Any:
        raise DataError("exit code 1")

    monkeypatch.setattr(nlg_scorer, "meteor_java_absent", lambda: None)
    monkeypatch.setattr(nlg_scorer, "meteor_java_statistics", broken)
    result = ReportNlg(meteor="auto").compute(REPORTS, REFERENCES)
    assert METEOR_JAVA not in result and result["protocol"]["absent"][METEOR_JAVA] == "exit code 1"
    with pytest.raises(DataError, match="exit code 1"):
        ReportNlg(meteor="java").compute(REPORTS, REFERENCES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cleaning": "bleach"}, "Unknown cleaning 'bleach'"),
        ({"tokenizer": "moses"}, "Unknown tokeniser 'moses'"),
        ({"meteor": "1.5"}, "meteor is '1.5'"),
    ],
)
def test_unknown_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReportNlg(**settings)


def test_rouge_score_package_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nlg_scorer, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install rouge_score"):
        scorer(rouge_score=True)
    with pytest.raises(ConfigError, match="pip install rouge_score"):
        rouge_score_statistics(["a"], ["a"])
