"""Model cards: metadata the Hub accepts, numbers with their protocol, and nothing that should not be there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from rrg_hf.errors import CheckpointError, DataError
from rrg_hf.evaluation import evaluate_reports
from rrg_hf.model_cards import build_card

RECORD: dict[str, Any] = {
    "method": "palm",
    "stage": "generate",
    "global_step": 900,
    "best_metric": 0.912,
    "metric_for_best_model": "rules_micro_f1",
    "parameters": 1_234_567,
    "datasets": {
        "train": {"rows": 5000, "sources": ["phantom"], "fingerprint": "abc"},
        "validation": {"rows": 200, "sources": ["phantom"]},
    },
    "hyperparameters": {"learning_rate": 5e-4, "per_device_train_batch_size": 32, "num_train_epochs": 20},
    "versions": {"python": "3.11", "torch": "2.13"},
    "previous_stage": {
        "stage": "mem",
        "global_step": 300,
        "datasets": {"train": {"rows": 5000, "sources": ["phantom"]}},
        "hyperparameters": {"learning_rate": 1e-4},
        "previous_stage": None,
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "demo-palm"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "palm", "_name_or_path": "/home/somebody/secret"}))
    (path / "rrg_training.json").write_text(json.dumps(RECORD))
    return path


@pytest.fixture(scope="module")
def result() -> Any:
    references = {f"s{at}": "PATIENT TEXT: there is a pleural effusion. No pneumothorax." for at in range(6)}
    predictions = dict.fromkeys(references, "GENERATED TEXT: there is a pleural effusion.")
    return evaluate_reports(predictions, references, bootstrap=20, sources={"phantom"})


EVIDENCE: dict[str, Any] = {
    "metric": "rules_micro_f1",
    "intact": {"value": 0.91, "low": 0.9, "high": 0.92},
    "regions": {
        "left lung": {"score": {"value": 0.7}, "drop": {"value": 0.21, "low": 0.18, "high": 0.24}},
        "background": {"score": {"value": 0.9}, "drop": {"value": 0.01, "low": -0.01, "high": 0.02}},
    },
    "mask_kind": "dataset",
    "n": 200,
    "anatomical_exceeds_background": True,
}


def metadata(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n")[1])


def test_a_full_card(folder: Path, result: Any) -> None:
    card = build_card(
        folder,
        metrics={"test": result, "test_shifted": result.to_dict()},
        evidence=EVIDENCE,
        protocol={"decoding": "greedy"},
        license="apache-2.0",
        model_id="somebody/palm-demo",
    )
    score = result.scores["rules_micro_f1"]
    for text in (
        "# demo-palm",
        "**Research only. Not a medical device.**",
        "**Phantom model.**",
        "Scores on phantom studies say nothing about real radiographs.",
        "It has 1,234,567 parameters.",
        'pipeline("report-generation", model="somebody/palm-demo")',
        "rrg generate somebody/palm-demo images/",
        "| mem | Masked Evidence Modeling (image encoder) | 0.0001 |  |  | 300 |  |",
        "| generate | report generation (all but the prototypes) | 0.0005 | 32 | 20 | 900 | rules_micro_f1 0.912 |",
        "- train: phantom, 5,000 studies",
        "| | test, 6 studies | test_shifted, 6 studies |",
        f"| Rules micro F1 | {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f}) |",
        "- section: findings",
        "- policy: uncertain_as_positive",
        "- decoding: greedy",
        "| left lung | 0.700 | 0.210 (0.180 to 0.240) |",
        "0.910 (0.900 to 0.920) (200 studies)",
        "Covering anatomy costs more than covering background.",
        "## Intended use",
        "## Out of scope",
        "## Limitations",
        "Weights: apache-2.0.",
        "@misc{palm",
        "Learning to See Locally and Align Clinically with Pathology Semantics for Radiology Report Generation",
        "- torch 2.13",
    ):
        assert text in card, text
    assert "More Information Needed" not in card and "<!--" not in card


def test_metadata_is_what_the_hub_reads(folder: Path, result: Any) -> None:
    card = build_card(folder, metrics={"test": result}, license="apache-2.0", name="PALM demo")
    values = metadata(card)
    assert values["pipeline_tag"] == "image-text-to-text" and values["library_name"] == "transformers"
    assert values["license"] == "apache-2.0" and values["language"] == "en"
    assert {"radiology", "chest-x-ray", "report-generation", "palm", "phantom", "rrg_hf"} <= set(values["tags"])
    assert "datasets" not in values
    parsed = ModelCard(card).data
    assert parsed.model_name == "PALM demo"
    found = {entry.metric_name: entry for entry in parsed.eval_results}
    assert found["BLEU-4"].metric_value == pytest.approx(result.scores["bleu_4"]["value"], abs=1e-4)
    assert (found["BLEU-4"].metric_type, found["BLEU-4"].dataset_split) == ("bleu", "test")
    assert (found["Rules micro F1"].metric_type, found["Rules micro F1"].dataset_name) == ("f1", "phantom")


def test_unknown_values_are_comments(folder: Path) -> None:
    (folder / "rrg_training.json").unlink()
    card = build_card(folder)
    for text in ("training stages", "training data", "scores", "evidence test", "license", "versions", "parameters"):
        assert f"<!-- {text}" in card or f"<!-- {text} of the weights" in card or f"number of {text}" in card, text
    values = metadata(card)
    assert "model-index" not in values and "license" not in values and "phantom" not in values["tags"]
    assert "More Information Needed" not in card and "None" not in card and "phantom" not in card.lower()


def test_nothing_private_gets_in(folder: Path, result: Any) -> None:
    card = build_card(folder, metrics=result, evidence=EVIDENCE)
    for text in ("PATIENT", "GENERATED", "somebody", "secret", str(folder.parent), "s0", "fingerprint", "abc"):
        assert text not in card.replace("your-name", ""), text


def test_data_descriptions_and_hub_ids(folder: Path) -> None:
    card = build_card(folder, data={"owner/chest-set": "120 studies | <b>public</b>", "IU X-Ray": "2,955 studies"})
    assert metadata(card)["datasets"] == ["owner/chest-set"]
    assert "- owner/chest-set: 120 studies \\| &lt;b>public&lt;/b>" in card and "- IU X-Ray: 2,955 studies" in card


def test_mixed_sources_make_no_phantom_model(folder: Path) -> None:
    record = {**RECORD, "previous_stage": {"stage": "mem", "datasets": {"train": {"sources": ["iu_xray"]}}}}
    card = build_card(folder, training=record)
    assert "Phantom model" not in card and "phantom" not in metadata(card)["tags"]


def test_scores_that_are_not_numbers_are_left_out(folder: Path) -> None:
    scores = {"bleu_4": {"value": None}, "cider": {"value": float("nan")}, "rouge_l": {"value": 0.25}}
    card = build_card(folder, metrics={"scores": scores, "protocol": {"absent": {"meteor_nltk": "no WordNet"}}})
    assert "| ROUGE-L | 0.250 |" in card and "BLEU-4" not in card and "CIDEr" not in card and "nan" not in card
    assert "- absent: METEOR (nltk): no WordNet" in card
    assert "<!-- scores" in build_card(folder, metrics={"scores": {"bleu_4": {"value": None}}})


def test_bad_input(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        build_card(tmp_path)
    with pytest.raises(DataError, match="'test' have no scores"):
        build_card(folder, metrics={"test": {"n": 3}})
    (folder / "rrg_training.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        build_card(folder)
