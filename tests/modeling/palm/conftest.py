"""Tiny PALM checkpoints and inputs for the tests of rrg_hf.modeling.palm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from tests.tiny_palm import SENTENCES, make_tiny_backbones, make_tiny_palm


@pytest.fixture(scope="session")
def tiny_palm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a saved tiny PALM and its processor."""
    path = tmp_path_factory.mktemp("tiny_palm")
    make_tiny_palm(path)
    return path


@pytest.fixture(scope="session")
def tiny_palm(tiny_palm_dir: Path) -> tuple[PalmForReportGeneration, PalmProcessor]:
    """Model and processor. Do not change them: take `model` for that."""
    model = PalmForReportGeneration.from_pretrained(tiny_palm_dir)
    return model, PalmProcessor.from_pretrained(tiny_palm_dir)


@pytest.fixture(scope="session")
def backbone_dirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Vision, text and decoder folders in the layouts of the Hub."""
    return make_tiny_backbones(tmp_path_factory.mktemp("backbones"))


@pytest.fixture
def model(tiny_palm: tuple[PalmForReportGeneration, PalmProcessor]) -> PalmForReportGeneration:
    """A copy of the tiny model, in eval mode."""
    return copy.deepcopy(tiny_palm[0])


@pytest.fixture(scope="session")
def processor(tiny_palm: tuple[PalmForReportGeneration, PalmProcessor]) -> PalmProcessor:
    return tiny_palm[1]


@pytest.fixture(scope="session")
def radiographs() -> list[np.ndarray]:
    """Three greyscale 8-bit images of different sizes and contents."""
    rng = np.random.default_rng(0)
    shapes = [(70, 64), (56, 56), (90, 120)]
    ramps = [np.linspace(0, 255, height * width).reshape(height, width) for height, width in shapes]
    return [
        np.clip(np.roll(ramp, 1000 * index) + rng.normal(0, 30, ramp.shape), 0, 255).astype(np.uint8)
        for index, ramp in enumerate(ramps)
    ]


@pytest.fixture
def batch(processor: PalmProcessor, radiographs: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Three studies, the second without an indication, with reports of different lengths."""
    inputs = processor(
        images=radiographs, indication=["Cough and fever.", None, "Shortness of breath."], report=list(SENTENCES[:3])
    )
    return dict(inputs)


@pytest.fixture(scope="session")
def inference_keys() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Picks what `generate` takes."""

    def pick(inputs: dict[str, Any]) -> dict[str, Any]:
        wanted = ("pixel_values", "indication_input_ids", "indication_attention_mask")
        return {key: inputs[key] for key in wanted if key in inputs}

    return pick


@pytest.fixture
def lively(model: PalmForReportGeneration) -> PalmForReportGeneration:
    """The tiny model with large random weights, so that each image gets a report of its own and tokens vary."""
    return make_lively(model)


def make_lively(model: PalmForReportGeneration) -> PalmForReportGeneration:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and "vision_model" not in name:
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    model.tie_weights()
    return model
