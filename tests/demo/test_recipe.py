"""The demo's two sizes are coherent and short enough."""

from __future__ import annotations

import dataclasses

import pytest

from rrg_hf.data.phantom.dataset import MAX_SIZE, MIN_SIZE
from rrg_hf.demo.recipe import FULL, QUICK, DemoRecipe


def image_passes(recipe: DemoRecipe) -> float:
    """Images that go through the vision tower in training."""
    return recipe.train * (recipe.mem_epochs + recipe.align_epochs + recipe.generate_epochs)


def test_quick_is_the_same_job_made_smaller() -> None:
    same = {"image_size", "projection_dim", "text_layers", "decoder_layers", "fusion_layers", "max_new_tokens"}
    full, quick = dataclasses.asdict(FULL), dataclasses.asdict(QUICK)
    assert {name for name in same if full[name] != quick[name]} == set()
    assert all(quick[name] < full[name] for name in ("train", "validation", "test", "test_shifted", "evidence"))
    assert image_passes(QUICK) < image_passes(FULL) / 4  # two minutes instead of eight


@pytest.mark.parametrize("recipe", [FULL, QUICK], ids=lambda recipe: recipe.name)
def test_a_recipe_can_be_run(recipe: DemoRecipe) -> None:
    assert MIN_SIZE <= recipe.image_size <= MAX_SIZE and recipe.image_size % 14 == 0  # DINOv2's patches
    assert recipe.evidence <= recipe.test
    assert recipe.bootstrap >= 20
    assert recipe.projection_dim % 4 == 0  # attention heads of the backbones
    # alignment needs more studies a batch than prototypes, or the transport problem is degenerate
    assert recipe.align_batch_size > 14
    for stage in ("mem", "align", "generate"):
        assert recipe.train * getattr(recipe, f"{stage}_epochs") >= getattr(recipe, f"{stage}_batch_size")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.train = 1  # type: ignore[misc]
