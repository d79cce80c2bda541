"""Image regions of the evidence test: anatomy from a study's masks or fixed boxes, and the background controls."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..data.images import read_image
from ..errors import ConfigError, DataError

ANATOMICAL_REGIONS = ("left lung", "right lung", "cardiac silhouette")
BACKGROUND = "background"
MATCHED_BACKGROUND = "background, area matched"
REGIONS = (*ANATOMICAL_REGIONS, BACKGROUND, MATCHED_BACKGROUND)

# What else counts as thorax, where a data set has masks of it.
_ALSO_THORAX = ("mediastinum", "upper mediastinum", "aortic arch", "superior vena cava", "trachea", "carina")
# left, top, right, bottom as shares of width and height, for an upright frontal image. The patient's left lung is on
# the viewer's right.
_FIXED_BOXES: dict[str, tuple[float, float, float, float]] = {
    "right lung": (0.07, 0.10, 0.45, 0.86),
    "left lung": (0.55, 0.10, 0.93, 0.86),
    "cardiac silhouette": (0.36, 0.45, 0.74, 0.84),
}


class RegionMasks(NamedTuple):
    """Regions of one image.

    Attributes:
        masks: region name -> bool (H, W), True inside.
        kind: "dataset" if the anatomy comes from the study's own masks, "fixed_regions" if from fixed boxes.
    """

    masks: dict[str, np.ndarray]
    kind: str


def evidence_image_index(row: Mapping[str, Any]) -> int:
    """The image the test occludes: the first frontal view, else the first image."""
    views = list(row.get("views") or [])
    return views.index("frontal") if "frontal" in views else 0


def grey_array(image: Any) -> np.ndarray:
    """An image of a row (PIL, array, path, bytes or {"bytes", "path"}) as (H, W) uint8, or uint16 if it is deeper."""
    if isinstance(image, Mapping):
        image = image["bytes"] if image.get("bytes") is not None else image["path"]
    deep = getattr(image, "mode", "").startswith("I") or getattr(image, "dtype", None) == np.uint16
    return read_image(image, bits=16 if deep else 8, output="array")


def region_masks(row: Mapping[str, Any], *, image_index: int | None = None, seed: int = 0) -> RegionMasks:
    """The regions of PALM's evidence test (Table 4) for one study, and an area-matched background.

    "left lung", "right lung" and "cardiac silhouette" come from the study's masks of these names; if one of the three
    is missing, all come from fixed boxes of an upright frontal image, and the kind says so. "background" is what lies
    outside lungs, heart and mediastinum: outside the row-wise hull of these masks, which closes the mediastinum
    between the lungs where no mask of it is at hand. "background, area matched" is a compact part of the background,
    at a place drawn by seed and study, as large as the mean of the three anatomical regions (or all of the
    background, if that is smaller): removing more pixels must not pass for removing more evidence.

    Args:
        row: a `Study` row.
        image_index: which image; default `evidence_image_index`.
        seed: of the place of the matched background.

    Raises:
        DataError: no image, or a mask of another size than its image.
    """
    images = row.get("images") or []
    index = evidence_image_index(row) if image_index is None else image_index
    if not 0 <= index < len(images):
        raise DataError(f"Study {row.get('study_id')!r} has {len(images)} images, none with index {index}.")
    shape = grey_array(images[index]).shape
    found: dict[str, np.ndarray] = {}
    for entry in row.get("masks") or []:
        if entry["image_index"] != index or entry["name"] not in (*ANATOMICAL_REGIONS, *_ALSO_THORAX):
            continue
        mask = grey_array(entry["mask"]) > 127
        if mask.shape != shape:
            raise DataError(
                f"Study {row.get('study_id')!r}: the mask {entry['name']!r} is {mask.shape}, its image {shape}. "
                "Masks must have the stored image's size."
            )
        found[entry["name"]] = found[entry["name"]] | mask if entry["name"] in found else mask
    kind = "dataset" if all(name in found and found[name].any() for name in ANATOMICAL_REGIONS) else "fixed_regions"
    if kind == "fixed_regions":
        found = {name: _box(shape, box) for name, box in _FIXED_BOXES.items()}
    masks = {name: found[name] for name in ANATOMICAL_REGIONS}
    thorax = np.logical_or.reduce(list(found.values()))
    masks[BACKGROUND] = ~_row_hull(thorax)
    area = round(float(np.mean([masks[name].sum() for name in ANATOMICAL_REGIONS])))
    masks[MATCHED_BACKGROUND] = _compact_part(masks[BACKGROUND], area, _seed(seed, str(row.get("study_id"))))
    return RegionMasks(masks, kind)


def _box(shape: Sequence[int], box: tuple[float, float, float, float]) -> np.ndarray:
    height, width = shape
    left, top, right, bottom = box
    mask = np.zeros((height, width), dtype=bool)
    mask[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
    return mask


def _row_hull(mask: np.ndarray) -> np.ndarray:
    """In each row, everything between the leftmost and the rightmost True."""
    from_left = np.logical_or.accumulate(mask, axis=1)
    from_right = np.logical_or.accumulate(mask[:, ::-1], axis=1)[:, ::-1]
    return from_left & from_right


def _compact_part(mask: np.ndarray, area: int, seed: int) -> np.ndarray:
    """The `area` pixels of the mask nearest to one of its pixels, drawn by seed."""
    rows, columns = np.nonzero(mask)
    part = np.zeros_like(mask)
    if len(rows) == 0:
        return part
    centre = np.random.default_rng(seed).integers(len(rows))
    distance = (rows - rows[centre]) ** 2 + (columns - columns[centre]) ** 2
    nearest = np.argsort(distance, kind="stable")[:area]
    part[rows[nearest], columns[nearest]] = True
    return part


def _seed(seed: int, study_id: str) -> int:
    """One place per study, whatever the order of the studies or the process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{study_id}".encode()).digest()[:8], "big")


def check_fill(fill: str | float) -> None:
    """Fail early on a fill `occlude` does not know.

    Raises:
        ConfigError: neither "mean", "black" nor a grey value.
    """
    if isinstance(fill, str) and fill not in ("mean", "black"):
        raise ConfigError(f"Unknown fill {fill!r}. Use 'mean', 'black' or a grey value.")


def occlude(image: Any, mask: np.ndarray, *, fill: str | float = "mean") -> np.ndarray:
    """Remove a region from an image by a constant grey.

    "mean" is the mean of the whole image in pixel space. After an image processor's normalisation it lies where the
    image's own average lies, close to 0, the value a masked patch has in PALM's masked evidence modelling; black would
    be a new dark object, as a pneumothorax is.

    Args:
        image: (H, W) uint8 or uint16 array, or what `read_image` takes; not changed.
        mask: bool (H, W), True where the image is removed.
        fill: "mean", "black", or a grey value in the image's own scale.

    Returns:
        A new array (H, W) of the image's type.

    Raises:
        DataError: mask and image differ in size.
        ConfigError: an unknown fill.
    """
    pixels = grey_array(image).copy()
    mask = np.asarray(mask, dtype=bool)
    if mask.shape != pixels.shape:
        raise DataError(f"The mask is {mask.shape}, the image {pixels.shape}. They must have the same size.")
    limit = np.iinfo(pixels.dtype).max
    check_fill(fill)
    if isinstance(fill, str):
        value = float(pixels.mean()) if fill == "mean" else 0.0
    else:
        value = float(fill)
    if not 0 <= value <= limit:
        raise ConfigError(f"The fill {fill} is outside the image's range 0 to {limit}.")
    pixels[mask] = round(value)
    return pixels
