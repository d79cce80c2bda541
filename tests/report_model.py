"""A tiny random PALM whose reports depend on the image and on the indication, for tests of what reads its text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tests.tiny_palm import make_tiny_palm

if TYPE_CHECKING:
    from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor


def make_report_model(path: Path, *, seed: int = 0) -> tuple[PalmForReportGeneration, PalmProcessor]:
    """As `make_tiny_palm`, with strong cross-attention and no early end of text.

    A random decoder with tied embeddings repeats its input, whatever the image shows.
    """
    model, processor = make_tiny_palm(path, seed=seed)
    with torch.no_grad():
        for block in model.model.decoder.h:
            block.crossattention.c_proj.weight.mul_(40)
            block.crossattention.c_attn.weight.mul_(20)
            block.crossattention.q_attn.weight.mul_(20)
        model.model.decoder.wpe.weight.mul_(20)
    model.generation_config.suppress_tokens = [model.config.get_text_config(decoder=True).eos_token_id]
    model.save_pretrained(path)
    return model, processor
