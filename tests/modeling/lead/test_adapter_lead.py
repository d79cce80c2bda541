"""Loading LEAD adapters: the right base, every tensor, merged or not. The trainer's tests save real ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from rrg_hf.modeling.lead.adapter_lead import adapter_base, is_adapter, load_adapter
from tests.lead_model import make_adapter
from tests.tiny_lead import LEAD_CLASSES, make_batch


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


def test_a_base_that_lacks_weights_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(checkpoints["qwen3_vl"], tmp_path / "adapter")
    shutil.copytree(checkpoints["qwen3_vl"], tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    weights = load_file(file)
    kept = {key: value for key, value in weights.items() if ".layers.1.mlp." not in key}
    assert 0 < len(kept) < len(weights)
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"base .* are incomplete: {len(weights) - len(kept)} are missing"):
        load_adapter(tmp_path / "adapter", base=tmp_path / "base")


def test_it_decodes_as_the_adapter_says_and_not_as_its_base(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(checkpoints["qwen3_vl"], tmp_path / "adapter")
    own = GenerationConfig(num_beams=2, repetition_penalty=1.05, eos_token_id=[0, 1], pad_token_id=0)
    assert load_adapter(tmp_path / "adapter").generation_config.num_beams in (None, 1)
    own.save_pretrained(tmp_path / "adapter")
    found = load_adapter(tmp_path / "adapter").generation_config
    assert (found.num_beams, found.repetition_penalty, found.eos_token_id) == (2, 1.05, [0, 1])


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
