"""DICOM to greyscale, in the order of the standard: modality LUT, VOI LUT or window, then polarity, exactly once.

Rules where the standard leaves a choice or files break it:

- Polarity: the picture is inverted once if it is MONOCHROME1 or its Presentation LUT Shape is INVERSE. The two say the
  same thing (real digital radiographs carry both), so both together still invert once.
- VOI: the first VOI LUT if there is one, else the first window. A LUT whose entries use less than half of the depth
  it declares is scaled by the depth it uses.
- No VOI at all, or one that would make the whole picture one grey: the smallest and largest values of the picture
  (padding left out) become black and white. The stored bit depth is not used, as detectors rarely fill it.
- A negative rescale slope reverses the values before the window is applied, as the standard has it.
- Pixels of the Pixel Padding Value (or range) are background and come out black.
- Colour and palette files become luma. Presentation LUT sequences and overlays are ignored.

Only the elements that describe pixels are parsed, so a patient's data are never in memory, in a log or in an error.
Source: DICOM PS3.3 C.7.6.3.1.2, C.11.1, C.11.2.1.2, C.11.6; PS3.4 N.2.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, BinaryIO

import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset, read_preamble
from pydicom.pixels import apply_color_lut, get_decoder, pixel_array
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from ..errors import ImageReadError
from .images import check_size, luma

logger = logging.getLogger(__name__)

_ELEMENTS: list[int] = [
    0x00280002,  # Samples per Pixel
    0x00280004,  # Photometric Interpretation
    0x00280006,  # Planar Configuration
    0x00280008,  # Number of Frames
    0x00280010,  # Rows
    0x00280011,  # Columns
    0x00280100,  # Bits Allocated
    0x00280101,  # Bits Stored
    0x00280102,  # High Bit
    0x00280103,  # Pixel Representation
    0x00280120,  # Pixel Padding Value
    0x00280121,  # Pixel Padding Range Limit
    0x00281050,  # Window Center
    0x00281051,  # Window Width
    0x00281052,  # Rescale Intercept
    0x00281053,  # Rescale Slope
    0x00281056,  # VOI LUT Function
    0x00281101,  # palette descriptors and data
    0x00281102,
    0x00281103,
    0x00281201,
    0x00281202,
    0x00281203,
    0x00281221,
    0x00281222,
    0x00281223,
    0x00283000,  # Modality LUT Sequence
    0x00283010,  # VOI LUT Sequence
    0x20500020,  # Presentation LUT Shape
    0x7FE00001,  # Extended Offset Table
    0x7FE00002,
    0x7FE00008,  # Float Pixel Data
    0x7FE00009,  # Double Float Pixel Data
    0x7FE00010,  # Pixel Data
]


def read_dicom(stream: BinaryIO, name: str) -> np.ndarray:
    """Read a single-frame DICOM image.

    Args:
        stream: the file, opened in binary mode at its start.
        name: what error messages call it.

    Returns:
        float64 array (H, W) within 0..1; 0 is black.

    Raises:
        ImageReadError: damaged, truncated, several frames, no pixels, an unsupported transfer syntax, a size out of
            bounds.
    """
    # pydicom converts elements when they are looked at, so a damaged one can raise anywhere below.
    result: np.ndarray = _quietly(lambda: _read(stream, name), "is a damaged DICOM file", name)
    return result


def _read(stream: BinaryIO, name: str) -> np.ndarray:
    dataset = _parse(stream, name)
    stored = _decode(dataset, name)
    if stored.ndim == 3:
        bits = int(_number(dataset, "BitsStored", name) or stored.dtype.itemsize * 8)
        return np.clip(luma(stored) / float(2**bits - 1), 0.0, 1.0)
    if _text(dataset, "PhotometricInterpretation") == "PALETTE COLOR":
        colours = _quietly(lambda: apply_color_lut(stored, dataset), "its colour palette is damaged", name)
        return luma(colours[..., :3]) / float(np.iinfo(colours.dtype).max)
    low = int(stored.min())
    if int(stored.max()) - low > 0xFFFF:
        return _render(stored, dataset, name)
    # Every pixel of one stored value looks the same, so a few thousand values are rendered instead of millions.
    index = stored.astype(np.int32) - low
    levels = np.flatnonzero(np.bincount(index.ravel()))
    table = np.zeros(int(levels[-1]) + 1)
    table[levels] = _render(levels + low, dataset, name)
    return table[index]


def _quietly(action: Any, problem: str, name: str) -> Any:
    """Run a pydicom call; turn whatever it raises into one error without its text, which may quote file contents.

    Its warnings quote them as well, so they are dropped.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action()
    except ImageReadError:
        raise
    except Exception as error:
        raise ImageReadError(
            f"{name}: {problem} ({type(error).__name__}). Export or download the file again."
        ) from None


def _parse(stream: BinaryIO, name: str) -> Dataset:
    def meta_group() -> Dataset:
        read_preamble(stream, force=True)
        return read_dataset(stream, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)

    meta = _quietly(meta_group, "is not a readable DICOM file", name)
    # Inflating happens before any element can be checked, so a small file could fill the memory.
    if meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        raise ImageReadError(
            f"{name}: transfer syntax Deflated Explicit VR Little Endian ({DeflatedExplicitVRLittleEndian}) is not "
            "supported. Convert it to Explicit VR Little Endian first, for instance with dcmtk's dcmconv."
        )
    stream.seek(0)
    dataset: Dataset = _quietly(
        lambda: dcmread(stream, force=True, specific_tags=_ELEMENTS), "is not a readable DICOM file", name
    )
    if not dataset.file_meta.get("TransferSyntaxUID"):
        implicit = dataset.original_encoding[0]
        dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian
    return dataset


def _decode(dataset: Dataset, name: str) -> np.ndarray:
    """Checks everything that the header can tell, then decodes: (H, W) integers, or (H, W, 3) colour."""
    syntax = UID(str(dataset.file_meta.TransferSyntaxUID))
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise ImageReadError(
            f"{name}: transfer syntax {syntax.name} ({syntax}) is not a still image this library can decode. "
            "Convert the file to Explicit VR Little Endian."
        ) from None
    rows, columns = _number(dataset, "Rows", name), _number(dataset, "Columns", name)
    if rows is not None and columns is not None:
        check_size(int(columns), int(rows), name)
    frames = int(_number(dataset, "NumberOfFrames", name) or 1)
    if frames != 1:
        raise ImageReadError(f"{name}: holds {frames} frames. Export the one frame to read as its own file.")
    if "PixelData" not in dataset:
        if "FloatPixelData" in dataset or "DoubleFloatPixelData" in dataset:
            raise ImageReadError(f"{name}: stores floating-point pixels, which radiographs do not use.")
        raise ImageReadError(
            f"{name}: holds no pixel data. It is cut off, or no image (a report, a directory, a plan...)."
        )
    if rows is None or columns is None:
        raise ImageReadError(f"{name}: has no Rows or Columns element, so its pixels cannot be laid out.")
    samples = int(_number(dataset, "SamplesPerPixel", name) or 1)
    if samples not in (1, 3):
        raise ImageReadError(f"{name}: has {samples} samples per pixel; 1 (grey) or 3 (colour) can be read.")
    if not decoder.is_available:
        raise ImageReadError(
            f"{name}: transfer syntax {syntax.name} ({syntax}) needs an extra decoder. "
            "Install it with: pip install 'rrg_hf[dicom]'"
        )
    if not syntax.is_compressed:
        expected = (int(rows) * int(columns) * samples * int(_number(dataset, "BitsAllocated", name) or 16) + 7) // 8
        if _text(dataset, "PhotometricInterpretation") == "YBR_FULL_422":
            expected = expected // 3 * 2
        found = len(dataset.PixelData)
        if found < expected:
            raise ImageReadError(
                f"{name}: is truncated, with {found} of {expected} bytes of pixel data. Copy or download it again."
            )
    # pydicom demands these; a grey file without them is unambiguous.
    if "PhotometricInterpretation" not in dataset:
        dataset.PhotometricInterpretation = "MONOCHROME2" if samples == 1 else "RGB"
    for keyword, value in (("SamplesPerPixel", samples), ("PixelRepresentation", 0)):
        if keyword not in dataset:
            setattr(dataset, keyword, value)
    problem = "its pixel data are truncated or damaged"
    if syntax.is_compressed:
        # Pillow decodes JPEG of 8 bits only, and tells 12 bits apart from damage no better than this.
        problem += f", or its {syntax.name} ({syntax}) needs the decoders of: pip install 'rrg_hf[dicom]'"
    stored = _quietly(lambda: pixel_array(dataset), problem, name)
    expected_shape = (int(rows), int(columns)) if samples == 1 else (int(rows), int(columns), 3)
    if stored.shape != expected_shape:
        raise ImageReadError(
            f"{name}: its pixels have the shape {stored.shape}, but its header says {expected_shape}."
        )
    return stored


def _render(stored: np.ndarray, dataset: Dataset, name: str) -> np.ndarray:
    """Stored values of any shape, each at least once -> what a viewer shows, within 0..1."""
    padding = _padding(stored, dataset, name)
    values = _apply_modality(stored, dataset, name)
    unit = _apply_voi(values, dataset, name)
    picture = values[~padding]
    if picture.size == 0:
        return np.zeros(values.shape)
    low, high = float(picture.min()), float(picture.max())
    if unit is not None and low < high:
        shown = unit[~padding]
        if shown.min() == shown.max():
            logger.warning("%s: its window shows one grey only; the range of its pixels is used instead.", name)
            unit = None
    if unit is None:
        if low == high:
            return np.zeros(values.shape)
        unit = np.clip((values - low) / (high - low), 0.0, 1.0)
    if _is_inverted(dataset):
        unit = 1.0 - unit
    unit[padding] = 0.0
    return unit


def _is_inverted(dataset: Dataset) -> bool:
    photometric = _text(dataset, "PhotometricInterpretation")
    return photometric == "MONOCHROME1" or _text(dataset, "PresentationLUTShape") == "INVERSE"


def _padding(stored: np.ndarray, dataset: Dataset, name: str) -> np.ndarray:
    first = _number(dataset, "PixelPaddingValue", name)
    if first is None:
        return np.zeros(stored.shape, dtype=bool)
    last = _number(dataset, "PixelPaddingRangeLimit", name)
    last = first if last is None else last
    return (stored >= min(first, last)) & (stored <= max(first, last))


def _apply_modality(stored: np.ndarray, dataset: Dataset, name: str) -> np.ndarray:
    """Modality LUT, or rescale slope and intercept. PS3.3 C.11.1."""
    if dataset.get("ModalityLUTSequence"):
        table, first, _ = _lookup_table(dataset.ModalityLUTSequence[0], int(stored.min()), dataset, name)
        return table[np.clip(stored.astype(np.int64) - first, 0, len(table) - 1)].astype(np.float64)
    slope = _number(dataset, "RescaleSlope", name)
    intercept = _number(dataset, "RescaleIntercept", name)
    if slope == 0:
        raise ImageReadError(f"{name}: its rescale slope is 0, which makes every pixel equal.")
    return stored.astype(np.float64) * (1.0 if slope is None else slope) + (intercept or 0.0)


def _apply_voi(values: np.ndarray, dataset: Dataset, name: str) -> np.ndarray | None:
    """VOI LUT or window -> 0..1, or None where the file has neither. PS3.3 C.11.2."""
    if dataset.get("VOILUTSequence") and dataset.VOILUTSequence[0].get("LUTData") is not None:
        table, first, depth = _lookup_table(dataset.VOILUTSequence[0], int(np.floor(values.min())), dataset, name)
        used = int(table.max()).bit_length()
        # Half of the declared depth or less: the file's maker wrote 16 for a 12-bit table.
        top = 2 ** (depth if used == depth else max(used, 1)) - 1
        index = np.clip(np.floor(values + 0.5).astype(np.int64) - first, 0, len(table) - 1)
        return table[index].astype(np.float64) / top
    center, width = _number(dataset, "WindowCenter", name), _number(dataset, "WindowWidth", name)
    if center is None or width is None:
        return None
    return apply_window(values, center, width, _text(dataset, "VOILUTFunction") or "LINEAR", name)


def apply_window(values: np.ndarray, center: float, width: float, function: str, name: str) -> np.ndarray | None:
    """A window as in PS3.3 C.11.2.1.2 and C.11.2.1.3.

    Args:
        values: modality values (H, W).
        center, width: in modality units.
        function: "LINEAR", "LINEAR_EXACT" or "SIGMOID".
        name: what a warning calls the file.

    Returns:
        float64 (H, W) within 0..1, or None for a window that is not allowed (width too small, function unknown).
    """
    if function == "SIGMOID" and width > 0:
        return 1.0 / (1.0 + np.exp(np.clip(-4.0 * (values - center) / width, -700.0, 700.0)))
    if function == "LINEAR" and width >= 1:
        center, width = center - 0.5, width - 1.0
    elif function != "LINEAR_EXACT" or width <= 0:
        logger.warning("%s: its window is not allowed by the standard; the range of its pixels is used instead.", name)
        return None
    if width == 0:
        return (values > center).astype(np.float64)
    return np.clip((values - center) / width + 0.5, 0.0, 1.0)


def _lookup_table(item: Dataset, lowest: int, dataset: Dataset, name: str) -> tuple[np.ndarray, int, int]:
    """A LUT item -> (entries, first value mapped, declared depth in bits)."""

    def read() -> tuple[np.ndarray, int, int]:
        descriptor = [int(number) for number in item.LUTDescriptor]
        entries = descriptor[0] % 65536 or 65536
        first, depth = descriptor[1], descriptor[2]
        if first > 32767 and lowest < 0:
            first -= 65536  # a signed value that was written as unsigned
        data = item.LUTData
        if isinstance(data, bytes):
            little = dataset.file_meta.TransferSyntaxUID.is_little_endian
            wide = len(data) >= 2 * entries
            table = np.frombuffer(data, dtype=("<u2" if little else ">u2") if wide else np.uint8)
        else:
            table = np.atleast_1d(np.asarray(data, dtype=np.int64)) & 0xFFFF
        if len(table) < entries or not 1 <= depth <= 16:
            raise ValueError("the table does not fit its descriptor")
        return table[:entries], first, depth

    result: tuple[np.ndarray, int, int] = _quietly(read, "a lookup table in it is damaged", name)
    return result


def _number(dataset: Dataset, keyword: str, name: str) -> float | None:
    """A numeric element, or its first value; None if absent or empty."""

    def read() -> float | None:
        value = dataset.get(keyword)
        if value is None or value == "":
            return None
        if not isinstance(value, (int, float, str)) and hasattr(value, "__len__"):
            if len(value) == 0:
                return None
            value = value[0]
        number = float(value)
        if not np.isfinite(number):
            raise ValueError("not finite")
        return number

    result: float | None = _quietly(read, f"its element {keyword} is not a number", name)
    return result


def _text(dataset: Dataset, keyword: str) -> str:
    return str(dataset.get(keyword) or "").strip().upper()
