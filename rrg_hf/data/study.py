"""The `Study` schema that everything in the project speaks: one row per imaging study, as `datasets.Features`."""

from __future__ import annotations

from typing import Any, TypedDict

from datasets import Features, Image, List, Value

from ..observations import OBSERVATIONS

# What every source is divided into. A source may add splits of its own (`phantom.PHANTOM_SPLITS` has one more).
SPLITS = ("train", "validation", "test")
VIEWS = ("frontal", "lateral", "unknown")


class Box(TypedDict):
    finding: str  # an observation name, or a source's own finding name
    image_index: int  # index into the study's `images`
    xywh: list[float]  # left, top, width, height in pixels of the stored image


class Mask(TypedDict):
    name: str  # an observation name or an anatomy name
    image_index: int
    mask: Any  # 8-bit greyscale image of the stored image's size; > 127 is inside


class Study(TypedDict, total=False):
    """One imaging study. Text fields hold the section's text, or None where the report has none."""

    study_id: str
    patient_id: str
    images: list[Any]
    views: list[str]  # one of VIEWS per image
    indication: str | None
    comparison: str | None
    technique: str | None
    findings: str | None
    impression: str | None
    labels: dict[str, str | None]  # observation name -> LabelState value; None where nobody labelled it
    boxes: list[Box]
    masks: list[Mask]
    source: str  # the data set's name, e.g. "iu_xray", "phantom"
    split: str  # one of SPLITS, or a source's own


TEXT_FIELDS = ("indication", "comparison", "technique", "findings", "impression")


def study_features(*, decode_images: bool = True) -> Features:
    """`datasets.Features` of a `Study` row.

    Args:
        decode_images: False keeps images as {bytes, path} structs, for tools that copy rows without looking at pixels.
    """
    return Features(
        {
            "study_id": Value("string"),
            "patient_id": Value("string"),
            "images": List(Image(decode=decode_images)),
            "views": List(Value("string")),
            "indication": Value("string"),
            "comparison": Value("string"),
            "technique": Value("string"),
            "findings": Value("string"),
            "impression": Value("string"),
            "labels": {name: Value("string") for name in OBSERVATIONS},
            "boxes": List(
                {"finding": Value("string"), "image_index": Value("int32"), "xywh": List(Value("float32"), length=4)}
            ),
            "masks": List(
                {"name": Value("string"), "image_index": Value("int32"), "mask": Image(decode=decode_images)}
            ),
            "source": Value("string"),
            "split": Value("string"),
        }
    )
