"""Radiographs from any container to 8-bit RGB, as the backbones' image processors expect them.

The same rules as PALM's; each model folder loads alone, so each holds its own copy.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from PIL import Image
from transformers.image_utils import load_image

MIN_IMAGE_SIDE = 8


def to_rgb_image(image: Any, name: str = "image") -> Image.Image:
    """One radiograph as an 8-bit RGB image.

    Args:
        image: PIL image of any mode, an array or tensor, (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or 4, or where
            to find one: a file's path, a web address, or base64 text. 8-bit values are taken as they are. 16-bit
            values are scaled by 255 / 65535, never clipped. Floating-point values are 0..1, or 0..255 when the largest
            exceeds 1. Wider integers are 8-bit when none exceeds 255, 16-bit otherwise. An alpha channel is dropped.
        name: how to call it in errors.

    Returns:
        An RGB image of the same size; greyscale is repeated over the channels.

    Raises:
        ValueError: not an image, empty, smaller than 8 x 8 pixels, NaN, infinite or negative pixels, or values
            beyond 16 bits.
    """
    if isinstance(image, (str, os.PathLike)):
        # transformers' own loader clips 16-bit files, so it gets only what is not a file
        image = Image.open(image) if os.path.isfile(image) else load_image(os.fspath(image))  # noqa: PTH113
    if isinstance(image, Image.Image):
        _check_size(image.height, image.width, name)
        if not image.mode.startswith("I") and image.mode != "F":
            return image.convert("RGB")
        array = np.asarray(image)
        if image.mode.startswith("I;16"):
            array = array.astype(np.uint16)
    else:
        if hasattr(image, "detach"):
            image = image.detach().cpu()
            image = image.float().numpy() if image.is_floating_point() else image.numpy()
        array = np.asarray(image)
    if array.dtype == object or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise ValueError(
            f"{name} is not an image: got {type(image).__name__}. Give a PIL image, an array, a tensor or a path."
        )
    array = _channels_last(array, name)
    _check_size(array.shape[0], array.shape[1], name)
    return Image.fromarray(np.repeat(_to_uint8(array, name), 3 // array.shape[2], axis=2))


def _check_size(height: int, width: int, name: str) -> None:
    if min(height, width) < MIN_IMAGE_SIDE:
        raise ValueError(
            f"{name} is {width} x {height} pixels. A radiograph needs at least {MIN_IMAGE_SIDE} x {MIN_IMAGE_SIDE}; "
            "the file is probably a placeholder or was cut off."
        )


def _channels_last(array: np.ndarray, name: str) -> np.ndarray:
    """(H, W, 1) or (H, W, 3), without alpha."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim == 3:
        if array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
            array = np.moveaxis(array, 0, -1)
        if array.shape[-1] in (1, 3, 4):
            return array[..., :3]
    raise ValueError(
        f"{name} has shape {array.shape}. Give one frame as (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, "
        "and several images as a list."
    )


def _to_uint8(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has NaN or infinite pixels. Check how it was decoded.")
    if values.min() < 0:
        raise ValueError(f"{name} has negative pixels. Rescale it to 0..255 first (raw DICOM: `rrg_hf.read_image`).")
    largest = values.max()
    if array.dtype == np.uint16:
        limit = 65535.0
    elif np.issubdtype(array.dtype, np.floating):
        limit = 1.0 if largest <= 1 else 255.0
    else:
        limit = 255.0 if largest <= 255 else 65535.0
    if largest > limit:
        raise ValueError(f"{name} has pixels up to {largest:g}, beyond its value range. Rescale it to 0..255 first.")
    return np.rint(values * (255.0 / limit)).astype(np.uint8)
