"""What trains in LEAD's modes and how it is stored; the trainer's tests run every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rrg_hf.errors import CheckpointError, ConfigError
from rrg_hf.trainers.lead_adaptation import (
    load_adapter_weights,
    lora_targets,
    merged_state,
    trained_modules,
)
from tests.trainers.conftest import MakeLeadTrainer


@pytest.mark.parametrize(
    ("family", "mode", "lead", "expected"),
    [
        ("qwen3_vl", "hybrid", {}, ["lead_experts", "lead_fusion", "visual"]),
        ("internvl", "vision", {}, ["lead_experts", "lead_fusion", "vision_tower", "multi_modal_projector"]),
        ("mistral3", "llm", {}, ["lead_experts", "lead_fusion"]),
        ("qwen3_vl", "llm", {"fusion": "none"}, ["lead_experts"]),
        ("qwen3_vl", "vision", {"fusion": "none", "expert_loss_weight": 0.0}, ["visual"]),
        ("qwen3_vl", "llm", {"fusion": "gate", "expert_loss_weight": 0.0}, ["lead_experts", "lead_fusion"]),
    ],
)
def test_modules_that_train_whole(
    family: str, mode: str, lead: dict[str, Any], expected: list[str], make_lead_trainer: MakeLeadTrainer
) -> None:
    trainer = make_lead_trainer(family, lead=lead, training_mode="full")
    assert trained_modules(trainer.lead, mode) == expected


def test_merged_weights_are_peft_own(make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(max_steps=2)
    trainer.train()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    merged = merged_state(trainer.model)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]), "merging must leave the adapter as it is"
    expected = trainer.model.merge_and_unload().state_dict()
    assert set(merged) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(merged[name], value, rtol=1e-5, atol=1e-6)


def test_an_adapter_file_that_is_missing_or_damaged(make_lead_trainer: MakeLeadTrainer, tmp_path: Any) -> None:
    trainer = make_lead_trainer()
    with pytest.raises(CheckpointError, match="has no readable adapter"):
        load_adapter_weights(trainer.model, tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="has no readable adapter"):
        load_adapter_weights(trainer.model, tmp_path)


def test_lora_patterns_that_adapt_the_wrong_thing_are_refused(make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(training_mode="frozen")
    found = lora_targets(trainer.lead, None)
    assert len(found) == 12 and all(name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")) for name in found)
    for pattern, message in (
        (r"model\.layers\.\d+\.attention", "matches no module"),
        (r".*(qkv|q_proj)", "outside the language model"),
        (r"model\.language_model\.layers\.0\.self_attn", "no linears"),
        (r"model\.(", "no regular expression"),
    ):
        with pytest.raises(ConfigError, match=message):
            lora_targets(trainer.lead, pattern)
