"""The Study schema: what a row holds, in which form, and that it survives a round trip."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from datasets import Dataset, Image, load_from_disk
from PIL import Image as PilImage

from rrg_hf.data.phantom import PHANTOM_SPLITS
from rrg_hf.data.study import SPLITS, TEXT_FIELDS, VIEWS, Box, Mask, Study, study_features
from rrg_hf.observations import OBSERVATIONS


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    PilImage.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 9), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def study(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "study_id": "s1",
        "patient_id": "p1",
        "images": [{"bytes": png(1), "path": None}, {"bytes": png(2), "path": None}],
        "views": ["frontal", "lateral"],
        **dict.fromkeys(TEXT_FIELDS),
        "findings": "Clear.",
        "labels": dict.fromkeys(OBSERVATIONS) | {"Edema": "negative"},
        "boxes": [{"finding": "Edema", "image_index": 0, "xywh": [1.0, 2.0, 3.0, 4.5]}],
        "masks": [{"name": "left lung", "image_index": 0, "mask": {"bytes": png(3), "path": None}}],
        "source": "test",
        "split": "train",
    }
    return row | changes


def test_the_type_and_the_features_name_the_same_columns_in_the_same_order() -> None:
    features = study_features()
    assert list(features) == list(get_type_hints(Study))
    assert list(features["labels"]) == list(OBSERVATIONS)
    assert list(features["boxes"].feature) == list(get_type_hints(Box))
    assert list(features["masks"].feature) == list(get_type_hints(Mask))
    assert set(TEXT_FIELDS) < set(features)


def test_the_phantom_has_the_splits_of_every_source_and_one_more() -> None:
    assert PHANTOM_SPLITS[: len(SPLITS)] == SPLITS
    assert set(PHANTOM_SPLITS) - set(SPLITS) == {"test_shifted"}
    assert len(set(VIEWS)) == 3


def test_a_row_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    Dataset.from_list([study()], features=study_features()).save_to_disk(tmp_path / "d")
    (row,) = load_from_disk(str(tmp_path / "d"))
    expected = study()
    for name in set(expected) - {"images", "masks"}:
        assert row[name] == expected[name], name
    assert [np.array_equal(np.asarray(image), np.asarray(PilImage.open(io.BytesIO(png(seed))))) for image, seed in
            zip(row["images"], (1, 2), strict=True)] == [True, True]  # fmt: skip
    assert row["masks"][0]["mask"].size == (9, 12)


def test_undecoded_images_keep_the_very_bytes() -> None:
    features = study_features(decode_images=False)
    assert features["images"].feature == Image(decode=False)
    (row,) = Dataset.from_list([study()], features=features)
    assert [image["bytes"] for image in row["images"]] == [png(1), png(2)]
    assert row["masks"][0]["mask"]["bytes"] == png(3)
    # only the reading differs: both have one storage, so that one can be cast to the other
    assert features.arrow_schema.types == study_features().arrow_schema.types


@pytest.mark.parametrize(
    "change",
    [
        {"boxes": [{"finding": "Edema", "image_index": 0, "xywh": [1.0, 2.0, 3.0]}]},
        {"boxes": [{"finding": "Edema", "image_index": "first", "xywh": [1.0, 2.0, 3.0, 4.0]}]},
    ],
)
def test_rows_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Dataset.from_list([study(**change)], features=study_features())
