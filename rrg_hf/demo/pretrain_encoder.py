"""The recipe of the small encoder that ships with the demo: `python -m rrg_hf.demo.pretrain_encoder --out DIR`.

It plays the role of the paper's chest-X-ray DINOv2. It is supervised, not self-supervised, and it has only ever seen
phantoms (drawn with another seed than the demo's): a linear head on [CLS] names the drawn observations and their
sides, a linear head on the patch tokens marks where each one lies. Both heads are thrown away. Half of the images are
partly covered, as DINOv2's own pretraining covers patches; what is covered counts as absent.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

from ..data.phantom import phantom_study
from ..observations import NO_FINDING, OBSERVATIONS

logger = logging.getLogger(__name__)

DRAWN = tuple(name for name in OBSERVATIONS if name != NO_FINDING)


@dataclass(frozen=True)
class EncoderRecipe:
    """Sizes and schedule. The seed must differ from the demo's, so that no demo study was seen in pretraining."""

    image_size: int = 112
    patch_size: int = 14
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    mlp_ratio: int = 2
    studies: int = 16_000
    epochs: int = 14
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    covered: float = 0.5  # share of images with a covered part
    patch_loss_weight: float = 3.0
    patch_positive_weight: float = 10.0  # most patches hold no finding
    seed: int = 77_000


def image_normalisation() -> tuple[float, float]:
    """Mean and standard deviation of phantom pixels in [0, 1]; one value for all three channels."""
    return 0.5, 0.25


def targets(masks: dict[str, np.ndarray], size: int, patch: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets of one study from its drawn masks.

    Args:
        masks: observation name to bool (H, W).
        size, patch: image and patch size in pixels.

    Returns:
        image targets (3, C): present at all, on the image's left half, on its right half;
        patch targets (C, size // patch, size // patch): covered fraction of each patch.
    """
    grid = size // patch
    image = np.zeros((3, len(DRAWN)), dtype=np.float32)
    patches = np.zeros((len(DRAWN), grid, grid), dtype=np.float32)
    for index, name in enumerate(DRAWN):
        mask = masks.get(name)
        if mask is None or not mask.any():
            continue
        left, right = mask[:, : size // 2].sum(), mask[:, size // 2 :].sum()
        total = left + right
        image[:, index] = 1.0, left > 0.2 * total, right > 0.2 * total
        patches[index] = mask.reshape(grid, patch, grid, patch).mean((1, 3))
    return image, patches


def draw(arguments: tuple[int, int, EncoderRecipe]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Studies [start, stop) as stacked arrays; one call a worker."""
    start, stop, recipe = arguments
    images, image_targets, patch_targets = [], [], []
    for index in range(start, stop):
        study = phantom_study(index, seed=recipe.seed, split="train", size=recipe.image_size)
        masks = {name: study.mask(name) for name in study.finding_masks}
        image, patch = targets(masks, recipe.image_size, recipe.patch_size)
        images.append(study.image)
        image_targets.append(image)
        patch_targets.append(patch.astype(np.float16))
    return np.stack(images), np.stack(image_targets), np.stack(patch_targets)


def draw_all(recipe: EncoderRecipe, count: int, first: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`count` studies drawn on all cores: uint8 (N, H, W), (N, 3, C) and float16 (N, C, grid, grid)."""
    step = 500
    jobs = [(i, min(i + step, first + count), recipe) for i in range(first, first + count, step)]
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts = list(pool.map(draw, jobs))
    images, image_targets, patch_targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    return torch.from_numpy(images), torch.from_numpy(image_targets), torch.from_numpy(patch_targets)


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    order = torch.randperm(count, generator=generator)
    for start in range(0, count - size + 1, size):
        yield order[start : start + size]


def visible_part(count: int, size: int, covered: float, generator: torch.Generator) -> torch.Tensor:
    """Which pixels of each image stay visible: all, or all but a box, but random patches, or only an ellipse.

    Args:
        count: images.
        size: of an image, pixels.
        covered: probability that an image is covered at all.
        generator: of the choices.

    Returns:
        bool (count, size, size).
    """
    draws = torch.rand(count, 8, generator=generator)
    axis = (torch.arange(size) + 0.5) / size
    y, x = axis[None, :, None], axis[None, None, :]
    column = draws[:, :, None, None]
    half_height, half_width = 0.08 + 0.22 * column[:, 0], 0.08 + 0.22 * column[:, 1]
    outside_box = ((y - column[:, 2]).abs() > half_height) | ((x - column[:, 3]).abs() > half_width)
    cells = 8
    keep = torch.rand(count, 1, cells, cells, generator=generator) > 0.1 + 0.4 * draws[:, 4, None, None, None]
    patches = nn.functional.interpolate(keep.float(), size=(size, size), mode="nearest")[:, 0] > 0.5
    radii = 0.28 + 0.2 * column[:, 5], 0.3 + 0.2 * column[:, 6]
    centre = 0.4 + 0.2 * column[:, 2], 0.45 + 0.1 * column[:, 3]
    ellipse = ((y - centre[0]) / radii[0]) ** 4 + ((x - centre[1]) / radii[1]) ** 4 < 1
    kind = (draws[:, 7] / max(covered, 1e-9) * 3).long()  # 0, 1, 2; 3 and more are left whole
    visible = torch.ones(count, size, size, dtype=torch.bool)
    for number, shape in enumerate((outside_box, patches, ellipse)):
        visible[kind == number] = shape[kind == number]
    return visible


def cover(
    pixels: torch.Tensor, image_targets: torch.Tensor, patch_targets: torch.Tensor, visible: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fill what is not visible with the image's mean, and take what lies there out of the targets.

    Args:
        pixels: (B, 3, H, W), normalised.
        image_targets: (B, 3, C): present at all, on the image's left half, on its right half.
        patch_targets: (B, C, grid, grid).
        visible: bool (B, H, W).

    Returns:
        The three, covered. An observation whose larger part is covered (of a half: in that half) is absent.
    """
    mean = pixels.mean((2, 3), keepdim=True)
    pixels = torch.where(visible[:, None], pixels, mean)
    grid = patch_targets.shape[-1]
    share = nn.functional.adaptive_avg_pool2d(visible[:, None].float(), grid)
    seen = patch_targets * share
    halves = (slice(None), slice(None, grid // 2), slice(grid - grid // 2, None))
    kept = torch.stack(
        [seen[..., half].sum((2, 3)) >= 0.5 * patch_targets[..., half].sum((2, 3)).clamp(min=1e-6) for half in halves],
        dim=1,
    )
    return pixels, image_targets * kept, seen


class EncoderWithHeads(nn.Module):
    """DINOv2-shaped encoder with the two linear heads of the pretraining."""

    def __init__(self, recipe: EncoderRecipe) -> None:
        super().__init__()
        self.encoder = Dinov2Model(
            Dinov2Config(
                image_size=recipe.image_size,
                patch_size=recipe.patch_size,
                hidden_size=recipe.hidden_size,
                num_hidden_layers=recipe.num_layers,
                num_attention_heads=recipe.num_heads,
                mlp_ratio=recipe.mlp_ratio,
                layerscale_value=1.0,
            )
        )
        self.image_head = nn.Linear(recipe.hidden_size, 3 * len(DRAWN))
        self.patch_head = nn.Linear(recipe.hidden_size, len(DRAWN))

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, 3, H, W) -> image logits (B, 3, C), patch logits (B, C, grid, grid)."""
        hidden = self.encoder(pixels).last_hidden_state
        grid = int((hidden.shape[1] - 1) ** 0.5)
        image = self.image_head(hidden[:, 0]).unflatten(-1, (3, -1))
        patch = self.patch_head(hidden[:, 1:]).transpose(1, 2).unflatten(-1, (grid, grid))
        return image, patch


def normalise(images: torch.Tensor) -> torch.Tensor:
    """uint8 (B, H, W) -> float (B, 3, H, W), as the saved image processor does it."""
    mean, std = image_normalisation()
    return ((images.float() / 255 - mean) / std)[:, None].expand(-1, 3, -1, -1)


@torch.no_grad()
def score(model: EncoderWithHeads, images: torch.Tensor, image_targets: torch.Tensor) -> dict[str, float]:
    """F1 of "present" per observation at threshold 0.5, and micro-F1."""
    model.eval()
    predicted = torch.cat([(model(normalise(part))[0][:, 0] > 0).float() for part in images.split(256)])
    truth = image_targets[:, 0]
    hits, said, there = (predicted * truth).sum(0), predicted.sum(0), truth.sum(0)
    result = {
        name: float(2 * h / (s + t).clamp(min=1)) for name, h, s, t in zip(DRAWN, hits, said, there, strict=True)
    }
    result["micro"] = float(2 * hits.sum() / (said.sum() + there.sum()))
    model.train()
    return result


def train(recipe: EncoderRecipe) -> tuple[Dinov2Model, dict[str, float]]:
    """Draw, train, and return the encoder with its scores on 1,000 unseen phantoms."""
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    images, image_targets, patch_targets = draw_all(recipe, recipe.studies)
    held_out = draw_all(recipe, 1000, first=10_000_000)
    model = EncoderWithHeads(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * (recipe.studies // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=steps, pct_start=0.05)
    image_loss = nn.BCEWithLogitsLoss()
    patch_loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(recipe.patch_positive_weight))
    start = time.perf_counter()
    for epoch in range(recipe.epochs):
        total = 0.0
        for index in batches(recipe.studies, recipe.batch_size, generator):
            visible = visible_part(len(index), recipe.image_size, recipe.covered, generator)
            pixels, present, located = cover(
                normalise(images[index]), image_targets[index], patch_targets[index].float(), visible
            )
            image_logits, patch_logits = model(pixels)
            loss = image_loss(image_logits, present)
            loss += recipe.patch_loss_weight * patch_loss(patch_logits, located)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        scores = score(model, held_out[0], held_out[1])
        mean_loss = total / (recipe.studies // recipe.batch_size)
        logger.info(
            "epoch %d loss %.4f micro-F1 %.3f %.0f s", epoch, mean_loss, scores["micro"], time.perf_counter() - start
        )
    return model.encoder, score(model, held_out[0], held_out[1])


def save(encoder: Dinov2Model, recipe: EncoderRecipe, scores: dict[str, float], folder: Path) -> None:
    """config.json, model.safetensors, preprocessor_config.json and a card with the recipe and the scores."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    encoder.eval().save_pretrained(temporary)
    mean, std = image_normalisation()
    BitImageProcessorPil(
        size={"height": recipe.image_size, "width": recipe.image_size},
        do_center_crop=False,
        image_mean=[mean] * 3,
        image_std=[std] * 3,
    ).save_pretrained(temporary)
    settings = "\n".join(f"| {key} | {value} |" for key, value in asdict(recipe).items())
    table = "\n".join(f"| {name} | {value:.3f} |" for name, value in scores.items())
    (temporary / "README.md").write_text(
        "# Phantom encoder\n\n"
        "A DINOv2-shaped vision tower that has only ever seen drawn phantoms. Research and testing only, not a "
        "medical device; it knows nothing of real radiographs.\n\n"
        "Made by `python -m rrg_hf.demo.pretrain_encoder` (supervised: the drawn observations at [CLS], "
        f"their masks at the patches; half of the images partly covered).\n\n"
        f"| setting | value |\n|---|---|\n{settings}\n\n"
        f"F1 of the thrown-away [CLS] head on 1,000 unseen phantoms:\n\n| observation | F1 |\n|---|---|\n{table}\n"
    )
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--studies", type=int, default=EncoderRecipe.studies)
    parser.add_argument("--epochs", type=int, default=EncoderRecipe.epochs)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    recipe = EncoderRecipe(studies=options.studies, epochs=options.epochs)
    encoder, scores = train(recipe)
    save(encoder, recipe, scores, options.out)


if __name__ == "__main__":
    main()
