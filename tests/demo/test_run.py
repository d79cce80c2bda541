"""The demo end to end at a toy size, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

from rrg_hf.demo.backbones import ENCODER_DIR
from rrg_hf.demo.recipe import FULL, QUICK, DemoRecipe
from rrg_hf.demo.run import ABLATION, EXAMPLE_IMAGE, PALM, PHANTOM_ONLY, PRIOR, prepare_folder, run_demo
from rrg_hf.errors import ConfigError

TOY = DemoRecipe(
    name="toy",
    train=96,
    validation=8,
    test=12,
    test_shifted=12,
    evidence=6,
    mem_epochs=1,
    align_epochs=1,
    generate_epochs=1,
    mem_batch_size=16,
    align_batch_size=16,
    generate_batch_size=16,
    max_new_tokens=24,
    bootstrap=20,
)


def test_the_shipped_encoder_is_small_and_is_a_dinov2() -> None:
    from transformers import AutoModel, Dinov2Model

    assert (ENCODER_DIR / "model.safetensors").stat().st_size <= 4_000_000
    encoder = AutoModel.from_pretrained(ENCODER_DIR)
    assert isinstance(encoder, Dinov2Model)
    assert encoder.config.image_size == FULL.image_size == QUICK.image_size
    assert encoder.dtype == torch.float32


def test_the_example_image_ships_with_its_attribution() -> None:
    text = (EXAMPLE_IMAGE.parent / "README.md").read_text()
    assert EXAMPLE_IMAGE.name in text
    assert "NIH Clinical Center" in text and "CVPR" in text


@pytest.mark.slow
def test_demo_end_to_end(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    from rrg_hf import PalmForReportGeneration

    lines: list[str] = []
    out = tmp_path / "demo"
    metrics = run_demo(TOY, out, say=lines.append)

    assert json.loads((out / "metrics.json").read_text())["systems"].keys() == {PALM, ABLATION, PRIOR}
    for system in (PALM, ABLATION, PRIOR):
        for split in ("test", "test_shifted"):
            result = metrics["systems"][system][split]
            assert result["n"] == 12
            assert result["protocol"]["phantom"] is True
            assert result["protocol"]["split"] == split
            assert result["protocol"]["versions"]["transformers"] == transformers.__version__
    assert "torch" in metrics["evidence"][PALM]["protocol"]["versions"]
    reports = [json.loads(line) for line in (out / "reports.jsonl").read_text().splitlines()]
    assert len({row["study_id"] for row in reports}) == 24
    assert all(row["source"] == "phantom" for row in reports)

    model = AutoModelForImageTextToText.from_pretrained(out / "palm" / "generate")
    assert isinstance(model, PalmForReportGeneration)
    assert model.config.training_stage == "generate"
    ablation = json.loads((out / "ablation" / "generate" / "config.json").read_text())
    assert ablation["alignment"] == "contrastive"
    assert not (out / "ablation" / "mem").exists()

    page = (out / "report.html").read_text()
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert "not a medical device" in page
    assert PHANTOM_ONLY in page and PHANTOM_ONLY in "\n".join(lines)
    card = (out / "palm" / "generate" / "README.md").read_text()
    assert "not a medical device" in card.lower()

    # a second run replaces the first; it does not resume a finished one
    prepare_folder(out, overwrite=False)
    assert not any(out.iterdir())


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not delete")
    with pytest.raises(ConfigError, match="not empty and holds no earlier demo"):
        prepare_folder(tmp_path, overwrite=False)
    assert (tmp_path / "thesis.txt").exists()


def test_an_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        prepare_folder(tmp_path / "out", overwrite=True)
