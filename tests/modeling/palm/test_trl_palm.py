"""PALM in TRL's DPO trainer, unchanged: shape of the model, loss at the first step, weights that move."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from tests.tiny_palm import SENTENCES


@pytest.fixture
def pairs(processor: PalmProcessor, radiographs: list[np.ndarray]) -> Any:
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature
    from datasets import List as ListFeature

    token = processor.tokenizer.bos_token
    end = processor.tokenizer.eos_token
    rows = [
        {
            "images": [Image.fromarray(image)],
            "prompt": token,
            "chosen": SENTENCES[index] + end,
            "rejected": SENTENCES[index + 3] + end,
        }
        for index, image in enumerate(radiographs)
    ]
    text = Value("string")
    features = {"images": ListFeature(ImageFeature()), "prompt": text, "chosen": text, "rejected": text}
    return Dataset.from_list(rows, features=Features(features))


def test_decoder_only_shape(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    """What TRL relies on: it calls the base model and multiplies with the head itself."""
    assert model.base_model is model.model
    assert model.get_output_embeddings() is model.lm_head
    assert model.config.get_text_config().vocab_size == model.lm_head.out_features
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "pixel_values")}
    hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
    assert torch.equal(model.lm_head(hidden), model(**inputs).logits)


@pytest.mark.slow
@pytest.mark.parametrize("peft", [False, True])
def test_first_step_is_log_two(
    model: PalmForReportGeneration, processor: PalmProcessor, pairs: Any, tmp_path: Path, peft: bool
) -> None:
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    before = copy.deepcopy(model.state_dict())
    arguments = DPOConfig(
        output_dir=str(tmp_path),
        bf16=False,
        use_cpu=True,
        max_length=None,
        per_device_train_batch_size=3,
        max_steps=2,
        logging_steps=1,
        learning_rate=1e-2,
        report_to="none",
        save_strategy="no",
        gradient_checkpointing=True,
    )
    trainer = DPOTrainer(
        model=model,
        ref_model=None if peft else copy.deepcopy(model),
        args=arguments,
        train_dataset=pairs,
        processing_class=processor,
        peft_config=LoraConfig(target_modules=["c_attn", "q_attn"], fan_in_fan_out=True) if peft else None,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert math.isclose(losses[0], math.log(2), abs_tol=1e-3)
    assert losses[1] < losses[0]
    if not peft:
        after = model.state_dict()
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        assert any("crossattention" in key for key in changed) and any("vision_model" in key for key in changed)
