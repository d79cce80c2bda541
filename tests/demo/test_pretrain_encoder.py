"""The encoder's recipe: its targets against loops, and a run at a toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rrg_hf.demo.pretrain_encoder import DRAWN, EncoderRecipe, cover, main, normalise, targets, visible_part
from rrg_hf.demo.recipe import FULL


def test_targets_match_loops() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((28, 28)) < 0.3
    mask[:, 14:] = False
    image, patches = targets({"Edema": mask, "left lung": ~mask}, 28, 14)
    index = DRAWN.index("Edema")
    assert image[:, index].tolist() == [1.0, 1.0, 0.0]
    assert image.sum() == 2.0  # anatomy and absent findings are no targets
    for row in range(2):
        for column in range(2):
            cell = mask[14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
            assert patches[index, row, column] == pytest.approx(cell.mean())


def test_cover_takes_what_is_hidden_out_of_the_targets() -> None:
    """One finding on the left, one on both sides; the left half is covered."""
    pixels = torch.rand(1, 3, 28, 28)
    patch_targets = torch.zeros(1, len(DRAWN), 2, 2)
    patch_targets[0, 0, :, 0] = 1.0
    patch_targets[0, 1] = 1.0
    image_targets = torch.zeros(1, 3, len(DRAWN))
    image_targets[0, :, 0] = torch.tensor([1.0, 1.0, 0.0])
    image_targets[0, :, 1] = 1.0
    visible = torch.ones(1, 28, 28, dtype=torch.bool)
    visible[:, :, :14] = False
    covered, present, located = cover(pixels, image_targets, patch_targets, visible)
    mean = pixels.mean((2, 3))
    for channel in range(3):
        torch.testing.assert_close(covered[0, channel, :, :14], mean[0, channel].expand(28, 14))
    assert torch.equal(covered[..., 14:], pixels[..., 14:])
    assert present[0, :, 0].tolist() == [0.0, 0.0, 0.0]
    assert present[0, :, 1].tolist() == [1.0, 0.0, 1.0]  # half of it is still seen
    assert located[0, 0].sum() == 0 and located[0, 1, :, 1].sum() == 2
    untouched = cover(pixels, image_targets, patch_targets, torch.ones_like(visible))
    assert all(map(torch.equal, untouched, (pixels, image_targets, patch_targets)))


def test_visible_part_covers_the_asked_share_of_images() -> None:
    def covered_share(probability: float) -> float:
        visible = visible_part(400, 56, probability, torch.Generator().manual_seed(0))
        return float((~visible).flatten(1).any(1).float().mean())

    assert covered_share(0.0) == 0.0
    assert covered_share(1.0) == 1.0
    assert 0.4 < covered_share(0.5) < 0.6


def test_normalise_equals_the_saved_image_processor() -> None:
    from transformers import AutoImageProcessor

    from rrg_hf.demo.backbones import ENCODER_DIR

    image = np.random.default_rng(0).integers(0, 256, (112, 112), dtype=np.uint8)
    rgb = np.repeat(image[..., None], 3, axis=2)
    processor = AutoImageProcessor.from_pretrained(ENCODER_DIR)
    expected = processor(rgb, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(normalise(torch.from_numpy(image)[None]), expected, atol=1e-5, rtol=0)


def test_the_demo_sees_no_study_of_the_pretraining() -> None:
    assert EncoderRecipe().seed != FULL.seed


@pytest.mark.slow
def test_recipe_runs_and_writes_a_dinov2_folder(tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, Dinov2Model

    main(["--out", str(tmp_path / "encoder"), "--studies", "128", "--epochs", "1"])
    assert Dinov2Model.from_pretrained(tmp_path / "encoder").config.patch_size == EncoderRecipe().patch_size
    AutoImageProcessor.from_pretrained(tmp_path / "encoder")
    card = (tmp_path / "encoder" / "README.md").read_text()
    assert "not a medical device" in card and "| micro |" in card
