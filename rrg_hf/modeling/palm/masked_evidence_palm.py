"""Masked Evidence Modeling, PALM's first training stage (Sec. 3.1, Eq. 1-5). Training only."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init
from transformers.utils import ModelOutput

from .configuration_palm import PalmConfig
from .layers_palm import PalmEncoder
from .modeling_palm import PalmForReportGeneration
from .training_stage_palm import PalmTrainingStage, at_least_float32


def sample_patch_mask(
    batch_size: int,
    grid: tuple[int, int],
    ratio: float = 0.5,
    strategy: str = "random",
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Patch masks m of Eq. 1.

    Args:
        batch_size: number of masks.
        grid: patches per column and per row.
        ratio: share of masked patches. At least one patch is masked and at least one stays.
        strategy: "random" masks exactly `round(ratio * patches)` patches anywhere; "block" masks one rectangle of
            about that many, with sides between 1:2 and 2:1, anywhere in the grid.
        generator: source of randomness on the CPU; torch's global one by default.

    Returns:
        (batch_size, patches) bool on the CPU, True = masked, patches row by row.
    """
    height, width = grid
    patches = height * width
    if patches < 2:
        raise ValueError(f"A grid of {height} x {width} patches leaves nothing to mask. Use larger images.")
    masked = min(max(round(ratio * patches), 1), patches - 1)
    if strategy == "random":
        order = torch.rand(batch_size, patches, generator=generator).argsort(dim=1)
        return order.argsort(dim=1) < masked
    if strategy != "block":
        raise ValueError(f"Unknown mask strategy {strategy!r}. Use 'random' or 'block'.")
    mask = torch.zeros(batch_size, height, width, dtype=torch.bool)
    # log-uniform aspect ratio, then a uniform position among those that fit
    draws = torch.rand(batch_size, 3, generator=generator).tolist()
    for row, (shape, vertical, horizontal) in enumerate(draws):
        aspect = 2.0 ** (2 * shape - 1)
        rows = min(max(round((masked * aspect) ** 0.5), 1), height)
        columns = min(max(round(masked / rows), 1), width)
        if columns == width:  # too flat for the grid: make it taller instead
            rows = min(max(round(masked / columns), 1), height)
        if rows * columns == patches:
            rows, columns = (rows - 1, columns) if rows > 1 else (rows, columns - 1)
        top = int(vertical * (height - rows + 1))
        left = int(horizontal * (width - columns + 1))
        mask[row, top : top + rows, left : left + columns] = True
    return mask.flatten(1)


def apply_patch_mask(pixel_values: torch.Tensor, patch_mask: torch.Tensor, patch_size: int) -> torch.Tensor:
    """The masked image M(I; m) of Eq. 1: masked patches become 0, the image mean after normalisation.

    Args:
        pixel_values: (B, C, H, W), normalised.
        patch_mask: (B, patches), True = masked, patches row by row.
        patch_size: side of a patch in pixels. Pixels beyond the last whole patch stay; the encoder never sees them.

    Returns:
        (B, C, H, W), a new tensor.
    """
    batch, _, height, width = pixel_values.shape
    rows, columns = height // patch_size, width // patch_size
    if patch_mask.shape != (batch, rows * columns):
        raise ValueError(
            f"`patch_mask` has shape {tuple(patch_mask.shape)}; {batch} images of {rows} x {columns} patches need "
            f"({batch}, {rows * columns})."
        )
    pixels = patch_mask.view(batch, 1, rows, columns)
    pixels = pixels.repeat_interleave(patch_size, dim=2).repeat_interleave(patch_size, dim=3)
    masked = pixel_values.clone()
    region = masked[:, :, : rows * patch_size, : columns * patch_size]
    region.masked_fill_(pixels, 0.0)
    return masked


def grid_position_embeddings(grid: tuple[int, int], width: int) -> torch.Tensor:
    """Fixed 2-D sine-cosine position embeddings, (rows * columns, width), patches row by row."""
    quarter = max(width // 4, 1)
    frequencies = 1.0 / 10_000 ** (torch.arange(quarter, dtype=torch.float64) / quarter)
    rows, columns = (torch.arange(length, dtype=torch.float64)[:, None] * frequencies for length in grid)
    row_part = torch.cat([rows.sin(), rows.cos()], dim=1)[:, None].expand(-1, grid[1], -1)
    column_part = torch.cat([columns.sin(), columns.cos()], dim=1)[None].expand(grid[0], -1, -1)
    embeddings = torch.cat([row_part, column_part], dim=2).flatten(0, 1)
    return nn.functional.pad(embeddings, (0, max(width - embeddings.shape[1], 0)))[:, :width]


@dataclass
class PalmMaskedEvidenceOutput(ModelOutput):
    """Output of [`PalmForMaskedEvidenceModeling`].

    Args:
        loss: scalar, L_MEM of Eq. 5: mean squared error over images, tokens and width.
        mem_loss: the same, under the name it is logged by.
        predictions: z^tea as predicted, (B, N_I, D_I).
        targets: z^tea, (B, N_I, D_I).
        patch_mask: (B, N_I - 1) bool, True = masked.
    """

    loss: torch.Tensor | None = None
    mem_loss: torch.Tensor | None = None
    predictions: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    patch_mask: torch.Tensor | None = None


class PalmMaskedEvidencePredictor(nn.Module):
    """The lightweight decoder D of Eq. 4: visible student tokens and mask tokens in, all teacher tokens out.

    Not stated in the paper and chosen here: pre-norm transformer layers of the encoder's width and heads, fixed
    sine-cosine positions, a linear output.
    """

    def __init__(self, config: PalmConfig) -> None:
        super().__init__()
        width = config.vision_config.hidden_size
        self.mask_token = nn.Parameter(torch.empty(width))
        heads = config.vision_config.num_attention_heads
        self.encoder = PalmEncoder(config, width, config.mem_predictor_layers, heads, dropout=0.0)
        self.output = nn.Linear(width, width)

    def forward(self, student_tokens: torch.Tensor, patch_mask: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """
        Args:
            student_tokens: (B, N_I, D_I), [CLS] first.
            patch_mask: (B, N_I - 1), True = masked.
            grid: patches per column and per row.

        Returns:
            (B, N_I, D_I).
        """
        cls_token, patches = student_tokens[:, :1], student_tokens[:, 1:]
        # P_m of Eq. 3: masked student tokens are replaced, so nothing of them reaches the prediction.
        patches = torch.where(patch_mask[..., None], self.mask_token, patches)
        positions = grid_position_embeddings(grid, patches.shape[-1]).to(patches)
        return self.output(self.encoder(torch.cat([cls_token, patches + positions], dim=1)))


class PalmForMaskedEvidenceModeling(PalmTrainingStage):
    """Teaches the visual encoder what each region contributes (Eq. 1-5).

    A frozen teacher sees the image with regions blanked out. From the student's view of the whole image, less the
    tokens of those regions, the predictor must tell what the teacher sees.

    Build it with `from_palm`. The student is the visual encoder of the model it was built from; the teacher is a
    frozen copy of that encoder as it is then. Teacher and predictor are thrown away afterwards.

    Args:
        config: shapes and choices.
        palm: the model to train; a new one by default.
    """

    stage = "mem"

    def __init__(self, config: PalmConfig, palm: PalmForReportGeneration | None = None) -> None:
        super().__init__(config, palm)
        self.teacher = copy.deepcopy(self.model.vision_model)
        self.teacher.requires_grad_(False)
        self.teacher.eval()
        for module in self.teacher.modules():
            module._is_hf_initialized = True
        self.predictor = PalmMaskedEvidencePredictor(config)
        self.finish_init()
        self.predictor.to(device=self.model.prototypes.device, dtype=self.model.prototypes.dtype)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PalmMaskedEvidencePredictor):
            init.normal_(module.mask_token, mean=0.0, std=self.config.initializer_range)

    def train(self, mode: bool = True) -> PalmForMaskedEvidenceModeling:
        super().train(mode)
        self.teacher.eval()  # the targets never depend on dropout
        return self

    def forward(
        self,
        pixel_values: torch.Tensor,
        patch_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> PalmMaskedEvidenceOutput:
        """
        Args:
            pixel_values: (B, 3, H, W), normalised.
            patch_mask: (B, patches) bool, True = masked. Sampled by default; outside training always the same way, so
                that validation losses compare.
            generator: CPU generator to sample the mask with.

        Returns:
            [`PalmMaskedEvidenceOutput`].
        """
        patch_size = self.config.vision_config.patch_size
        patch_size = patch_size if isinstance(patch_size, int) else patch_size[0]
        grid = (pixel_values.shape[-2] // patch_size, pixel_values.shape[-1] // patch_size)
        if patch_mask is None:
            if generator is None and not self.training:
                generator = torch.Generator().manual_seed(0)
            patch_mask = sample_patch_mask(
                pixel_values.shape[0], grid, self.config.mem_mask_ratio, self.config.mem_mask_strategy, generator
            )
        patch_mask = patch_mask.to(device=pixel_values.device, dtype=torch.bool)
        with torch.no_grad():
            masked_image = apply_patch_mask(pixel_values, patch_mask, patch_size)
            targets = self.teacher(pixel_values=masked_image).last_hidden_state
        student_tokens = self.model.vision_model(pixel_values=pixel_values).last_hidden_state
        predictions = self.predictor(student_tokens, patch_mask, grid)
        loss = nn.functional.mse_loss(at_least_float32(predictions), at_least_float32(targets))
        return PalmMaskedEvidenceOutput(
            loss=loss, mem_loss=loss.detach(), predictions=predictions, targets=targets, patch_mask=patch_mask
        )


__all__ = [
    "PalmForMaskedEvidenceModeling",
    "PalmMaskedEvidenceOutput",
    "PalmMaskedEvidencePredictor",
    "apply_patch_mask",
    "grid_position_embeddings",
    "sample_patch_mask",
]
