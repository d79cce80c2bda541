from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.evaluation.regions import (
    ANATOMICAL_REGIONS,
    BACKGROUND,
    MATCHED_BACKGROUND,
    REGIONS,
    evidence_image_index,
    grey_array,
    occlude,
    region_masks,
)

SIZE = 40


def rectangle(rows: slice, columns: slice, shape: tuple[int, int] = (SIZE, SIZE)) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    mask[rows, columns] = True
    return mask


ANATOMY = {
    "right lung": rectangle(slice(5, 30), slice(4, 16)),
    "left lung": rectangle(slice(5, 30), slice(24, 36)),
    "cardiac silhouette": rectangle(slice(18, 32), slice(15, 28)),
}


def row(masks: dict[str, np.ndarray] | None = None, *, index: int = 0, n_images: int = 1, **fields: Any) -> Any:
    entries = [
        {"name": name, "image_index": index, "mask": Image.fromarray(mask.astype(np.uint8) * 255)}
        for name, mask in (ANATOMY if masks is None else masks).items()
    ]
    image = Image.fromarray(np.full((SIZE, SIZE), 100, dtype=np.uint8))
    return {"study_id": "s", "images": [image] * n_images, "masks": entries, **fields}


def test_masks_of_the_data_set() -> None:
    masks, kind = region_masks(row())
    assert kind == "dataset" and tuple(masks) == REGIONS
    for name in ANATOMICAL_REGIONS:
        assert np.array_equal(masks[name], ANATOMY[name])
    thorax = np.logical_or.reduce(list(ANATOMY.values()))
    assert not (masks[BACKGROUND] & thorax).any()
    # the mediastinum between the lungs, of which there is no mask, is no background
    assert not masks[BACKGROUND][10, 16:24].any()
    assert masks[BACKGROUND][2].all() and masks[BACKGROUND][10, :4].all() and masks[BACKGROUND][35].all()


def test_more_anatomy_leaves_less_background() -> None:
    trachea = {"trachea": rectangle(slice(0, 6), slice(18, 22))}
    masks, _ = region_masks(row({**ANATOMY, **trachea}))
    assert not masks[BACKGROUND][2, 18:22].any() and masks[BACKGROUND][2, :18].all()
    # findings are no anatomy: they do not shrink the background
    finding = {"Pneumothorax": rectangle(slice(0, 4), slice(0, SIZE))}
    assert np.array_equal(
        region_masks(row({**ANATOMY, **finding})).masks[BACKGROUND], region_masks(row()).masks[BACKGROUND]
    )


def test_matched_background_has_the_mean_anatomical_area_and_is_compact() -> None:
    masks, _ = region_masks(row())
    matched = masks[MATCHED_BACKGROUND]
    assert matched.sum() == round(np.mean([mask.sum() for mask in ANATOMY.values()]))
    assert not (matched & ~masks[BACKGROUND]).any()
    again = region_masks(row()).masks[MATCHED_BACKGROUND]
    assert np.array_equal(matched, again)
    others = [region_masks(row(study_id=f"s{i}")).masks[MATCHED_BACKGROUND] for i in range(5)]
    assert any(not np.array_equal(matched, other) for other in others)
    assert any(
        not np.array_equal(matched, region_masks(row(), seed=seed).masks[MATCHED_BACKGROUND]) for seed in (1, 2, 3)
    )
    # little background: all of it, not more
    wide = {
        "left lung": rectangle(slice(0, 38), slice(20, 40)),
        "right lung": rectangle(slice(0, 38), slice(0, 20)),
        "cardiac silhouette": rectangle(slice(0, 38), slice(10, 30)),
    }
    masks, _ = region_masks(row(wide))
    assert masks[MATCHED_BACKGROUND].sum() == masks[BACKGROUND].sum() == 2 * SIZE


@pytest.mark.parametrize("left_out", ANATOMICAL_REGIONS)
def test_incomplete_masks_fall_back_to_fixed_regions_by_name(left_out: str) -> None:
    masks, kind = region_masks(row({name: mask for name, mask in ANATOMY.items() if name != left_out}))
    assert kind == "fixed_regions"
    assert all(masks[name].any() for name in REGIONS)
    right, left = masks["right lung"], masks["left lung"]
    assert np.nonzero(right)[1].max() < np.nonzero(left)[1].min()  # the patient's right is on the viewer's left
    empty = dict(ANATOMY, **{left_out: np.zeros((SIZE, SIZE), dtype=bool)})
    assert region_masks(row(empty)).kind == "fixed_regions"


def test_masks_of_another_image_do_not_count() -> None:
    two = row(index=1, n_images=2, views=["lateral", "frontal"])
    assert evidence_image_index(two) == 1 and region_masks(two).kind == "dataset"
    assert region_masks(two, image_index=0).kind == "fixed_regions"
    assert evidence_image_index(row(views=["lateral"])) == 0
    with pytest.raises(DataError, match="none with index 2"):
        region_masks(two, image_index=2)


def test_mask_of_another_size_is_an_error() -> None:
    small = {**ANATOMY, "left lung": rectangle(slice(0, 5), slice(0, 5), (20, 20))}
    with pytest.raises(DataError, match=r"mask 'left lung' is \(20, 20\), its image \(40, 40\)"):
        region_masks(row(small))


def test_image_of_a_row_may_be_undecoded() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(buffer, format="PNG")
    assert grey_array({"bytes": buffer.getvalue(), "path": None}).shape == (40, 40)
    deep = Image.open(io.BytesIO(buffer.getvalue()))
    assert grey_array(deep).dtype == np.uint16


def test_occlude_fills_with_the_image_mean_and_changes_nothing_else() -> None:
    image = np.random.default_rng(0).integers(0, 255, size=(SIZE, SIZE), dtype=np.uint8)
    before = image.copy()
    mask = ANATOMY["left lung"]
    hidden = occlude(image, mask)
    assert (hidden[mask] == round(image.mean())).all()
    assert np.array_equal(hidden[~mask], image[~mask]) and np.array_equal(image, before)
    # after normalisation by the image's own mean, the region is 0 within half a grey level
    assert abs((hidden[mask] - image.mean()) / image.std()).max() <= 0.5 / image.std()
    assert (occlude(image, mask, fill="black")[mask] == 0).all()
    assert (occlude(image, mask, fill=7)[mask] == 7).all()
    deep = image.astype(np.uint16) * 257
    assert occlude(deep, mask).dtype == np.uint16
    assert (occlude(deep, mask)[mask] == round(deep.mean())).all()
    assert np.array_equal(occlude(Image.fromarray(image), mask), hidden)
    assert np.array_equal(occlude(image, np.zeros_like(mask)), image)


def test_occlude_errors() -> None:
    image = np.zeros((SIZE, SIZE), dtype=np.uint8)
    with pytest.raises(DataError, match="same size"):
        occlude(image, np.zeros((3, 3), dtype=bool))
    with pytest.raises(ConfigError, match="'noise'"):
        occlude(image, ANATOMY["left lung"], fill="noise")
    with pytest.raises(ConfigError, match="outside the image's range"):
        occlude(image, ANATOMY["left lung"], fill=256)


def test_fixed_regions_fit_a_real_chest(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "masks" / "chexmask_example"
    if not folder.is_dir():
        pytest.skip("no chexmask_example")
    image = Image.open(folder / "utils_example1.jpg")
    masks, _ = region_masks({"study_id": "x", "images": [image], "masks": []})
    for name, file in (("left lung", "LL"), ("right lung", "RL"), ("cardiac silhouette", "H")):
        true = np.asarray(Image.open(folder / f"{file}_mask.png").convert("L")) > 127
        assert (masks[name] & true).sum() / (masks[name] | true).sum() > 0.5
        assert (masks[BACKGROUND] & true).sum() / true.sum() < 0.05
