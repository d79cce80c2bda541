from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.evaluation.report_statistics import DEFAULT_METRICS, METRICS, ScoreSettings
from rrg_hf.evaluation.run import compare_reports, evaluate_reports
from rrg_hf.observations import OBSERVATIONS

REFERENCES: dict[str, Any] = {
    "s1": "The lungs are clear. The heart is normal in size. No pleural effusion.",
    "s2": "Mild cardiomegaly with small bilateral pleural effusions.",
    "s3": "Right lower lobe consolidation. No pneumothorax.",
    "s4": "No acute cardiopulmonary abnormality.",
}


def quick(predictions: Any, references: Any, **settings: Any) -> Any:
    return evaluate_reports(predictions, references, **{"bootstrap": 50, **settings})


def test_perfect_reports() -> None:
    result = quick(REFERENCES, REFERENCES)
    for name in ("bleu_1", "bleu_4", "rouge_l", "rules_micro_f1", "rules_exact_match"):
        assert result.value(name) == pytest.approx(1.0, abs=1e-6), name
        assert result.scores[name]["low"] == pytest.approx(1.0, abs=1e-6)
    assert 0 < result.value("rules_macro_f1") < 1  # classes without support count as zero_division = 0
    assert result.n == 4 and len(result.per_sample) == 4
    assert result.diversity["predictions"]["unique"] == 4


def test_known_mistakes_are_counted() -> None:
    predictions = dict(REFERENCES, s2="Small bilateral pleural effusions.", s4="Large right pneumothorax.")
    result = quick(predictions, REFERENCES, metrics=["rules"])
    heart = result.observations["Cardiomegaly"]
    assert (heart["support"], heart["tp"], heart["fn"], heart["fp"]) == (1, 0, 1, 0)
    assert heart["recall"]["value"] == 0.0
    assert result.observations["Pneumothorax"]["fp"] == 1
    rows = {row["study_id"]: row for row in result.per_sample}
    assert rows["s2"]["rules_missed"] == ["Cardiomegaly"]
    assert "Pneumothorax" in rows["s4"]["rules_invented"]
    assert rows["s1"]["rules_exact_match"] and not rows["s4"]["rules_exact_match"]
    assert set(result.observations) == set(OBSERVATIONS)
    assert "bleu_1" not in result.scores


@pytest.mark.parametrize("missing", [None, "", "  ", "nan", "None", "N/A", "NA", math.nan, "___"])
def test_references_without_the_section_are_skipped_and_counted(missing: Any) -> None:
    """Stanford-AIMI/RRG24#9: no empty target, no literal "nan", and the count is reported."""
    references = dict(REFERENCES, s9=missing)
    result = quick(dict(REFERENCES, s9="Clear."), references)
    assert result.n == 4
    assert result.protocol.skipped == {"reference without findings": {"count": 1, "first_ids": ["s9"]}}
    plain = quick(REFERENCES, REFERENCES)
    assert result.scores == plain.scores
    json.dumps(result.to_dict(), allow_nan=False)


def test_study_without_prediction_is_an_error_unless_allowed() -> None:
    predictions = {key: text for key, text in REFERENCES.items() if key != "s3"}
    with pytest.raises(DataError, match=r"1 of 4 studies have no prediction, first \['s3'\].*--allow-missing"):
        quick(predictions, REFERENCES)
    result = quick(predictions, REFERENCES, allow_missing=True)
    assert result.n == 3 and result.protocol.skipped["no prediction"] == {"count": 1, "first_ids": ["s3"]}


def test_prediction_without_reference_is_counted() -> None:
    result = quick(dict(REFERENCES, extra="Clear."), REFERENCES)
    assert result.protocol.skipped == {"prediction without reference": {"count": 1, "first_ids": ["extra"]}}
    assert result.protocol.studies == {"references": 4, "predictions": 5, "evaluated": 4}


@pytest.mark.parametrize("empty", ["", None, "nan", "...", math.nan])
def test_empty_predictions_stay_and_score_zero(empty: Any) -> None:
    result = quick(dict(REFERENCES, s2=empty), REFERENCES)
    assert result.n == 4 and result.protocol.empty_predictions == 1
    row = next(row for row in result.per_sample if row["study_id"] == "s2")
    assert row["bleu_1"] == row["rouge_l"] == row["cider"] == row["rules_f1"] == 0.0
    assert result.value("rouge_l") == pytest.approx(0.75)


def test_placeholders_earn_nothing_on_either_side() -> None:
    """LX-doctorAI1/M2KT#4: a report with the marks and one without score the same, 1.0."""
    references = {
        "a": "XXXX lungs are clear. Heart and mediastinum are normal.",
        "b": "Lungs are clear. Heart and ___ mediastinum are normal.",
    }
    without = {"a": "Lungs are clear. Heart and mediastinum are normal."}
    without["b"] = without["a"]
    for predictions in (references, without, dict(without, a="XXXX XXXX " + without["a"])):
        result = quick(predictions, references)
        assert result.value("bleu_4") == pytest.approx(1.0, abs=1e-6)
        assert result.value("rouge_l") == 1.0
        assert result.observations["Cardiomegaly"]["support"] == 0
        assert result.observations["Cardiomegaly"]["predicted"] == 0
    assert "placeholders" in result.protocol.cleaning_rule


def test_reference_is_never_cut() -> None:
    """Event-AHU/Medical_Image_Analysis#6."""
    reference = "one two three four five six seven eight nine ten eleven twelve"
    result = quick({"a": " ".join(reference.split()[:6])}, {"a": reference}, metrics=["nlg"])
    assert result.value("bleu_4") == pytest.approx(math.exp(-1), abs=1e-4)
    assert result.protocol.absent["cider"].startswith("CIDEr weighs")
    with pytest.raises(DataError, match="CIDEr weighs"):
        result.value("cider")


def test_order_of_the_files_does_not_matter() -> None:
    predictions = dict(REFERENCES, s2="Cardiomegaly.")
    result = quick(predictions, REFERENCES)
    backwards = quick(dict(reversed(predictions.items())), dict(reversed(REFERENCES.items())))
    assert backwards.to_dict(per_sample=True) == result.to_dict(per_sample=True)


def test_intervals_are_reproducible_and_optional() -> None:
    predictions = dict(REFERENCES, s2="Cardiomegaly.")
    result = quick(predictions, REFERENCES, seed=3)
    assert quick(predictions, REFERENCES, seed=3).scores == result.scores
    assert quick(predictions, REFERENCES, seed=4).scores != result.scores
    score = result.scores["rouge_l"]
    assert score["low"] < score["value"] < score["high"]
    plain = quick(predictions, REFERENCES, bootstrap=0)
    assert plain.scores["rouge_l"] == {"value": score["value"], "low": None, "high": None}
    assert plain.protocol.bootstrap is None


def test_protocol_says_how_the_numbers_came_about() -> None:
    result = quick(
        REFERENCES, REFERENCES, cleaning="r2gen_iu", policy="uncertain_as_negative", section="impression",
        sources=["phantom"], generation={"models": ["m"]},
    )  # fmt: skip
    protocol = result.protocol
    assert protocol.tokenizer == "whitespace" and "R2Gen" in protocol.tokenizer_rule
    assert "R2Gen" in protocol.cleaning_rule and "Args" not in protocol.cleaning_rule
    assert (protocol.policy, protocol.section, protocol.phantom) == ("uncertain_as_negative", "impression", True)
    assert protocol.generation == {"models": ["m"]}
    assert protocol.versions["rrg_hf"] and protocol.versions["pycocoevalcap"] != "not installed"
    assert set(protocol.absent) == {"meteor_1.5_java", "meteor_nltk"}
    assert protocol.sha256["predictions"] == protocol.sha256["references"]
    assert quick(dict(REFERENCES, s1="x"), REFERENCES).protocol.sha256["predictions"] != protocol.sha256["references"]


def test_numeric_and_string_ids_meet() -> None:
    assert quick({101: "Clear.", 102: "Clear."}, {"101": "Clear.", "102": "Clear."}).n == 2
    with pytest.raises(DataError, match="differ only in type"):
        quick({101: "Clear.", "101": "Clear."}, REFERENCES)


def test_model_that_ignores_its_image_shows_in_the_diversity() -> None:
    result = quick(dict.fromkeys(REFERENCES, "The lungs are clear."), REFERENCES)
    assert result.diversity["predictions"] == {
        "reports": 4, "unique": 1, "unique_share": 0.25, "most_common_share": 1.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": ["bleu"]}, r"\['bleu'\].*nlg"),
        ({"metrics": []}, "one or more"),
        ({"metrics": "nlg"}, "in a list"),
        ({"cleaning": "porter"}, "'porter'.*r2gen_iu"),
        ({"tokenizer": "moses"}, "'moses'"),
        ({"policy": "ones"}, "'ones'"),
        ({"zero_division": -1}, "zero_division"),
        ({"bootstrap": 3}, "3 bootstrap resamples"),
        ({"confidence": 95}, "confidence level"),
        ({"confidence": "95 %"}, "confidence is '95 %'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"bootstrap": "many"}, "bootstrap is 'many'"),
        ({"zero_division": "a"}, "zero_division is 'a'"),
        ({"zero_division": True}, "zero_division is True"),
        ({"clinical_cleaning": "porter"}, "clinical_cleaning 'porter'"),
        ({"versus": REFERENCES, "allow_missing": True}, "both systems' reports"),
    ],
)
def test_settings_that_cannot_work_fail_before_compute(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("computed before the settings were checked")

    monkeypatch.setattr("rrg_hf.evaluation.run.score_systems", never)
    with pytest.raises(ConfigError, match=message):
        evaluate_reports(REFERENCES, REFERENCES, **settings)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ({}, {"a": "x"}, "no predictions"),
        ({"a": "x"}, {}, "no references"),
        ({"a": "x"}, {"a": "nan", "b": None}, "None of the 2 references has a findings text"),
        ({"a": "x"}, {"b": "Clear."}, r"ids like \['a'\].*like \['b'\]"),
        (["x"], {"a": "Clear."}, "mappings of study id to text, not a list"),
        ({"a": "x"}, ["Clear."], "not a list"),
        ({"a": 7}, {"a": "Clear."}, "The text of study a is a int"),
        ({"a": "x"}, {"a": ["Clear."]}, "The text of study a is a list"),
    ],
)
def test_nothing_to_score(predictions: Any, references: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        quick(predictions, references)


def test_phantom_and_real_data_are_not_mixed() -> None:
    with pytest.raises(DataError, match=r"mix phantom studies with \['iu_xray'\]"):
        quick(REFERENCES, REFERENCES, sources=["phantom", "iu_xray"])


def test_comparison_comes_with_the_scores() -> None:
    references = {f"s{i}": text for i, text in enumerate(list(REFERENCES.values()) * 6)}
    worse = dict.fromkeys(references, "The lungs are clear.")
    result = quick(references, references, versus=worse)
    assert result.comparison["resamples"] == 50 and result.comparison["permutations"] == 1000
    alone = compare_reports(worse, references, references, resamples=50)
    assert result.comparison["scores"] == {name: entry.to_dict() for name, entry in alone.items()}
    with pytest.raises(DataError, match="no prediction"):
        quick(references, references, versus={"s0": "Clear."})
    with pytest.raises(TypeError, match=r"Unknown settings \['tokeniser'\]"):
        quick(references, references, tokeniser="ptb")


def test_labeller_and_its_version() -> None:
    from rrg_hf.text.rules import RULES_VERSION

    assert quick(REFERENCES, REFERENCES).protocol.labeller_version == f"rules {RULES_VERSION}"
    assert quick(REFERENCES, REFERENCES, metrics=["nlg"]).protocol.labeller == ""


def test_messages_hold_no_report_text(caplog: pytest.LogCaptureFixture) -> None:
    references = {"s1": "SECRETPATIENT lungs clear.", "s2": "SECRETPATIENT.", "s3": None}
    with pytest.raises(DataError) as error:
        quick({"s1": "SECRETPATIENT"}, references)
    quick({"s1": "SECRETPATIENT"}, references, allow_missing=True)
    assert "SECRETPATIENT" not in str(error.value) + caplog.text
    assert "no prediction" in caplog.text


def test_comparison_of_two_systems() -> None:
    references = {f"s{i}": text for i, text in enumerate(list(REFERENCES.values()) * 6)}
    worse = dict.fromkeys(references, "The lungs are clear.")
    settings: dict[str, Any] = {"resamples": 200, "permutations": 200}
    compared = compare_reports(worse, references, references, **settings)
    entry = compared["rules_micro_f1"]
    assert entry.difference == pytest.approx(entry.second - entry.first) and entry.second == 1.0
    assert entry.low > 0 and entry.p_permutation < 0.05 and entry.p_bootstrap < 0.05
    assert compared["bleu_4"].first == pytest.approx(quick(worse, references).value("bleu_4"))
    same = compare_reports(worse, worse, references, **settings)
    assert all(entry.difference == 0 and entry.p_permutation == 1 for entry in same.values())
    with pytest.raises(DataError, match="1 of 24 studies have no prediction"):
        compare_reports({key: text for key, text in worse.items() if key != "s5"}, references, references)


def test_settings_default_to_what_the_documentation_says() -> None:
    assert METRICS[:3] == ("nlg", "rules", "meteor") and DEFAULT_METRICS == ("nlg", "rules")
    assert ScoreSettings().resolved_tokenizer == "default"
    assert ScoreSettings(cleaning="r2gen_mimic").resolved_tokenizer == "whitespace"
    assert ScoreSettings(cleaning="r2gen_mimic", tokenizer="default").resolved_tokenizer == "default"


def test_real_reports_against_shuffled_ones(shared_dir: Path) -> None:
    """IU X-Ray's R2Gen test split, 590 studies: perfect against itself, and the shuffled floor is far below."""
    path = shared_dir / "data" / "iu_xray" / "r2gen_annotation.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    references = {item["id"]: item["report"] for item in json.loads(path.read_text())["test"]}
    order = np.random.default_rng(0).permutation(list(references))
    shuffled = {key: references[other] for key, other in zip(references, order, strict=True)}
    result = quick(shuffled, references)
    assert result.n == 590
    assert 0.1 < result.value("bleu_1") < 0.5 and result.value("bleu_4") < 0.15
    assert result.value("rules_micro_f1") < 0.6
    assert quick(references, references, bootstrap=0).value("bleu_4") == pytest.approx(1.0, abs=1e-6)
