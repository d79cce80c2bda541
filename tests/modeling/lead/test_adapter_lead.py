"""Loading LEAD adapters: the right base, every tensor, merged or not. The trainer's tests save real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rrg_hf.modeling.lead.adapter_lead import adapter_base, is_adapter, load_adapter
from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, make_batch, perturb


def make_adapter(base: Path, folder: Path, family: str = "qwen3_vl", **lead: Any) -> Any:
    """A random adapter on a tiny backbone, saved as the trainer does."""
    torch.manual_seed(5)
    model = LEAD_CLASSES[family].from_pretrained(base, lead_config={**LEAD_TINY, **lead})
    wrapped = get_peft_model(
        model,
        LoraConfig(
            r=2,
            target_modules=r"model\.language_model\..*\.(q|v)_proj",
            modules_to_save=["lead_experts", "lead_fusion"],
        ),
    )
    perturb(wrapped)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return wrapped.eval()


@pytest.mark.parametrize("family", sorted(LEAD_CLASSES))
def test_round_trip(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    trained = make_adapter(checkpoints[family], tmp_path / "adapter", family, fusion="add")
    batch = make_batch(family, [([(2, 2)], 5), ([(2, 2)], 3)])
    torch.manual_seed(77)
    merged, kept = load_adapter(tmp_path / "adapter"), load_adapter(tmp_path / "adapter", merge=False)
    assert type(merged) is LEAD_CLASSES[family] and merged.config.lead_config.fusion == "add"
    assert not any("lora" in name or "modules_to_save" in name for name in merged.state_dict())
    with torch.no_grad():
        expected = trained(**batch).logits
        for model in (merged, kept):
            found = model(**batch).logits
            assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_what_an_adapter_folder_is(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(checkpoints["qwen3_vl"], tmp_path / "adapter")
    assert is_adapter(tmp_path / "adapter") and not is_adapter(checkpoints["qwen3_vl"]) and not is_adapter(tmp_path)
    assert adapter_base(tmp_path / "adapter") == str(checkpoints["qwen3_vl"])


def test_another_base_can_be_named(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(checkpoints["qwen3_vl"], tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "base_model_name_or_path": None}))
    with pytest.raises(ValueError, match="does not say which model"):
        load_adapter(tmp_path / "adapter")
    load_adapter(tmp_path / "adapter", base=checkpoints["qwen3_vl"])


def test_an_adapter_of_another_shape_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(checkpoints["qwen3_vl"], tmp_path / "adapter")
    file = tmp_path / "adapter" / "config.json"
    content = json.loads(file.read_text())
    content["lead_config"]["gate_rank"] = 3
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="does not fit the model"):
        load_adapter(tmp_path / "adapter")


def test_an_adapter_of_another_architecture_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(checkpoints["qwen3_vl"], tmp_path / "adapter")
    file = tmp_path / "adapter" / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ValueError, match="adapter of 'gpt2', not of a LEAD model"):
        load_adapter(tmp_path / "adapter")
