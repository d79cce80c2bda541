"""DataCollatorForPalm: which image and which text of a study become which tensors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rrg_hf.data.collators import DataCollatorForPalm, frontal_image_index, study_image
from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.errors import ConfigError, DataError
from rrg_hf.modeling.palm import PalmProcessor
from tests.tiny_palm import make_tiny_palm


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PalmProcessor:
    return make_tiny_palm(tmp_path_factory.mktemp("palm"))[1]


def picture(value: int = 100, size: int = 64) -> Image.Image:
    return Image.fromarray(np.full((size, size), value, dtype=np.uint8))


def row(**changes: Any) -> dict[str, Any]:
    return {
        "study_id": "s1",
        "images": [picture()],
        "views": ["frontal"],
        "indication": "Cough.",
        "findings": "The lungs are clear.",
        "impression": "Normal.",
    } | changes


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        (["lateral", "frontal", "frontal"], 1),
        (["lateral", "unknown"], 1),
        (["lateral", "lateral"], 0),
        ([], 0),
        (None, 0),
        (["lateral", "lateral", "frontal"], 0),  # the third view has no image
    ],
)
def test_the_first_frontal_image_is_looked_at(views: list[str] | None, expected: int) -> None:
    count = 3 if views and len(views) == 3 and views[1] == "frontal" else 2
    assert frontal_image_index({"images": [picture()] * count, "views": views}) == expected


def test_images_of_every_kind_are_read_as_grey(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    picture().convert("RGB").save(buffer, format="PNG")
    picture().save(tmp_path / "a.png")
    kinds = [
        picture(),
        np.full((64, 64), 100, dtype=np.uint8),
        {"bytes": buffer.getvalue(), "path": None},
        {"bytes": None, "path": str(tmp_path / "a.png")},
        str(tmp_path / "a.png"),
    ]
    for image in kinds:
        read = study_image(row(images=[image]))
        assert read.mode == "L" and np.asarray(read).max() == np.asarray(read).min() == 100


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "has no image"),
        ([{"bytes": b"no picture", "path": None}], "'bad'.*not a picture"),
        ([{"bytes": None, "path": None}], "'bad'.*is empty"),
        ([np.full((64, 64), np.nan)], "'bad'.*NaN"),
        ([picture(size=1)], "'bad'.*1 x 1"),
        ([picture(size=4)], "'bad'.*4 x 4"),
    ],
)
def test_bad_images_are_named_by_study(images: list[Any], message: str, processor: PalmProcessor) -> None:
    with pytest.raises(DataError, match=message):
        DataCollatorForPalm(processor, stage="mem")([row(study_id="good"), row(study_id="bad", images=images)])


def test_keys_and_shapes_of_each_stage(processor: PalmProcessor) -> None:
    rows = [row(), row(findings="No effusion.")]
    shapes = {
        stage: {name: tuple(value.shape) for name, value in DataCollatorForPalm(processor, stage)(rows).items()}
        for stage in ("mem", "align", "generate")
    }
    assert shapes["mem"] == {"pixel_values": (2, 3, 56, 56)}
    assert set(shapes["align"]) == {"pixel_values", "report_input_ids", "report_attention_mask"}
    assert set(shapes["generate"]) == {
        "pixel_values",
        "input_ids",
        "attention_mask",
        "labels",
        "indication_input_ids",
        "indication_attention_mask",
    }
    assert shapes["generate"]["labels"] == shapes["generate"]["input_ids"]


def test_the_target_is_the_cleaned_section_with_start_and_end(processor: PalmProcessor) -> None:
    batch = DataCollatorForPalm(processor)([row(findings="1. ___ The lungs  are clear."), row()])
    assert processor.batch_decode(batch["labels"][0:1], skip_special_tokens=True) == ["The lungs are clear."]
    tokenizer = processor.tokenizer
    assert batch["input_ids"][0, 0] == tokenizer.bos_token_id and batch["labels"][0, -1] == tokenizer.eos_token_id
    assert torch.equal(batch["labels"][0], batch["labels"][1])
    other = DataCollatorForPalm(processor, section="impression")([row()])
    assert processor.batch_decode(other["input_ids"], skip_special_tokens=True) == ["Normal."]
    longer = DataCollatorForPalm(processor)([row(), row(findings="The lungs are clear. No effusion.")])
    padding = longer["attention_mask"][0] == 0
    assert padding.any() and bool((longer["labels"][0][padding] == -100).all())
    assert DataCollatorForPalm(processor, max_length=5)([row()])["input_ids"].shape == (1, 5)


def test_indications_are_optional(processor: PalmProcessor) -> None:
    collator = DataCollatorForPalm(processor)
    mixed = collator([row(), row(indication=None), row(indication="N/A"), row(indication="___")])
    assert mixed["indication_attention_mask"].sum(1).tolist()[1:] == [0, 0, 0]
    assert mixed["indication_attention_mask"][0].sum() > 2
    assert "indication_input_ids" not in collator([row(indication=None)])
    assert "indication_input_ids" not in DataCollatorForPalm(processor, use_indication=False)([row()])


@pytest.mark.parametrize("text", [None, "", "nan", "None", "N/A", "XXXX", float("nan")])
def test_rows_without_the_section_are_refused_but_for_mem(text: Any, processor: PalmProcessor) -> None:
    assert DataCollatorForPalm(processor, stage="mem")([row(findings=text)])
    for stage in ("align", "generate"):
        with pytest.raises(DataError, match="'s1' has no findings"):
            DataCollatorForPalm(processor, stage=stage)([row(findings=text)])


def test_unknown_stage_and_cleaning(processor: PalmProcessor) -> None:
    with pytest.raises(ConfigError, match="no stage 'train'"):
        DataCollatorForPalm(processor, stage="train")
    with pytest.raises(ConfigError, match="cleaning is 'soap'"):
        DataCollatorForPalm(processor, cleaning="soap")


def test_batch_equals_single_rows(processor: PalmProcessor) -> None:
    rows = list(phantom_dataset(3, size=64, masks=()))
    collator = DataCollatorForPalm(processor)
    together = collator(rows)
    for index, study in enumerate(rows):
        alone = collator([study])
        assert torch.equal(alone["pixel_values"][0], together["pixel_values"][index])
        length = alone["input_ids"].shape[1]
        assert torch.equal(alone["input_ids"][0], together["input_ids"][index, :length])
        assert together["attention_mask"][index].sum() == length
