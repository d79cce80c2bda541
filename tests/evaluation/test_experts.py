"""Scores of pathology experts: against sklearn and a slow bootstrap; unknown, missing and one-sided labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from sklearn.metrics import accuracy_score, roc_auc_score

from rrg_hf.data.collators import study_image
from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.evaluation import ExpertResult, evaluate_experts, score_experts
from rrg_hf.evaluation.experts import expert_probabilities, image_probabilities
from rrg_hf.observations import OBSERVATIONS, apply_policy
from rrg_hf.text.rules import label_report
from tests.lead_model import make_lead_model
from tests.tiny_palm import make_tiny_palm

NAMES = ["Edema", "Fracture", "Pneumothorax"]


def sample(seed: int = 0, count: int = 80, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that know something, and labels a fifth of which are unknown."""
    rng = np.random.default_rng(seed)
    targets = (rng.random((count, classes)) < 0.35).astype(float)
    probabilities = np.clip(0.25 * targets + rng.random((count, classes)).round(1) * 0.75, 0, 1)
    targets[rng.random((count, classes)) < 0.2] = -1
    return probabilities, targets


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_scores_equal_sklearn() -> None:
    probabilities, targets = sample()
    result = score_experts(probabilities, targets, NAMES, threshold=0.4, bootstrap=0)
    areas, accuracies = [], []
    for column, name in enumerate(NAMES):
        known = targets[:, column] >= 0
        truth, said = targets[known, column], probabilities[known, column]
        areas.append(roc_auc_score(truth, said))
        accuracies.append(accuracy_score(truth, said >= 0.4))
        entry = result.observations[name]
        assert entry["auroc"]["value"] == pytest.approx(areas[-1], abs=1e-12)
        assert entry["accuracy"]["value"] == pytest.approx(accuracies[-1], abs=1e-12)
        assert (entry["positives"], entry["negatives"]) == (int(truth.sum()), int((1 - truth).sum()))
        assert entry["unknown"] == int((~known).sum()) and entry["predicted"] == int((said >= 0.4).sum())
        assert entry["majority_accuracy"] == max(truth.mean(), 1 - truth.mean())
    known = targets >= 0
    values = {name: score["value"] for name, score in result.scores.items()}
    assert values["macro_auroc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert values["micro_auroc"] == pytest.approx(roc_auc_score(targets[known], probabilities[known]), abs=1e-12)
    assert values["accuracy"] == pytest.approx(accuracy_score(targets[known], probabilities[known] >= 0.4), abs=1e-12)
    assert values["macro_accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-12)
    assert all(score["low"] is None and score["high"] is None for score in result.scores.values())
    majority = sum(max(np.sum(column == 1), np.sum(column == 0)) for column in targets.T) / known.sum()
    assert result.majority_accuracy == pytest.approx(majority)


def test_without_unknown_labels_macro_and_micro_are_sklearns_averages() -> None:
    probabilities, targets = sample(1)
    targets = np.abs(targets)
    scores = score_experts(probabilities, targets, NAMES, bootstrap=0).scores
    for average in ("macro", "micro"):
        assert scores[f"{average}_auroc"]["value"] == pytest.approx(
            roc_auc_score(targets, probabilities, average=average), abs=1e-12
        )


def test_intervals_equal_a_slow_bootstrap_over_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, targets = sample(2, count=40)
    result = score_experts(probabilities, targets, NAMES, bootstrap=50, seed=7, confidence=0.9)
    rng = np.random.default_rng(7)
    draws: dict[str, list[float]] = {"macro_auroc": [], "micro_auroc": [], "accuracy": [], "Edema": []}
    for _ in range(50):
        rows = np.repeat(np.arange(40), rng.multinomial(40, np.full(40, 1 / 40)))
        truth, said = targets[rows], probabilities[rows]
        known = truth >= 0
        areas = [roc_auc_score(truth[known[:, at], at], said[known[:, at], at]) for at in range(3)]
        draws["macro_auroc"].append(float(np.mean(areas)))
        draws["Edema"].append(areas[0])
        draws["micro_auroc"].append(roc_auc_score(truth[known], said[known]))
        draws["accuracy"].append(float(np.mean((said[known] >= 0.5) == (truth[known] == 1))))
    for name, values in draws.items():
        score = result.observations["Edema"]["auroc"] if name == "Edema" else result.scores[name]
        assert [score["low"], score["high"]] == pytest.approx(np.percentile(values, [5, 95]).tolist(), abs=1e-12)
    monkeypatch.setattr("rrg_hf.evaluation.experts._BLOCK_CELLS", 300)  # a few resamples at a time
    assert score_experts(probabilities, targets, NAMES, bootstrap=50, seed=7, confidence=0.9) == result


def test_one_sided_observations_are_named_and_leave_only_the_macro_mean() -> None:
    probabilities, targets = sample(3)
    targets[:, 1] = np.where(targets[:, 1] >= 0, 0, -1)
    targets[:, 2] = -1
    result = score_experts(probabilities, targets, NAMES, bootstrap=50)
    negatives = int((targets[:, 1] == 0).sum())
    assert result.absent == {
        "Fracture": f"all {negatives} known labels are negative",
        "Pneumothorax": "no label is known",
    }
    assert result.observations["Fracture"]["auroc"] == {"value": None, "low": None, "high": None}
    assert result.observations["Fracture"]["accuracy"]["value"] == pytest.approx(
        np.mean(probabilities[targets[:, 1] == 0, 1] < 0.5)
    )
    assert result.scores["macro_auroc"] == result.observations["Edema"]["auroc"]
    known = targets >= 0
    assert result.scores["micro_auroc"]["value"] == pytest.approx(roc_auc_score(targets[known], probabilities[known]))
    targets[:, 1] = np.where(targets[:, 1] >= 0, 1, -1)
    absent = score_experts(probabilities, targets, NAMES, bootstrap=0).absent
    assert absent["Fracture"] == f"all {negatives} known labels are positive"


def test_rows_without_image_or_label_are_ignored_and_counted() -> None:
    probabilities, targets = sample(4, count=30)
    targets[targets.max(axis=1) < 0] = 0
    plain = score_experts(probabilities, targets, NAMES, bootstrap=50)
    more = np.concatenate([probabilities, np.full((3, 3), np.nan), np.full((2, 3), 0.9)])
    labels = np.concatenate([targets, np.ones((3, 3)), [[-1] * 3, [np.nan] * 3]])
    result = score_experts(more, labels, NAMES, bootstrap=50)
    assert result.scores == plain.scores and result.observations == plain.observations and result.n == 30
    counts = result.protocol["counts"]
    assert (counts["studies"], counts["without_probabilities"], counts["without_known_label"]) == (35, 3, 2)
    assert counts["known_labels"] == int((targets >= 0).sum())
    assert counts["unknown_labels"] == int((targets < 0).sum())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"probabilities": np.zeros((4, 2))}, DataError, "do not fit"),
        ({"probabilities": np.full((4, 3), 1.5)}, DataError, "through a sigmoid first"),
        ({"targets": np.full((4, 3), 2.0)}, DataError, "1, 0, or negative"),
        ({"targets": np.full((4, 3), -1.0)}, DataError, "No label is known for any of the 4"),
        ({"probabilities": np.full((4, 3), np.nan)}, DataError, "4 without probabilities"),
        ({"threshold": 1.0}, ConfigError, "threshold"),
        ({"bootstrap": 5}, ConfigError, "at least 20"),
    ],
)
def test_what_cannot_be_scored_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"probabilities": np.full((4, 3), 0.5), "targets": np.eye(4, 3), "names": NAMES, **change}
    with pytest.raises(error, match=message):
        score_experts(**given)


# --- a model over a data set -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return make_lead_model(tmp_path_factory.mktemp("lead") / "tiny", expert_threshold=0.6)


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return phantom_dataset(10, split="test", size=64)


@pytest.fixture(scope="module")
def result(lead: tuple[Any, Any], rows: Dataset) -> ExpertResult:
    return evaluate_experts(*lead, rows, label_source="study", bootstrap=20, batch_size=4)


def test_every_study_is_read_once_with_its_own_labels(
    lead: tuple[Any, Any], rows: Dataset, result: ExpertResult
) -> None:
    model, processor = lead
    assert [row["study_id"] for row in result.per_study] == rows["study_id"] and result.n == 10
    for row, study in zip(result.per_study, rows, strict=True):
        assert row["labels"] == apply_policy(study["labels"], "uncertain_ignored")
        inputs = processor.build_inputs(images=[[study_image(study)]])
        with torch.no_grad():
            expected = model(**inputs).expert_logits[0].sigmoid()
        assert list(row["probabilities"]) == list(OBSERVATIONS)
        assert list(row["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
    probabilities = np.array([list(row["probabilities"].values()) for row in result.per_study])
    targets = np.array([[-1 if v is None else v for v in row["labels"].values()] for row in result.per_study])
    again = score_experts(probabilities, targets, OBSERVATIONS, threshold=0.6, bootstrap=20)
    assert again.scores == result.scores and again.observations == result.observations
    assert len({row["probabilities"]["Edema"] for row in result.per_study}) > 5, "the experts must see the image"


def test_the_protocol_says_how(result: ExpertResult) -> None:
    protocol = result.protocol
    assert protocol["threshold"] == 0.6, "the model's own"
    assert (protocol["label_source"], protocol["policy"]) == ("study", "uncertain_ignored")
    assert protocol["phantom"] is True and protocol["sources"] == ["phantom"] and protocol["skipped"] == {}
    assert {"rrg_hf", "torch", "transformers"} <= set(protocol["versions"])


def test_labels_by_rules_are_the_labellers_on_the_section(lead: tuple[Any, Any], rows: Dataset) -> None:
    said = evaluate_experts(*lead, rows, bootstrap=0, policy="uncertain_as_positive")
    for row, text in zip(said.per_study, rows["findings"], strict=True):
        assert row["labels"] == apply_policy(label_report(text), "uncertain_as_positive")
    assert said.protocol["section"] == "findings" and said.protocol["labeller_version"]


def test_a_column_of_labels_is_used_only_when_asked_for(lead: tuple[Any, Any], rows: Dataset) -> None:
    column = [[float((at + index) % 2) for at in range(14)] for index in range(10)]
    more = rows.add_column("expert_labels", column)
    found = evaluate_experts(*lead, more, label_source="column", bootstrap=0)
    assert [list(row["labels"].values()) for row in found.per_study] == column
    assert found.protocol["policy"] is None
    ignored = evaluate_experts(*lead, more, label_source="study", bootstrap=0)
    plain = evaluate_experts(*lead, rows, label_source="study", bootstrap=0)
    assert ignored.per_study == plain.per_study


def test_studies_without_a_readable_image_are_skipped_and_named(lead: tuple[Any, Any], rows: Dataset) -> None:
    broken = [{**row, "study_id": f"x{at}"} for at, row in enumerate(rows.select(range(2)))]
    broken[0]["images"], broken[0]["views"] = [], []
    broken[1]["images"] = [{"bytes": b"no picture", "path": None}]
    from rrg_hf.data.study import study_features

    features = study_features(decode_images=False)
    both = concatenate_datasets([rows.cast(features), Dataset.from_list(broken, features=features)])
    found = evaluate_experts(*lead, both, label_source="study", bootstrap=0)
    assert found.n == 10 and found.protocol["skipped"] == {
        "no image": {"count": 1, "first_ids": ["x0"]},
        "image cannot be read": {"count": 1, "first_ids": ["x1"]},
    }


def test_batches_and_progress(lead: tuple[Any, Any], rows: Dataset) -> None:
    seen: list[tuple[int, int]] = []
    whole = expert_probabilities(*lead, rows, batch_size=10)
    parts = expert_probabilities(*lead, rows, batch_size=4, progress=lambda *at: seen.append(at))
    assert seen == [(4, 10), (8, 10), (10, 10)]
    for study_id, row in whole.probabilities.items():
        assert parts.probabilities[study_id] == pytest.approx(row, abs=1e-5)


@pytest.mark.parametrize("family", ["internvl", "mistral3"])
def test_other_backbones(family: str, tmp_path: Path, rows: Dataset) -> None:
    model, processor = make_lead_model(tmp_path / family, family)
    found = evaluate_experts(model, processor, rows.select(range(4)), label_source="study", bootstrap=0)
    assert found.n == 4 and 0 <= (found.scores["micro_auroc"]["value"] or 0) <= 1


def test_a_peft_model_is_read_through(lead: tuple[Any, Any], rows: Dataset, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, processor = make_lead_model(tmp_path / "tiny")
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    found = evaluate_experts(wrapped, processor, rows.select(range(3)), label_source="study", bootstrap=0)
    assert found.n == 3


def test_what_cannot_work_is_refused_before_any_image(
    lead: tuple[Any, Any], rows: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("an image was read")

    monkeypatch.setattr("rrg_hf.evaluation.experts.image_probabilities", never)
    for change, message in (
        ({"label_source": "radgraph"}, "label_source"),
        ({"policy": "half"}, "policy"),
        ({"label_source": "column"}, "no column 'expert_labels'"),
        ({"label_model": "some/folder"}, "label model"),
        ({"threshold": 0.0}, "threshold"),
        ({"bootstrap": 3}, "at least 20"),
        ({"batch_size": 0}, "batch_size"),
        ({"section": "summary"}, "summary"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_experts(*lead, rows, **change)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 study ids appear more than once"):
        evaluate_experts(*lead, concatenate_datasets([rows, rows.select(range(2))]), label_source="study")
    palm = make_tiny_palm(tmp_path / "palm")
    with pytest.raises(ConfigError, match="'palm' has no pathology experts"):
        evaluate_experts(*palm, rows)


def test_damaged_weights_are_not_taken_for_missing_images(tmp_path: Path, rows: Dataset) -> None:
    model, processor = make_lead_model(tmp_path / "tiny")
    with torch.no_grad():
        model.model.lead_experts.experts.bias_3.fill_(float("nan"))
    with pytest.raises(CheckpointError, match="NaN"):
        image_probabilities(model, processor, [study_image(rows[0])])


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_round_trip(result: ExpertResult, tmp_path: Path) -> None:
    result.save(tmp_path / "experts.json", per_study=tmp_path / "rows.jsonl")
    again = ExpertResult.load(tmp_path / "experts.json")
    assert again == replace(result, per_study=[])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert rows == result.per_study
    text = (tmp_path / "experts.json").read_text()
    assert "NaN" not in text and "per_study" not in text
    with pytest.raises(DataError, match="does not exist"):
        ExpertResult.load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"n": 1}')
    with pytest.raises(DataError, match="not a JSON file written by"):
        ExpertResult.load(tmp_path / "other.json")
