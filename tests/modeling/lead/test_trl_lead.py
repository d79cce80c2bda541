"""Preference training with TRL: images reach policy and reference, and an adapter starts as the model it adapts."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PROCESSOR_CLASSES, perturb

trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")
datasets = pytest.importorskip("datasets")


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True], ids=["reference", "adapter"])
def test_first_step_of_dpo(adapter: bool, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    model = perturb(LEAD_CLASSES["qwen3_vl"].from_pretrained(checkpoints["qwen3_vl"], lead_config=LEAD_TINY))
    processor = PROCESSOR_CLASSES["qwen3_vl"].from_pretrained(checkpoints["qwen3_vl"], image_size=64)
    ramp = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1)))
    black = Image.new("L", (64, 64))
    rows: list[dict[str, Any]] = [
        {
            "images": [image],
            "prompt": [{"role": "user", "content": "Write the findings."}],
            "chosen": [{"role": "assistant", "content": "The heart is normal."}],
            "rejected": [{"role": "assistant", "content": "There is an effusion and opacity."}],
        }
        for image in (ramp, black)
    ]
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, max_length=None, max_steps=1, learning_rate=1e-3,
        per_device_train_batch_size=2, report_to=[], gradient_checkpointing=False, logging_steps=1, save_strategy="no",
    )  # fmt: skip
    lora = peft.LoraConfig(
        r=4, target_modules=r".*language_model\.layers\.\d+\.self_attn\.[qkvo]_proj", modules_to_save=["lead_fusion"]
    )
    trainer = trl.DPOTrainer(
        model=model,
        ref_model=None if adapter else copy.deepcopy(model),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows).cast_column("images", datasets.List(datasets.Image())),
        processing_class=processor,
        peft_config=lora if adapter else None,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["pixel_values"].shape[0] == 4 * 64, "chosen and rejected of two samples, 64 patches each"
    assert ((batch["input_ids"] == 5).sum(-1) == 16).all()
    inputs = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask", "mm_token_type_ids")}
    layout = {k: batch[k] for k in ("pixel_values", "image_grid_thw")}
    policy = trainer.model.eval()
    with torch.no_grad():
        logits = policy(**inputs, **layout).logits
        assert (logits[0] - logits[1]).abs().amax() > 1e-2, "one text, two images"
    before = {name: p.detach().clone() for name, p in policy.named_parameters() if p.requires_grad}
    result = trainer.train()
    assert result.training_loss == pytest.approx(math.log(2), abs=1e-4), "policy and reference start equal"
    moved = {name for name, p in policy.named_parameters() if name in before and not torch.equal(p, before[name])}
    if adapter:
        assert {name for name in before if "lora_B" in name} <= moved
        assert any("lead_fusion.modules_to_save" in name for name in moved)
        assert not any("visual" in name for name in before)
    else:
        assert any("lead_fusion" in name for name in moved) and any("lead_experts" in name for name in moved)
