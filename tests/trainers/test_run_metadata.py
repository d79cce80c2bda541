"""`rrg_training.json`: enough to repeat a run, and nothing that names a person, a machine or a secret."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from rrg_hf.trainers import PalmTrainingArguments
from rrg_hf.trainers.run_metadata import hyperparameters, run_metadata, tensors_fingerprint, versions

from .conftest import MakeTrainer, tiny_args


def test_only_what_was_changed_is_recorded_and_what_every_paper_reports(tmp_path: Path) -> None:
    plain = hyperparameters(PalmTrainingArguments(str(tmp_path), stage="align", use_cpu=True))
    assert plain["stage"] == "align" and plain["learning_rate"] == 1e-5
    assert plain["per_device_train_batch_size"] == 8 and plain["gradient_accumulation_steps"] == 1
    assert plain["section"] == "findings" and "adamw" in plain["optim"]
    assert "max_steps" not in plain and "seed" not in plain
    changed = hyperparameters(
        PalmTrainingArguments(
            str(tmp_path), stage="align", use_cpu=True, max_steps=7, lr_scheduler_type="cosine", skip_stages=["mem"]
        )
    )
    assert (changed["max_steps"], changed["lr_scheduler_type"], changed["skip_stages"]) == (7, "cosine", ["mem"])


def test_nothing_private_is_recorded(tmp_path: Path) -> None:
    """Every text setting is filled with a marker; those that may name somebody or some place must not come through."""
    secret = "SECRET"
    private = {
        "run_name": secret,
        "hub_model_id": f"{secret}/model",
        "hub_token": secret,
        "hub_revision": secret,
        "project": secret,
        "trackio_space_id": secret,
        "trackio_bucket_id": secret,
        "resume_from_checkpoint": secret,
    }
    args = tiny_args(tmp_path / secret, "mem", **private)
    recorded = hyperparameters(args)
    assert secret not in json.dumps(recorded)
    assert str(tmp_path) not in json.dumps(recorded)
    names = {item.name for item in dataclasses.fields(args)}
    assert set(private) <= names and set(recorded) <= names


@pytest.mark.parametrize("stage", ["mem", "align", "generate"])
def test_a_run_records_its_data_its_size_and_its_stage(stage: str, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(stage, seed=5)
    metadata = run_metadata(trainer)
    json.dumps(metadata)  # plain data
    assert (metadata["method"], metadata["stage"], metadata["finished"]) == ("palm", stage, False)
    assert metadata["seed"] == 5 and metadata["phantom"] is True
    assert metadata["datasets"]["train_dataset"]["rows"] == 12
    assert metadata["datasets"]["train_dataset"]["sources"] == ["phantom"]
    assert metadata["parameters"] == sum(weight.numel() for weight in trainer.palm.parameters())
    assert 0 < metadata["trained_parameters"] < metadata["parameters"]
    assert metadata["versions"]["torch"] == torch.__version__
    assert ("teacher" in metadata) is (stage == "mem")


def test_versions_leave_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.trainers.run_metadata._PACKAGES", ("torch", "no-such-package"))
    assert set(versions()) == {"python", "torch"}


def test_a_fingerprint_tells_weights_apart_whatever_their_type() -> None:
    torch.manual_seed(0)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    before = tensors_fingerprint(one)
    assert before != tensors_fingerprint(other)
    other.load_state_dict(one.state_dict())
    assert before == tensors_fingerprint(other) and len(before) == 64
    with torch.no_grad():
        other.bias[0] += 1e-3
    assert before != tensors_fingerprint(other)
    halves = nn.Linear(2, 2).to(torch.bfloat16)  # numpy has no bfloat16
    assert tensors_fingerprint(halves) == tensors_fingerprint(halves.float())
