"""Study rows for training: rows that cannot be learnt from are left out and counted, worlds are not mixed."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from PIL import Image

from rrg_hf.data.study import study_features
from rrg_hf.errors import ConfigError, DataError
from rrg_hf.trainers.study_data import check_world, prepare_studies, spread_rows


def study(index: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(study_features())
    row |= {
        "study_id": f"s{index}",
        "patient_id": f"p{index}",
        "images": [Image.fromarray(np.full((16, 16), index, dtype=np.uint8))],
        "views": ["frontal"],
        "findings": "Clear lungs.",
        "impression": None,
        "labels": dict.fromkeys(study_features()["labels"]),
        "boxes": [],
        "masks": [],
        "source": "iu_xray",
        "split": "train",
    }
    return row | changes


def make(rows: list[dict[str, Any]]) -> Dataset:
    return Dataset.from_list(rows, features=study_features())


ROWS = [
    study(0),
    study(1, findings=None),
    study(2, findings="nan"),
    study(3, findings="XXXX"),
    study(4, images=[], views=[]),
    study(5, findings="Small effusion."),
]


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_without_text_or_image_are_counted(streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    data: Any = make(ROWS)
    if streaming:
        data = data.to_iterable_dataset()
    with caplog.at_level(logging.WARNING):
        kept, summary = prepare_studies(data, name="train_dataset", section="findings", cleaning="default")
        ids = [row["study_id"] for row in kept]
        if streaming:
            summary.log("train_dataset")
    assert ids == ["s0", "s5"]
    assert summary.dropped == {"without findings": 3, "without an image": 1}
    assert summary.sources == ["iu_xray"]
    assert summary.rows == (None if streaming else 2)
    assert "3 without findings, 1 without an image" in caplog.text
    assert "effusion" not in caplog.text


def test_mem_needs_images_only() -> None:
    kept, summary = prepare_studies(make(ROWS), name="x", section=None, cleaning="default")
    assert [row["study_id"] for row in kept] == ["s0", "s1", "s2", "s3", "s5"]
    assert summary.dropped == {"without an image": 1}


def test_images_stay_undecoded_and_masks_are_not_carried() -> None:
    kept, _ = prepare_studies(make(ROWS), name="x", section=None, cleaning="default")
    assert set(kept[0]["images"][0]) == {"bytes", "path"}
    assert "masks" not in kept.column_names


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(DataError, match=r"no row to learn from: 6 without impression|5 without impression"):
        prepare_studies(make(ROWS), name="train_dataset", section="impression", cleaning="default")
    with pytest.raises(DataError, match="it is empty"):
        prepare_studies(make(ROWS).select([]), name="x", section=None, cleaning="default")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([study(0)], "is a list"),
        (DatasetDict({"train": make(ROWS)}), r"splits \['train'\]"),
        (Dataset.from_dict({"study_id": ["a"], "findings": ["b"]}), "no column images"),
    ],
)
def test_other_things_than_studies_are_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_studies(data, name="train_dataset", section="findings", cleaning="default")


def test_phantom_and_real_studies_do_not_mix() -> None:
    _, real = prepare_studies(make([study(0)]), name="a", section=None, cleaning="default")
    _, phantom = prepare_studies(make([study(0, source="phantom")]), name="b", section=None, cleaning="default")
    check_world({"a": real})
    check_world({"b": phantom, "c": phantom})
    with pytest.raises(DataError, match="mixed"):
        check_world({"a": real, "b": phantom})
    stream = make([study(0), study(1, source="phantom")]).to_iterable_dataset()
    kept, _ = prepare_studies(stream, name="c", section=None, cleaning="default")
    with pytest.raises(DataError, match="mixed"):
        list(kept)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("count", "wanted"), [(10, None), (10, 4), (3, 7), (1, 1)])
def test_spread_rows_shares_rows_out(world: int, count: int, wanted: int | None) -> None:
    data = list(range(100, 100 + count))
    shares = [list(spread_rows(data, wanted, rank, world)) for rank in range(world)]
    together = sorted(pair for share in shares for pair in share)
    assert len(together) == min(count, wanted or count) == len(set(together))
    assert all(row == 100 + position for position, row in together)
    if wanted == 4:
        assert [position for position, _ in together] == [0, 3, 6, 9]
    stream = [list(spread_rows(iter(data), wanted, rank, world)) for rank in range(world)]
    assert sorted(pair for share in stream for pair in share) == list(enumerate(data))[: wanted or count]
