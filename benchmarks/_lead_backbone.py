"""The small "pretrained" backbone of `benchmarks/lead_phantom.py`: a plain Qwen3-VL folder that every row starts from.

Real backbones come with a visual tower that has seen images and a language model that writes fluently, from what such
texts usually say. So does this one: its tower has learnt to see drawn findings (supervised, phantoms of another seed),
its language model has read phantom reports, without images. Nothing connects the two: the mergers are random, and
reading the image into the report is what the compared rows have to learn.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from rrg_hf.data.phantom import phantom_study
from rrg_hf.demo.pretrain_encoder import DRAWN, EncoderRecipe, batches, draw
from rrg_hf.modeling.lead import LeadQwen3VLProcessor
from rrg_hf.observations import OBSERVATIONS

logger = logging.getLogger("lead_phantom")

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|im_start|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)
PAD, END, IMAGE, VIDEO, IMAGE_START, IMAGE_END = 0, 1, 3, 4, 5, 6
PROMPT = "Findings:"
CHAT_TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


@dataclass(frozen=True)
class BackboneRecipe:
    """Sizes and schedules. The seed differs from the table's, so that no study of a row was seen before."""

    image_size: int = 96
    patch_size: int = 12
    vision_size: int = 128
    vision_layers: int = 4
    text_size: int = 128
    text_layers: int = 4
    heads: int = 4
    vocab_size: int = 1000
    tower_studies: int = 8000
    tower_epochs: int = 10
    tower_batch_size: int = 64
    tower_learning_rate: float = 2e-3
    text_studies: int = 4000
    text_epochs: int = 5
    text_batch_size: int = 32
    text_learning_rate: float = 2e-3
    seed: int = 77_000

    @property
    def grid(self) -> int:
        return self.image_size // self.patch_size


def backbone_config(recipe: BackboneRecipe, vocab_size: int) -> Qwen3VLConfig:
    """Qwen3-VL's architecture, small: grouped queries, M-RoPE, two DeepStack levels, tied embeddings."""
    head = recipe.text_size // recipe.heads
    part = head // 8
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [head // 2 - 2 * part, part, part],
        "mrope_interleaved": True,
    }
    middle = recipe.vision_layers // 2
    return Qwen3VLConfig(
        text_config={
            "vocab_size": vocab_size,
            "hidden_size": recipe.text_size,
            "intermediate_size": 2 * recipe.text_size,
            "num_hidden_layers": recipe.text_layers,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.heads // 2,
            "head_dim": head,
            "max_position_embeddings": 512,
            "rope_parameters": rope,
            "tie_word_embeddings": True,
            "pad_token_id": PAD,
            "eos_token_id": END,
        },
        vision_config={
            "depth": recipe.vision_layers,
            "hidden_size": recipe.vision_size,
            "intermediate_size": 2 * recipe.vision_size,
            "num_heads": recipe.heads,
            "patch_size": recipe.patch_size,
            "spatial_merge_size": 2,
            "temporal_patch_size": 1,
            "out_hidden_size": recipe.text_size,
            "num_position_embeddings": recipe.grid**2,
            "deepstack_visual_indexes": [middle - 1, middle],
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=IMAGE_START,
        vision_end_token_id=IMAGE_END,
        tie_word_embeddings=True,
    )


def learn_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE learnt from the language model's reading."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL_TOKENS[PAD], eos_token=SPECIAL_TOKENS[END]
    )


def write_processor(folder: Path, tokenizer: PreTrainedTokenizerFast, recipe: BackboneRecipe) -> None:
    """The processor's files, in the layout of Qwen3-VL's folders on the Hub."""
    tokenizer.save_pretrained(folder)
    side = recipe.image_size**2
    image_processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": recipe.patch_size,
        "temporal_patch_size": 1,
        "merge_size": 2,
        "size": {"shortest_edge": side, "longest_edge": side},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image_processor))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))


def patch_rows(images: torch.Tensor, patch: int) -> torch.Tensor:
    """uint8 (B, H, W) to what Qwen3-VL's image processor makes of them: (B * patches, 3 * patch * patch).

    Patches of one merged token lie together.
    """
    count, size = len(images), images.shape[-1]
    grid = size // patch // 2
    pixels = (images.float() / 255 - 0.5) / 0.5
    rows = pixels.view(count, grid, 2, patch, grid, 2, patch).permute(0, 1, 4, 2, 5, 3, 6)
    return rows.reshape(-1, 1, patch * patch).expand(-1, 3, -1).flatten(1)


def _train(
    parameters: list[nn.Parameter],
    count: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    say: Callable[[int, float], None],
) -> None:
    optimizer = torch.optim.AdamW(parameters, learning_rate, weight_decay=0.02)
    steps = count // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=epochs * steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        total = 0.0
        for index in batches(count, batch_size, generator):
            loss = loss_of(index)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        say(epoch, total / steps)


def pretrain_tower(model: Qwen3VLForConditionalGeneration, recipe: BackboneRecipe) -> dict[str, float]:
    """Teach the tower to name the drawn observations and sides (mean over patches) and to mark their patches.

    The two linear heads are thrown away.

    Returns:
        F1 of "present" per drawn observation on 500 unseen phantoms, and "macro".
    """
    drawing = EncoderRecipe(image_size=recipe.image_size, patch_size=recipe.patch_size, seed=recipe.seed)
    count, held_out = recipe.tower_studies, 500
    starts = range(0, count + held_out, 500)
    parts = [draw((start, min(start + 500, count + held_out), drawing)) for start in starts]
    columns = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    images, present, marked = columns
    half = recipe.grid // 2
    # (N, C, grid, grid) to (N, patches, C) in the processor's order
    marked = marked.view(len(marked), -1, half, 2, half, 2).permute(0, 2, 4, 3, 5, 1).flatten(1, 4)
    tower = model.model.visual
    image_head, patch_head = nn.Linear(recipe.vision_size, 3 * len(DRAWN)), nn.Linear(recipe.vision_size, len(DRAWN))
    kept = [p for name, p in tower.named_parameters() if "merger" not in name]
    positive_weight = torch.tensor(drawing.patch_positive_weight)

    def forward(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = torch.tensor([[1, recipe.grid, recipe.grid]] * len(batch))
        hidden = tower(patch_rows(batch, recipe.patch_size), grid_thw=sizes).last_hidden_state
        hidden = hidden.view(len(batch), recipe.grid**2, -1)
        return image_head(hidden.mean(1)).unflatten(-1, (3, -1)), patch_head(hidden)

    def loss_of(index: torch.Tensor) -> torch.Tensor:
        named, located = forward(images[index])
        loss = F.binary_cross_entropy_with_logits(named, present[index])
        patch_loss = F.binary_cross_entropy_with_logits(located, marked[index].float(), pos_weight=positive_weight)
        return loss + drawing.patch_loss_weight * patch_loss

    @torch.no_grad()
    def score() -> dict[str, float]:
        predicted = torch.cat([forward(part)[0][:, 0] > 0 for part in images[count:].split(100)]).float()
        truth = present[count:, 0]
        f1 = 2 * (predicted * truth).sum(0) / (predicted.sum(0) + truth.sum(0)).clamp(min=1)
        return {**dict(zip(DRAWN, f1.tolist(), strict=True)), "macro": float(f1.mean())}

    def say(epoch: int, loss: float) -> None:
        logger.info("tower epoch %d: loss %.4f, macro-F1 %.3f", epoch, loss, score()["macro"])

    parameters = [*kept, *image_head.parameters(), *patch_head.parameters()]
    rate, size = recipe.tower_learning_rate, recipe.tower_batch_size
    _train(parameters, count, recipe.tower_epochs, size, rate, recipe.seed, loss_of, say)
    return score()


def pretrain_text(
    model: Qwen3VLForConditionalGeneration,
    processor: LeadQwen3VLProcessor,
    texts: Sequence[tuple[str | None, str]],
    recipe: BackboneRecipe,
) -> float:
    """Teach the language model to write reports from indications, without images; returns the last epoch's loss."""
    last = float("nan")

    def loss_of(index: torch.Tensor) -> torch.Tensor:
        chosen = [texts[at] for at in index.tolist()]
        inputs = processor.build_inputs(indication=[i for i, _ in chosen], report=[report for _, report in chosen])
        return model(**inputs, use_cache=False).loss

    def say(epoch: int, loss: float) -> None:
        nonlocal last
        last = loss
        logger.info("language model epoch %d: loss %.4f", epoch, loss)

    parameters = list(model.model.language_model.parameters())
    rate, size = recipe.text_learning_rate, recipe.text_batch_size
    _train(parameters, len(texts), recipe.text_epochs, size, rate, recipe.seed, loss_of, say)
    return last


def write_backbone(folder: Path, recipe: BackboneRecipe) -> Path:
    """The pretrained backbone with its processor's files, written whole or not at all; one that is there is kept."""
    if (folder / "config.json").is_file():
        return folder
    start = time.perf_counter()
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    studies = (
        phantom_study(index, seed=recipe.seed + 1, size=64) for index in range(recipe.text_studies)
    )  # only their texts
    texts = [(study.indication, study.findings) for study in studies]
    reading = [text for pair in texts for text in pair if text]
    tokenizer = learn_tokenizer([*reading, f"{PROMPT} user assistant {', '.join(OBSERVATIONS)}"], recipe.vocab_size)
    write_processor(temporary, tokenizer, recipe)
    processor = LeadQwen3VLProcessor.from_pretrained(temporary, image_size=recipe.image_size, prompt=PROMPT)
    torch.manual_seed(recipe.seed)
    model = Qwen3VLForConditionalGeneration(backbone_config(recipe, len(tokenizer)))
    tower = pretrain_tower(model, recipe)
    loss = pretrain_text(model, processor, texts, recipe)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, END
    model.save_pretrained(temporary)
    report: dict[str, Any] = {
        "tower_f1": tower,
        "language_model_loss": loss,
        "seconds": time.perf_counter() - start,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    (temporary / "pretraining.json").write_text(json.dumps(report, indent=1))
    temporary.replace(folder)
    return folder
