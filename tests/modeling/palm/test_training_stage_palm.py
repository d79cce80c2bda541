"""What the training stages share: the model, its weights, and what they save."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from rrg_hf.modeling.palm import (
    PalmConfig,
    PalmForAlignment,
    PalmForMaskedEvidenceModeling,
    PalmForReportGeneration,
    PalmProcessor,
)

STAGES = [PalmForMaskedEvidenceModeling, PalmForAlignment]


@pytest.mark.parametrize("stage_class", STAGES)
def test_model_is_shared_and_unchanged(model: PalmForReportGeneration, stage_class: type) -> None:
    before = copy.deepcopy(model.state_dict())
    stage = stage_class.from_palm(model)
    assert stage.model is model.model and stage.palm is model
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not any(name.startswith(("lm_head", "_palm")) for name, _ in stage.named_parameters())


@pytest.mark.parametrize("stage_class", STAGES)
def test_model_built_by_hand_is_unchanged(stage_class: type) -> None:
    """Also when the weights were never loaded from a checkpoint."""
    config = PalmConfig(
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
        text_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        decoder_config={"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50, "eos_token_id": 1},
    )
    model = PalmForReportGeneration(config)
    before = copy.deepcopy(model.state_dict())
    stage = stage_class.from_palm(model)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(torch.isfinite(parameter).all() for parameter in stage.parameters())


@pytest.mark.parametrize("stage_class", STAGES)
@pytest.mark.parametrize("with_state_dict", [False, True])
def test_saves_a_report_generation_folder(
    model: PalmForReportGeneration, tmp_path: Path, stage_class: type, with_state_dict: bool
) -> None:
    """As Trainer saves: with the stage's own state dict, teacher and predictor included."""
    stage = stage_class.from_palm(model)
    with torch.no_grad():
        stage.model.vision_model.embeddings.cls_token.fill_(0.25)
    stage.save_pretrained(tmp_path, **({"state_dict": stage.state_dict()} if with_state_dict else {}))
    reloaded, info = PalmForReportGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert reloaded.config.architectures == ["PalmForReportGeneration"]
    for key, value in model.state_dict().items():
        assert torch.equal(reloaded.state_dict()[key], value), key


def test_from_pretrained_is_from_palm(
    tiny_palm_dir: Path, tiny_palm: tuple[PalmForReportGeneration, PalmProcessor]
) -> None:
    stage = PalmForMaskedEvidenceModeling.from_pretrained(tiny_palm_dir)
    expected = tiny_palm[0].model.vision_model.state_dict()
    for key, value in stage.teacher.state_dict().items():
        assert torch.equal(value, expected[key]), "a teacher of random weights would teach noise"


@pytest.mark.slow
def test_stages_follow_each_other(
    model: PalmForReportGeneration, processor: PalmProcessor, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """mem -> align -> generate, each from the folder of the one before, every loss falling."""
    folder = tmp_path / "start"
    model.save_pretrained(folder)
    for name in ("mem", "align", "generate"):
        palm = PalmForReportGeneration.from_pretrained(folder)
        stage: torch.nn.Module
        if name == "mem":
            stage = PalmForMaskedEvidenceModeling.from_palm(palm)
            keys = ["pixel_values"]
        elif name == "align":
            with torch.no_grad():
                palm.model.prototypes.normal_(generator=torch.Generator().manual_seed(0))
            stage = PalmForAlignment.from_palm(palm)
            keys = ["pixel_values", "report_input_ids", "report_attention_mask"]
        else:
            stage = palm
            palm.model.set_trainable("generate")
            keys = [key for key in batch if not key.startswith("report")]
        inputs = {key: batch[key] for key in keys}
        optimizer = torch.optim.AdamW([p for p in stage.parameters() if p.requires_grad], lr=3e-3)
        stage.eval()  # no dropout: fifteen steps on one batch must lower the loss
        losses = []
        for _ in range(15):
            loss = stage(**inputs).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] - 0.01, name
        assert math.isfinite(losses[-1])
        palm.config.training_stage = name
        folder = tmp_path / name
        stage.save_pretrained(folder)
        assert PalmConfig.from_pretrained(folder).training_stage == name
