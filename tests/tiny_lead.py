"""Tiny random Qwen3-VL, InternVL and Mistral 3 checkpoints in the layouts the real backbones have on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from rrg_hf.modeling.lead import LeadInternVLForCausalLM, LeadMistral3ForCausalLM, LeadQwen3VLForCausalLM

LEAD_CLASSES = {
    "qwen3_vl": LeadQwen3VLForCausalLM,
    "internvl": LeadInternVLForCausalLM,
    "mistral3": LeadMistral3ForCausalLM,
}
PLAIN_CLASSES = {
    "qwen3_vl": Qwen3VLForConditionalGeneration,
    "internvl": InternVLForConditionalGeneration,
    "mistral3": Mistral3ForConditionalGeneration,
}
VOCAB_SIZE, IMAGE_TOKEN, PAD_TOKEN, EOS_TOKEN = 120, 5, 0, 1
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": PAD_TOKEN,
    "eos_token_id": EOS_TOKEN,
    # far above the usual 0.02, so that a tiny model's logits differ clearly from token to token
    "initializer_range": 0.25,
}
LEAD_TINY: dict[str, Any] = {"expert_hidden_size": 8, "projection_rank": 6, "gate_rank": 4}


def backbone_config(family: str, **text: Any) -> Any:
    """Configuration of a tiny backbone; keyword arguments change the text model's."""
    if family == "qwen3_vl":
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        return Qwen3VLConfig(
            text_config={**_TEXT, "rope_parameters": rope, **text},
            vision_config={
                "depth": 3,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "patch_size": 8,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "out_hidden_size": 64,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
                "initializer_range": 0.2,
            },
            image_token_id=IMAGE_TOKEN,
            video_token_id=6,
            vision_start_token_id=7,
            vision_end_token_id=8,
        )
    if family == "internvl":
        return InternVLConfig(
            text_config={"model_type": "qwen3", **_TEXT, **text},
            vision_config={
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "image_size": [32, 32],
                "patch_size": [8, 8],
                "initializer_range": 0.2,
            },
            image_token_id=IMAGE_TOKEN,
            image_seq_length=4,
            tie_word_embeddings=False,
        )
    return Mistral3Config(
        text_config={
            "model_type": "ministral3",
            **_TEXT,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
            **text,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "intermediate_size": 64,
            "image_size": 64,
            "patch_size": 8,
            "initializer_range": 0.2,
        },
        image_token_index=IMAGE_TOKEN,
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )


def make_backbone(family: str, path: Path, seed: int = 0) -> Path:
    """Save a tiny random backbone as its plain class does."""
    torch.manual_seed(seed)
    model = PLAIN_CLASSES[family](backbone_config(family))
    model.generation_config.pad_token_id = PAD_TOKEN
    model.generation_config.eos_token_id = EOS_TOKEN
    model.save_pretrained(path)
    return path


def make_batch(family: str, rows: list[tuple[list[tuple[int, int]], int]], seed: int = 0, pad: str = "left") -> dict:
    """Inputs for a list of (image sizes in merged tokens, number of text tokens), padded on one side.

    InternVL's images are all 32 x 32 pixels (2 x 2 merged tokens) whatever size is named.
    """
    generator = torch.Generator().manual_seed(seed)
    ids, pixels, grids, sizes = [], [], [], []
    for images, length in rows:
        row = torch.randint(10, VOCAB_SIZE, (3,), generator=generator).tolist()
        for height, width in images:
            if family == "internvl":
                height = width = 2
            row += [7, *[IMAGE_TOKEN] * (height * width), 8]
            grids.append([1, 2 * height, 2 * width])
            sizes.append([16 * height, 16 * width])
            if family == "qwen3_vl":
                pixels.append(torch.randn(4 * height * width, 3 * 2 * 8 * 8, generator=generator))
            else:
                pixels.append(torch.randn(3, 16 * height, 16 * width, generator=generator))
        row += torch.randint(10, VOCAB_SIZE, (length,), generator=generator).tolist()
        ids.append(row)
    longest = max(map(len, ids))
    padding = [[PAD_TOKEN] * (longest - len(row)) for row in ids]
    mask = [[1] * len(row) for row in ids]
    off = [[0] * len(row) for row in padding]
    if pad == "left":
        ids = [p + row for p, row in zip(padding, ids, strict=True)]
        mask = [p + row for p, row in zip(off, mask, strict=True)]
    else:
        ids = [row + p for p, row in zip(padding, ids, strict=True)]
        mask = [row + p for p, row in zip(off, mask, strict=True)]
    batch: dict[str, Any] = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    if family == "qwen3_vl":
        batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE_TOKEN).int()
    if not pixels:
        return batch
    if family == "qwen3_vl":
        return {**batch, "pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor(grids)}
    if family == "internvl":
        return {**batch, "pixel_values": torch.stack(pixels)}
    height, width = max(s[0] for s in sizes), max(s[1] for s in sizes)
    padded = torch.zeros(len(pixels), 3, height, width)
    for index, image in enumerate(pixels):
        padded[index, :, : image.shape[1], : image.shape[2]] = image
    return {**batch, "pixel_values": padded, "image_sizes": torch.tensor(sizes)}


def make_tokenizer(special_tokens: list[str], eos: str, pad: str, chat_template: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a few report sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = ["The heart is normal. No pleural effusion.", "There is a right effusion and opacity. user assistant"]
    tokenizer.train_from_iterator(text * 10, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=pad, additional_special_tokens=special_tokens
    )
    fast.chat_template = chat_template
    return fast


def perturb(model: torch.nn.Module, seed: int = 1, scale: float = 0.3) -> torch.nn.Module:
    """Give LEAD's parts weights that do something, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lead_" in name:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model
