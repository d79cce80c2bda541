"""Builds small DICOM files in memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid


def build_dicom(
    pixels: Any, *, syntax: str = ExplicitVRLittleEndian, drop: tuple[str, ...] = (), **tags: Any
) -> bytes:
    """A DICOM file of the given stored values; `tags` replace or add elements, None values are left out."""
    pixels = np.asarray(pixels)
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1"
    dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.PatientName = "SECRET^NAME"
    dataset.PatientID = "SECRET-ID"
    signed = pixels.dtype.kind == "i"
    values: dict[str, Any] = {
        "Rows": pixels.shape[0],
        "Columns": pixels.shape[1],
        "SamplesPerPixel": 1 if pixels.ndim == 2 else 3,
        "PhotometricInterpretation": "MONOCHROME2" if pixels.ndim == 2 else "RGB",
        "BitsAllocated": 8 * pixels.dtype.itemsize,
        "BitsStored": 8 * pixels.dtype.itemsize,
        "PixelRepresentation": int(signed),
        **tags,
    }
    if pixels.ndim == 3:
        values.setdefault("PlanarConfiguration", 0)
    values.setdefault("HighBit", values["BitsStored"] - 1)
    values.setdefault("PixelData", pixels.tobytes())
    for keyword, value in values.items():
        if keyword not in drop:
            setattr(dataset, keyword, value)
    if "PixelData" in dataset:
        dataset["PixelData"].VR = "OW" if pixels.dtype.itemsize == 2 else "OB"
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def dicom() -> Callable[..., bytes]:
    return build_dicom
