"""Tiny random Qwen3-VL, InternVL and Mistral 3 checkpoints in the layouts the real backbones have on the Hub."""

from __future__ import annotations

import json
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

from rrg_hf.modeling.lead import (
    LeadInternVLForCausalLM,
    LeadInternVLProcessor,
    LeadMistral3ForCausalLM,
    LeadMistral3Processor,
    LeadQwen3VLForCausalLM,
    LeadQwen3VLProcessor,
)

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
PROCESSOR_CLASSES = {
    "qwen3_vl": LeadQwen3VLProcessor,
    "internvl": LeadInternVLProcessor,
    "mistral3": LeadMistral3Processor,
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


# The ids that `backbone_config` names: 0 pads, 1 ends, 5 is the image, 7 and 8 (if any) stand around it.
SPECIAL_TOKENS = {
    "qwen3_vl": ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|image_pad|>",
                 "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "internvl": ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<quad>", "</quad>", "<IMG_CONTEXT>", "<video>",
                 "<img>", "</img>"],
    "mistral3": ["<pad>", "</s>", "<s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]",
                 "[/SYSTEM_PROMPT]"],
}  # fmt: skip
# Written after what the backbones' templates print; the first two end a turn with a newline that nobody generates.
CHAT_TEMPLATES = {
    "qwen3_vl": """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "internvl": """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image' %}{{ '<IMG_CONTEXT>\\n' }}{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "mistral3": """{{- bos_token }}
{%- if messages[0].role != 'system' %}[SYSTEM_PROMPT]You are a model.[/SYSTEM_PROMPT]{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]
{%- elif message.role == 'user' %}[INST]{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == 'image' %}[IMG]{% else %}{{ part.text }}{% endif %}{% endfor %}
{%- endif %}[/INST]{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}""",
}
_PIXELS = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "do_rescale": True,
    "do_normalize": True,
    "do_resize": True,
}
_IMAGE_PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 8,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
    },
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "processor_class": "InternVLProcessor",
        "size": {"height": 32, "width": 32},
        "crop_to_patches": False,
        "max_patches": 3,
    },
    "mistral3": {
        "image_processor_type": "PixtralImageProcessorFast",
        "patch_size": {"height": 8, "width": 8},
        "size": {"longest_edge": 64},
        "do_convert_rgb": True,
    },
}


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a few report sentences."""
    special_tokens = SPECIAL_TOKENS[family]
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
    named: dict[str, Any] = {"bos_token": "<s>"} if family == "mistral3" else {}
    if family == "internvl":
        names = ("context_image_token", "start_image_token", "end_image_token", "video_token")
        named["extra_special_tokens"] = dict(zip(names, ("<IMG_CONTEXT>", "<img>", "</img>", "<video>"), strict=True))
    # padding_side as Qwen's files have it: wrong for generation
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=special_tokens[0],
        eos_token=special_tokens[1],
        padding_side="right",
        **named,
    )


def make_processor_files(family: str, path: Path) -> Path:
    """Tokenizer, image processor and chat template in the files where each family's Hub folders have them."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(family)
    image_processor = {**_PIXELS, **_IMAGE_PROCESSORS[family]}
    video_processor = {"video_processor_type": f"{family}VideoProcessor"}  # needs torchvision, so nobody may load it
    files: dict[str, Any] = {}
    if family == "qwen3_vl":
        files["preprocessor_config.json"] = image_processor
        files["video_preprocessor_config.json"] = video_processor
        files["chat_template.json"] = {"chat_template": CHAT_TEMPLATES[family]}
    elif family == "internvl":
        files["preprocessor_config.json"] = image_processor
        files["video_preprocessor_config.json"] = video_processor
        files["processor_config.json"] = {"image_seq_length": 4, "processor_class": "InternVLProcessor"}
        tokenizer.chat_template = CHAT_TEMPLATES[family]
    else:
        files["processor_config.json"] = {
            "processor_class": "PixtralProcessor",
            "image_processor": image_processor,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "image_token": "[IMG]",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        }
        (path / "chat_template.jinja").write_text(CHAT_TEMPLATES[family])
    tokenizer.save_pretrained(path)
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


def make_checkpoint(family: str, path: Path, seed: int = 0) -> Path:
    """A tiny backbone with its processor's files: all that a Hub folder holds."""
    make_processor_files(family, path)
    torch.manual_seed(seed)
    model = PLAIN_CLASSES[family](backbone_config(family, vocab_size=400))
    model.generation_config.pad_token_id = PAD_TOKEN
    model.generation_config.eos_token_id = EOS_TOKEN
    model.save_pretrained(path)
    return path


def perturb(model: torch.nn.Module, seed: int = 1, scale: float = 0.3) -> torch.nn.Module:
    """Give LEAD's parts weights that do something, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lead_" in name:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model
