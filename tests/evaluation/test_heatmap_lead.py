"""Occlusion maps of LEAD, whose image and predicted findings stand in the prompt, against a slow reference."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rrg_hf.evaluation.heatmap import attention_maps, occlusion_maps
from tests.lead_model import make_lead_model
from tests.tiny_lead import LEAD_CLASSES

REPORT = "The heart is normal. There is a right effusion. No opacity."
SENTENCES = ["The heart is normal.", "There is a right effusion.", "No opacity."]


def picture(seed: int = 0, height: int = 60, width: int = 72) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def log_prob(model: Any, processor: Any, image: np.ndarray, text: str, indication: str | None) -> float:
    """log p(text) by one prompt, one token after the other."""
    if not text:
        return 0.0
    given: dict[str, Any] = {"images": [[image]], "indication": [indication]}
    if model.config.lead_config.expert_prompting:
        with torch.no_grad():
            probabilities = model(**processor.build_inputs(**given)).expert_logits.sigmoid()
        given["observations"] = model.predicted_observations(probabilities)
    inputs = processor.build_inputs(**given)
    total = 0.0
    for token in processor.tokenizer(text, add_special_tokens=False)["input_ids"]:
        with torch.no_grad():
            logits = model(**inputs).logits[0, -1].log_softmax(-1)
        total += float(logits[token])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([[token]])], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inputs:
            kinds = inputs["mm_token_type_ids"]
            inputs["mm_token_type_ids"] = torch.cat([kinds, torch.zeros(1, 1, dtype=kinds.dtype)], dim=1)
    return total


def sentence_scores(model: Any, processor: Any, image: np.ndarray, indication: str | None) -> np.ndarray:
    totals = [log_prob(model, processor, image, " ".join(SENTENCES[:upto]), indication) for upto in range(4)]
    return np.diff(totals)


@pytest.mark.parametrize("prompting", [False, True])
@pytest.mark.parametrize("family", sorted(LEAD_CLASSES))
def test_occlusion_maps_equal_one_by_one_occlusion(family: str, prompting: bool, tmp_path: Path) -> None:
    model, processor = make_lead_model(
        tmp_path / "lead", family, expert_prompting=prompting, expert_threshold=0.6, fusion="gate"
    )
    image = picture()
    maps = occlusion_maps(model, processor, image, REPORT, indication="Pain.", grid=2, batch_size=3)
    assert [REPORT[start:end] for start, end in maps.spans] == SENTENCES
    base = sentence_scores(model, processor, image, "Pain.")
    assert maps.log_probs == pytest.approx(base, rel=1e-4)
    scale = float(np.abs(maps.maps).max())
    assert scale > 0.05
    for row in range(2):
        for column in range(2):
            covered = image.copy()
            covered[30 * row : 30 * row + 30, 36 * column : 36 * column + 36] = round(image.mean())
            drop = base - sentence_scores(model, processor, covered, "Pain.")
            # At a cell's centre, bilinear upsampling gives about the cell's own value.
            patch = maps.maps[:, 30 * row + 14 : 30 * row + 16, 36 * column + 17 : 36 * column + 19].mean((1, 2))
            assert patch == pytest.approx(drop, abs=0.06 * scale)


def test_there_are_no_attention_maps_and_the_log_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, processor = make_lead_model(tmp_path / "lead")
    with caplog.at_level(logging.WARNING, logger="rrg_hf"):
        assert attention_maps(model, processor, picture(), REPORT) is None
    assert "LeadQwen3VLForCausalLM has no cross-attention over image patches" in caplog.text
    assert "Use occlusion maps" in caplog.text


def test_a_report_that_is_cut_has_nan_behind_the_cut(tmp_path: Path) -> None:
    model, processor = make_lead_model(tmp_path / "lead")
    prompt = processor.build_inputs(images=[[picture()]])["input_ids"].shape[1]
    tokens = len(processor.tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"])
    cut = occlusion_maps(model, processor, Image.fromarray(picture()), REPORT, grid=2, max_length=prompt + tokens)
    whole = occlusion_maps(model, processor, picture(), REPORT, grid=2)
    assert cut.log_probs is not None and whole.log_probs is not None
    assert np.isfinite(cut.log_probs).tolist() == [True, False, False]
    assert cut.log_probs[0] == pytest.approx(whole.log_probs[0], rel=1e-4)
    assert cut.maps[0] == pytest.approx(whole.maps[0], abs=1e-3)
