"""Masked Evidence Modeling: masks, loss, who learns and who does not."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from rrg_hf.modeling.palm import PalmForMaskedEvidenceModeling, PalmForReportGeneration
from rrg_hf.modeling.palm.masked_evidence_palm import apply_patch_mask, grid_position_embeddings, sample_patch_mask


@pytest.fixture
def stage(model: PalmForReportGeneration) -> PalmForMaskedEvidenceModeling:
    torch.manual_seed(0)
    return PalmForMaskedEvidenceModeling.from_palm(model).eval()


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.5, 0.75, 0.99])
def test_random_masks_have_the_exact_count(ratio: float) -> None:
    mask = sample_patch_mask(64, (4, 6), ratio, "random", torch.Generator().manual_seed(0))
    assert mask.shape == (64, 24) and mask.dtype == torch.bool
    assert (mask.sum(1) == min(max(round(ratio * 24), 1), 23)).all()
    assert len({tuple(row.tolist()) for row in mask}) > 5
    if ratio == 0.5:
        assert mask.float().mean(0).min() > 0.3 and mask.float().mean(0).max() < 0.7, "every patch is masked at times"


@pytest.mark.parametrize("grid", [(4, 4), (37, 37), (4, 12), (12, 4), (1, 8), (1, 2), (2, 2)])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_block_masks_are_rectangles(grid: tuple[int, int], ratio: float) -> None:
    patches = grid[0] * grid[1]
    masks = sample_patch_mask(50, grid, ratio, "block", torch.Generator().manual_seed(0)).view(50, *grid)
    for mask in masks.numpy():
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        assert mask.sum() == height * width, "one filled rectangle"
        assert 1 <= mask.sum() <= patches - 1
    if patches > 100 and ratio == 0.5:
        shares = masks.flatten(1).float().mean(1)
        assert ((shares - ratio).abs() < 0.05).all()
        assert len({tuple(mask.flatten().tolist()) for mask in masks}) > 30


@pytest.mark.parametrize("strategy", ["random", "block"])
def test_masks_are_seedable(strategy: str) -> None:
    first, again, other = (
        sample_patch_mask(8, (5, 5), 0.5, strategy, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_mask_errors() -> None:
    with pytest.raises(ValueError, match="leaves nothing to mask"):
        sample_patch_mask(1, (1, 1))
    with pytest.raises(ValueError, match="Unknown mask strategy 'grid'"):
        sample_patch_mask(1, (4, 4), strategy="grid")
    with pytest.raises(ValueError, match=r"2 images of 4 x 4 patches need \(2, 16\)"):
        apply_patch_mask(torch.zeros(2, 3, 56, 56), torch.zeros(2, 9, dtype=torch.bool), 14)


def test_masked_pixels_are_the_patches() -> None:
    """Against a loop over pixels; the image has a rim that no whole patch covers."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 17, 22, generator=generator)
    mask = torch.rand(2, 3 * 4, generator=generator) < 0.5
    masked = apply_patch_mask(image, mask, 5)
    for b in range(2):
        for y in range(17):
            for x in range(22):
                inside = y < 15 and x < 20 and bool(mask[b, (y // 5) * 4 + x // 5])
                expected = torch.zeros(3) if inside else image[b, :, y, x]
                assert torch.equal(masked[b, :, y, x], expected)


def test_masking_leaves_the_input_alone() -> None:
    image = torch.ones(1, 3, 28, 28)
    apply_patch_mask(image, torch.ones(1, 4, dtype=torch.bool), 14)
    assert (image == 1).all()


def test_positions_differ_and_depend_on_row_and_column() -> None:
    positions = grid_position_embeddings((5, 7), 32)
    assert positions.shape == (35, 32)
    assert torch.cdist(positions, positions).fill_diagonal_(1).min() > 0.1
    assert torch.equal(positions[3, 16:], positions[10, 16:]), "same column, same column part"
    assert torch.equal(positions[7, :16], positions[8, :16]), "same row, same row part"
    assert grid_position_embeddings((3, 3), 30).shape == (9, 30)


# --- loss ------------------------------------------------------------------------------------------------------------


def reference_loss(stage: PalmForMaskedEvidenceModeling, pixels: torch.Tensor, mask: torch.Tensor) -> float:
    """Eq. 1-5 study by study, token by token."""
    size = stage.config.vision_config.patch_size
    columns = pixels.shape[-1] // size
    total, count = 0.0, 0
    for image, hidden in zip(pixels, mask, strict=True):
        masked_image = image.clone()
        for patch in hidden.nonzero().flatten().tolist():
            top, left = patch // columns * size, patch % columns * size
            masked_image[:, top : top + size, left : left + size] = 0
        target = stage.teacher(pixel_values=masked_image[None]).last_hidden_state[0]
        student = stage.model.vision_model(pixel_values=image[None]).last_hidden_state[0]
        positions = grid_position_embeddings((pixels.shape[-2] // size, columns), student.shape[-1]).to(student)
        tokens = [student[0]]
        for patch in range(len(hidden)):
            token = stage.predictor.mask_token if hidden[patch] else student[1 + patch]
            tokens.append(token + positions[patch])
        prediction = stage.predictor.output(stage.predictor.encoder(torch.stack(tokens)[None]))[0]
        for i in range(target.shape[0]):
            for j in range(target.shape[1]):
                total += (target[i, j] - prediction[i, j]).item() ** 2
                count += 1
    return total / count


@pytest.mark.parametrize("strategy", ["random", "block"])
def test_loss_equals_the_reference(
    stage: PalmForMaskedEvidenceModeling, batch: dict[str, torch.Tensor], strategy: str
) -> None:
    stage.double()
    pixels = batch["pixel_values"].double()
    mask = sample_patch_mask(3, (4, 4), 0.5, strategy, torch.Generator().manual_seed(5))
    output = stage(pixels, patch_mask=mask)
    assert math.isclose(output.loss.item(), reference_loss(stage, pixels, mask), rel_tol=1e-9)
    assert output.mem_loss.item() == output.loss.item()
    assert torch.equal(output.patch_mask, mask)
    assert output.predictions.shape == output.targets.shape == (3, 17, 32)


def test_masked_tokens_do_not_reach_the_prediction(
    stage: PalmForMaskedEvidenceModeling, batch: dict[str, torch.Tensor]
) -> None:
    """P_m of Eq. 3: changing the student's token of a masked patch changes nothing."""
    mask = torch.zeros(3, 16, dtype=torch.bool)
    mask[:, 5] = True
    tokens = torch.randn(3, 17, 32)
    base = stage.predictor(tokens, mask, (4, 4))
    tokens[:, 6] += 1.0
    assert torch.equal(stage.predictor(tokens, mask, (4, 4)), base)
    tokens[:, 7] += 1.0
    assert not torch.equal(stage.predictor(tokens, mask, (4, 4)), base)


def test_teacher_sees_the_masked_image(stage: PalmForMaskedEvidenceModeling, batch: dict[str, torch.Tensor]) -> None:
    mask = sample_patch_mask(3, (4, 4), generator=torch.Generator().manual_seed(0))
    masked = apply_patch_mask(batch["pixel_values"], mask, 14)
    expected = stage.model.vision_model(pixel_values=masked).last_hidden_state
    assert torch.equal(stage(batch["pixel_values"], patch_mask=mask).targets, expected)


def test_mask_is_sampled_anew_in_training_and_fixed_in_evaluation(
    stage: PalmForMaskedEvidenceModeling, batch: dict[str, torch.Tensor]
) -> None:
    pixels = batch["pixel_values"]
    assert torch.equal(stage(pixels).patch_mask, stage(pixels).patch_mask)
    stage.train()
    assert not torch.equal(stage(pixels).patch_mask, stage(pixels).patch_mask)
    seeded = [stage(pixels, generator=torch.Generator().manual_seed(1)).patch_mask for _ in range(2)]
    assert torch.equal(*seeded)


def test_config_decides_ratio_and_strategy(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    model.config.mem_mask_ratio, model.config.mem_mask_strategy = 0.25, "block"
    mask = PalmForMaskedEvidenceModeling.from_palm(model).eval()(batch["pixel_values"]).patch_mask
    assert (mask.sum(1) < 8).all()


def test_other_image_sizes(stage: PalmForMaskedEvidenceModeling) -> None:
    output = stage(torch.randn(2, 3, 70, 42))
    assert output.patch_mask.shape == (2, 15) and output.loss.isfinite()


def test_gradients_match_finite_differences(
    stage: PalmForMaskedEvidenceModeling, batch: dict[str, torch.Tensor]
) -> None:
    stage.double()
    pixels = batch["pixel_values"].double()
    mask = sample_patch_mask(3, (4, 4), generator=torch.Generator().manual_seed(0))
    stage(pixels, patch_mask=mask).loss.backward()
    generator = torch.Generator().manual_seed(1)
    for part in (stage.model.vision_model, stage.predictor):
        parameters = [p for p in part.parameters() if p.grad is not None]
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        analytic = sum((p.grad * d).sum().item() for p, d in zip(parameters, directions, strict=True))
        size, losses = 1e-6, []
        for amount in (size, -2 * size):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.data.add_(direction, alpha=amount)
            losses.append(stage(pixels, patch_mask=mask).loss.item())
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.data.add_(direction, alpha=size)
        assert math.isclose(analytic, (losses[0] - losses[1]) / (2 * size), rel_tol=1e-5)


# --- who learns ------------------------------------------------------------------------------------------------------


def test_trainable_weights_get_gradients_and_frozen_ones_none(
    model: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    stage = PalmForMaskedEvidenceModeling.from_palm(model).train()
    stage(batch["pixel_values"]).loss.backward()
    for name, parameter in stage.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        learns = name.startswith(("model.vision_model.", "predictor.")) and not name.endswith("embeddings.mask_token")
        assert parameter.requires_grad == learns, name


@pytest.mark.slow
def test_training_changes_the_shared_encoder_only(
    model: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    before = copy.deepcopy(model.state_dict())
    stage = PalmForMaskedEvidenceModeling.from_palm(model).train()
    teacher = copy.deepcopy(stage.teacher.state_dict())
    optimizer = torch.optim.AdamW([p for p in stage.parameters() if p.requires_grad], lr=1e-3)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(20):
        loss = stage(batch["pixel_values"], generator=generator).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.9 * losses[0]
    assert not stage.teacher.training
    for key, value in stage.teacher.state_dict().items():
        assert torch.equal(value, teacher[key]), key
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed and all(key.startswith("model.vision_model.") for key in changed)


def test_teacher_starts_as_a_copy(stage: PalmForMaskedEvidenceModeling) -> None:
    student = dict(stage.model.vision_model.named_parameters())
    for name, parameter in stage.teacher.named_parameters():
        assert torch.equal(parameter, student[name]) and parameter is not student[name]


def test_bfloat16(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    stage = PalmForMaskedEvidenceModeling.from_palm(model.to(torch.bfloat16)).train()
    loss = stage(batch["pixel_values"].to(torch.bfloat16)).loss
    assert loss.dtype == torch.float32 and loss.isfinite()
    loss.backward()
