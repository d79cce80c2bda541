"""DataCollatorForLead: which image and which texts of a study become which tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rrg_hf.data.lead_collator import DataCollatorForLead
from rrg_hf.errors import ConfigError, DataError
from rrg_hf.modeling.lead import LeadQwen3VLProcessor
from tests.tiny_lead import make_processor_files


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_processor_files("qwen3_vl", tmp_path_factory.mktemp("files"))
    return LeadQwen3VLProcessor.from_pretrained(folder, image_size=32)


def row(**changes: Any) -> dict[str, Any]:
    return {
        "study_id": "s1",
        "images": [Image.fromarray(np.full((50, 40), 90, dtype=np.uint8))],
        "views": ["frontal"],
        "indication": "Cough.",
        "findings": "The heart is normal.",
        "expert_labels": [1.0, 0.0, -1.0],
    } | changes


def prompt(processor: Any, batch: dict[str, Any], index: int) -> str:
    return processor.decode(batch["input_ids"][index][batch["labels"][index] == -100])


def test_a_batch_is_what_the_processor_makes_of_its_rows(processor: Any) -> None:
    rows = [row(), row(study_id="s2", indication=None, findings="No pleural effusion.  ")]
    batch = DataCollatorForLead(processor)(rows)
    expected = processor.build_inputs(
        images=[[r["images"][0]] for r in rows],
        indication=["Cough.", None],
        report=["The heart is normal.", "No pleural effusion."],
    )
    assert set(batch) == {*expected, "expert_labels"}
    for name, value in expected.items():
        assert torch.equal(batch[name], value), name
    assert batch["expert_labels"].tolist() == [[1, 0, -1]] * 2 and batch["expert_labels"].dtype == torch.float32
    learnt = batch["input_ids"][0][batch["labels"][0] != -100]
    assert processor.decode(learnt) == "The heart is normal.<|im_end|>"


def test_settings(processor: Any) -> None:
    without = DataCollatorForLead(processor, use_indication=False)([row()])
    assert "Cough" in prompt(processor, DataCollatorForLead(processor)([row()]), 0)
    assert "Cough" not in prompt(processor, without, 0)
    collator = DataCollatorForLead(processor, section="impression", keep_samples=True)
    batch = collator([row(impression="Normal.", expert_labels=None)])
    assert "expert_labels" not in batch and [sample["report"] for sample in batch["samples"]] == ["Normal."]
    again = collator.encode(batch["samples"], [["Edema", "Fracture"]])
    assert "Findings predicted by a classifier: Edema, Fracture." in prompt(processor, again, 0)
    sample = collator.sample(row(), with_report=False)
    assert sample["report"] is None and "labels" not in collator.encode([sample])


def test_the_first_frontal_image_is_read(processor: Any) -> None:
    images = [Image.fromarray(np.full((40, 40), value, dtype=np.uint8)) for value in (10, 200)]
    two = DataCollatorForLead(processor)([row(images=images, views=["lateral", "frontal"])])
    one = DataCollatorForLead(processor)([row(images=[images[1]])])
    assert torch.equal(two["pixel_values"], one["pixel_values"])


def test_what_cannot_be_learnt_from_names_the_study(processor: Any) -> None:
    for changes, message in (
        ({"findings": " nan "}, "'s1' has no findings"),
        ({"images": []}, "'s1' has no image"),
        ({"findings": "The end.<|im_end|>"}, "'s1'.*control tokens"),
    ):
        with pytest.raises(DataError, match=message):
            DataCollatorForLead(processor)([row(**changes)])
    with pytest.raises(ConfigError, match="cleaning is 'soap'"):
        DataCollatorForLead(processor, cleaning="soap")
