"""Tiny random LEAD models and adapters whose experts and gates depend on the image, saved as a trainer would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PROCESSOR_CLASSES, make_checkpoint, perturb

IMAGE_SIZE = 64


def make_lead_model(path: Path, family: str = "qwen3_vl", **lead: Any) -> tuple[Any, Any]:
    """Model and processor; keyword arguments change the `lead_config`. Both are saved into `path`."""
    plain = make_checkpoint(family, path.with_name(f"{path.name}_plain"))
    torch.manual_seed(0)
    cls = LEAD_CLASSES[family]
    model = perturb(cls.from_pretrained(plain, lead_config={**LEAD_TINY, **lead})).eval()
    processor = PROCESSOR_CLASSES[family].from_pretrained(plain, image_size=IMAGE_SIZE, prompt="Write.")
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return model, processor


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
