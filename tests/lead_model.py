"""A tiny random LEAD whose experts and gates depend on the image, saved as a trainer would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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
