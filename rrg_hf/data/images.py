"""Reads any chest X-ray picture as 8- or 16-bit greyscale: PNG, JPEG, DICOM, TIFF, BMP, PGM, WebP, PIL images, arrays.

Rules, the same for every source:

- 16-bit values are scaled to the wanted depth, never clipped: 8-bit = round(value / 257), 16-bit = value * 257.
- Colour becomes ITU-R 601 luma (0.299 R + 0.587 G + 0.114 B). Pillow keeps only the high byte of 16-bit colour PNGs.
- Transparency is composited on black, the background of a radiograph. A picture that is transparent everywhere is an
  error, since nobody can say what it shows.
- An EXIF orientation is applied, so pixels come as a viewer shows them (and as `datasets.Image` decodes them).
- DICOM: see `rrg_hf.data.dicom`.
"""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO, Literal, overload

import numpy as np
from PIL import Image, ImageOps

from ..errors import ConfigError, ImageReadError

logger = logging.getLogger(__name__)

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | np.ndarray

# Pillow's own warning level, about 9,460 x 9,460: three times the largest detector panels.
MAX_PIXELS = 89_478_485
# A single pixel, or a row of three, is a web page's placeholder and not a picture.
MIN_PIXELS = 4

# Only raster decoders. Pillow also opens formats that run other programs (EPS) or fetch nothing a radiograph needs.
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "PPM", "GIF", "WEBP", "JPEG2000")
_DICOM_SUFFIXES = (".dcm", ".dicom", ".dic")
# A DICOM data set without the 128-byte preamble starts with a group 0002 or 0008 tag, little endian.
_DICOM_STARTS = (b"\x02\x00\x00\x00", b"\x02\x00\x01\x00", b"\x08\x00\x05\x00", b"\x08\x00\x08\x00")


@overload
def read_image(
    source: ImageSource, *, bits: int = 8, output: Literal["pil"] = "pil", max_value: int | None = None
) -> Image.Image: ...


@overload
def read_image(
    source: ImageSource, *, bits: int = 8, output: Literal["array"], max_value: int | None = None
) -> np.ndarray: ...


def read_image(
    source: ImageSource,
    *,
    bits: int = 8,
    output: Literal["pil", "array"] = "pil",
    max_value: int | None = None,
) -> Image.Image | np.ndarray:
    """Read one picture as greyscale, with bright meaning dense (bone white, air black) for DICOM.

    Args:
        source: a file's path or its bytes, a PIL image, or an array of shape (H, W), (H, W, 1), (H, W, 3) or
            (H, W, 4). Arrays are uint8, uint16, bool, or floats within 0..1; other integers need `max_value`.
        bits: 8 or 16, the depth of the result.
        output: "pil" for a PIL image of mode "L" or "I;16", "array" for a uint8 or uint16 array of shape (H, W).
        max_value: the value that stands for white in the source, for instance 4095 for 12-bit data kept in 16-bit
            files. Default: 255 or 65535 by the source's own depth. Not used for DICOM, which tells its own scale.

    Returns:
        A new image or array; the source is never changed.

    Raises:
        ImageReadError: the file is missing, empty, damaged, truncated, no picture, of several frames, of an
            unsupported DICOM transfer syntax, larger than `MAX_PIXELS` or smaller than `MIN_PIXELS`; the array has
            another shape or type, or holds NaN or infinity. The message names the file, never its pixels or tags.
        ConfigError: `bits`, `output` or `max_value` make no sense.
    """
    if bits not in (8, 16):
        raise ConfigError(f"bits={bits!r} is not a depth this function gives. Use 8 or 16.")
    if output not in ("pil", "array"):
        raise ConfigError(f'output={output!r} is unknown. Use "pil" or "array".')
    if max_value is not None and not (isinstance(max_value, int | float | np.number) and 1 <= max_value <= 2**32 - 1):
        raise ConfigError(f"max_value={max_value!r} cannot stand for white. Give a positive integer such as 4095.")
    if isinstance(source, np.ndarray):
        grey = _from_array(source, "array", max_value)
    elif isinstance(source, Image.Image):
        grey = _from_pil(source, "PIL image", max_value)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        grey = _from_stream(io.BytesIO(source), "image bytes", len(source), False, max_value)
    elif isinstance(source, (str, os.PathLike)):
        grey = _from_path(Path(source), max_value)
    else:
        raise ImageReadError(
            f"A {type(source).__name__} is no image. Give a path, bytes, a PIL image or a numpy array."
        )
    array = _to_depth(grey, bits)
    return array if output == "array" else Image.fromarray(array)


def encode_image(path: str | os.PathLike[str]) -> bytes:
    """The bytes under which a picture is stored in a data set.

    8-bit grey or RGB PNG and JPEG files stay as they are; everything else (DICOM, 16-bit, palette, transparency, TIFF)
    becomes an 8-bit greyscale PNG of `read_image`, since `datasets.Image` and most processors read no more than that.

    Raises:
        ImageReadError: `read_image` cannot read the file.
    """
    image = read_image(path)
    data = Path(path).read_bytes()
    if not _looks_like_dicom(data[:132], Path(path).name):
        with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
            plain = opened.mode in ("L", "RGB") and "transparency" not in opened.info
            if plain and opened.format in ("PNG", "JPEG"):
                return data
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def check_size(width: int, height: int, name: str) -> None:
    """Refuse a picture by its declared size, before memory is taken for it.

    Raises:
        ImageReadError: fewer than `MIN_PIXELS` or more than `MAX_PIXELS` pixels.
    """
    if width * height > MAX_PIXELS:
        raise ImageReadError(
            f"{name}: declares {width} x {height} pixels, more than the {MAX_PIXELS:,} a radiograph can have. "
            "It may be a decompression bomb. If it is genuine, shrink it first."
        )
    if width < 1 or height < 1 or width * height < MIN_PIXELS:
        raise ImageReadError(
            f"{name}: is {width} x {height} pixels, below the minimum of {MIN_PIXELS} pixels. Give a real picture."
        )


def _from_path(path: Path, max_value: int | None) -> np.ndarray:
    try:
        if path.is_dir():
            raise ImageReadError(f"{path}: is a folder. Give one image file.")
        if path.exists() and not path.is_file():
            raise ImageReadError(f"{path}: is not a regular file.")
        size = path.stat().st_size
        with path.open("rb") as stream:
            return _from_stream(stream, str(path), size, path.suffix.lower() in _DICOM_SUFFIXES, max_value)
    except FileNotFoundError:
        raise ImageReadError(f"{path}: no such file.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ImageReadError):
            raise
        # A null byte in the name is a ValueError; a missing right or a name that is too long is an OSError.
        raise ImageReadError(f"{path}: cannot be opened ({type(error).__name__}).") from None


def _looks_like_dicom(head: bytes, name: str) -> bool:
    if head[128:132] == b"DICM":
        return True
    return head[:4] in _DICOM_STARTS or Path(name).suffix.lower() in _DICOM_SUFFIXES


def _from_stream(stream: BinaryIO, name: str, size: int, is_dicom: bool, max_value: int | None) -> np.ndarray:
    if size == 0:
        raise ImageReadError(f"{name}: is empty (0 bytes). Copy or download it again.")
    head = stream.read(132)
    stream.seek(0)
    # A PNG that somebody named .dcm is still a PNG.
    if _looks_like_dicom(head, "") or (is_dicom and not _is_known_raster(head)):
        from .dicom import read_dicom

        return read_dicom(stream, name)
    try:
        image = Image.open(stream, formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageReadError(
            f"{name}: declares more pixels than the {MAX_PIXELS:,} a radiograph can have (a decompression bomb?)."
        ) from None
    except Exception as error:  # decoders raise anything on hostile input
        raise ImageReadError(
            f"{name}: is not a picture this library reads ({type(error).__name__}). "
            "Readable: PNG, JPEG, DICOM, TIFF, BMP, PGM, GIF, WebP, JPEG 2000."
        ) from None
    with image:
        return _from_pil(image, name, max_value)


def _is_known_raster(head: bytes) -> bool:
    return head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"BM", b"GIF8", b"II*\x00", b"MM\x00*", b"RIFF"))


def _from_pil(image: Image.Image, name: str, max_value: int | None) -> np.ndarray:
    check_size(image.width, image.height, name)
    try:
        frames = getattr(image, "n_frames", 1)
        if frames == 1:
            image.load()
            image = ImageOps.exif_transpose(image)
    except Exception as error:  # decoders raise anything on hostile input
        raise ImageReadError(
            f"{name}: is truncated or damaged ({type(error).__name__}). Copy or download it again."
        ) from None
    if frames != 1:
        raise ImageReadError(f"{name}: holds {frames} frames. Save the one to read as a file of its own.")
    mode = image.mode
    if mode in ("P", "L", "RGB") and "transparency" in image.info:
        image = image.convert("LA" if mode == "L" else "RGBA")
        mode = image.mode
    if mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = _composite_on_black(image, name)
    elif mode == "P" or mode in ("CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
        image = image.convert("RGB")
    if image.mode == "1" or image.mode == "RGB":
        image = image.convert("L")
    if image.mode == "L" or image.mode.startswith("I;16"):
        return _from_array(_native(np.asarray(image)), name, max_value)
    if image.mode == "F":
        return _from_array(np.asarray(image), name, max_value)
    if image.mode == "I":
        values = np.asarray(image)
        # Pillow opens some 16-bit files (PGM, TIFF) as 32-bit.
        if max_value is None and values.size and values.min() >= 0 and values.max() <= 65535:
            values = values.astype(np.uint16)
        return _from_array(values, name, max_value)
    raise ImageReadError(f"{name}: has the pixel mode {image.mode!r}, which is not supported. Save it as 8-bit PNG.")


def _composite_on_black(image: Image.Image, name: str) -> Image.Image:
    rgba = image.convert("RGBA")
    if rgba.getchannel("A").getextrema() == (0, 0):
        raise ImageReadError(
            f"{name}: is fully transparent. Save it without an alpha channel if the colours below are the picture."
        )
    black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, rgba).convert("RGB")


def _native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _from_array(array: np.ndarray, name: str, max_value: int | None) -> np.ndarray:
    """(H, W[, C]) of any accepted type -> (H, W) uint8, uint16, or float64 within 0..1."""
    shape = array.shape
    if array.ndim == 3 and shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)):
        raise ImageReadError(
            f"{name}: has the shape {shape}. Give (height, width) or (height, width, channels), 1, 3 or 4 channels."
        )
    check_size(shape[1], shape[0], name)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
        max_value = None
    kind = array.dtype.kind
    if kind == "f":
        if not np.isfinite(array).all():
            raise ImageReadError(f"{name}: holds NaN or infinite pixels. Replace them before reading.")
        top = 1.0 if max_value is None else float(max_value)
        if array.min() < 0 or array.max() > top:
            raise ImageReadError(
                f"{name}: float pixels lie outside 0..{top:g}. Scale them to 0..1, or give max_value (255, 65535...)."
            )
        array = array.astype(np.float64) / top
    elif kind not in "iu" or (max_value is None and array.dtype not in (np.uint8, np.uint16)):
        raise ImageReadError(
            f"{name}: the pixel type {array.dtype} has no agreed white. Use uint8, uint16 or floats within 0..1, "
            "or give max_value for other integers."
        )
    elif max_value is not None:
        if array.min() < 0 or array.max() > max_value:
            raise ImageReadError(f"{name}: pixels lie outside 0..max_value ({max_value}). Give the true white value.")
        array = array.astype(np.float64) / max_value
    else:
        array = _native(array)
        if array.dtype == np.uint16 and 255 < int(array.max()) < 4096:
            logger.warning(
                "%s uses less than a sixteenth of its 16-bit range and will look black. "
                "If it holds 12-bit data, give max_value=4095.",
                name,
            )
    return array if array.ndim == 2 else _colour_to_grey(array, name)


def _colour_to_grey(array: np.ndarray, name: str) -> np.ndarray:
    """(H, W, 3 or 4) -> (H, W) luma in the same dtype, alpha composited on black."""
    full = 1.0 if array.dtype.kind == "f" else float(np.iinfo(array.dtype).max)
    grey = luma(array[..., :3])
    if array.shape[-1] == 4:
        alpha = array[..., 3].astype(np.float64) / full
        if not alpha.any():
            raise ImageReadError(f"{name}: is fully transparent. Drop its fourth channel if it is not alpha.")
        grey = grey * alpha
    if array.dtype.kind == "f":
        return np.clip(grey, 0.0, 1.0)
    return np.floor(np.clip(grey, 0, full) + 0.5).astype(array.dtype)


def luma(rgb: np.ndarray) -> np.ndarray:
    """ITU-R 601 luma of (..., 3) values, float64. Equal channels give exactly their common value."""
    red, green, blue = (rgb[..., channel].astype(np.float64) for channel in range(3))
    return green + 0.299 * (red - green) + 0.114 * (blue - green)


def _to_depth(grey: np.ndarray, bits: int) -> np.ndarray:
    dtype: Any = np.uint8 if bits == 8 else np.uint16
    if grey.dtype == dtype:
        return grey.copy()
    if grey.dtype == np.uint8:
        return grey.astype(np.uint16) * np.uint16(257)
    if grey.dtype == np.uint16:
        return ((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return np.floor(grey * float(np.iinfo(dtype).max) + 0.5).astype(dtype)
