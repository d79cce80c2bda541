"""The encoder's recipe: its targets against loops, and a run at a toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rrg_hf.demo.pretrain_encoder import DRAWN, EncoderRecipe, main, normalise, targets
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
