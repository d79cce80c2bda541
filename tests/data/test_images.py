"""read_image: every kind of raster, scaling, size limits and bad input."""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rrg_hf.data import images
from rrg_hf.data.images import MAX_PIXELS, encode_image, read_image
from rrg_hf.errors import ConfigError, ImageReadError

RAMP8 = np.arange(256, dtype=np.uint8).reshape(16, 16)
RAMP16 = (np.arange(4096, dtype=np.uint32) * 65535 // 4095).astype(np.uint16).reshape(64, 64)


def png(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def scaled(value: int) -> int:
    """16 to 8 bits by exact integer rounding, written out on its own."""
    return (2 * value * 255 + 65535) // (2 * 65535)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM", "GIF"])
def test_grey_8bit_is_read_exactly_in_every_lossless_format(kind: str) -> None:
    result = read_image(png(Image.fromarray(RAMP8), kind), output="array")
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, RAMP8)


def test_all_kinds_of_source_agree(tmp_path: Path) -> None:
    data = png(Image.fromarray(RAMP8))
    file = tmp_path / "a.png"
    file.write_bytes(data)
    for source in (
        file,
        str(file),
        data,
        bytearray(data),
        memoryview(data),
        Image.open(file),
        RAMP8,
        RAMP8[..., None],
    ):
        np.testing.assert_array_equal(read_image(source, output="array"), RAMP8)  # type: ignore[call-overload]


def test_default_result_is_a_pil_image_of_mode_l() -> None:
    result = read_image(RAMP8)
    assert (result.mode, result.size) == ("L", (16, 16))
    deep = read_image(RAMP8, bits=16)
    assert deep.mode == "I;16"
    np.testing.assert_array_equal(np.asarray(deep), RAMP8.astype(np.uint16) * 257)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16bit_is_scaled_and_not_clipped(kind: str) -> None:
    data = png(Image.fromarray(RAMP16), kind)
    result = read_image(data, output="array")
    assert result.tolist() == [[scaled(int(value)) for value in row] for row in RAMP16]
    np.testing.assert_array_equal(read_image(data, bits=16, output="array"), RAMP16)


def test_16bit_pil_modes_of_other_byte_orders_and_32bit() -> None:
    big = Image.frombytes("I;16B", (64, 64), RAMP16.astype(">u2").tobytes())
    wide = Image.fromarray(RAMP16.astype(np.int32))
    assert wide.mode == "I"
    for image in (big, wide):
        np.testing.assert_array_equal(read_image(image, bits=16, output="array"), RAMP16)


def test_8_to_16_to_8_bits_is_the_identity() -> None:
    deep = read_image(RAMP8, bits=16, output="array")
    np.testing.assert_array_equal(read_image(deep, output="array"), RAMP8)


def test_12bit_data_in_16bit_files_warn_and_take_max_value(caplog: pytest.LogCaptureFixture) -> None:
    twelve = np.array([[0, 1000], [2048, 4095]], dtype=np.uint16)
    with caplog.at_level(logging.WARNING):
        dark = read_image(twelve, output="array")
    assert dark.max() == 16 and "max_value=4095" in caplog.text
    assert read_image(twelve, output="array", max_value=4095).tolist() == [[0, 62], [128, 255]]
    with pytest.raises(ImageReadError, match="max_value"):
        read_image(twelve, max_value=4000)


def test_colour_becomes_luma() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [10, 10, 10]]], dtype=np.uint8)
    expected = [[round(0.299 * 255), round(0.587 * 255)], [round(0.114 * 255), 10]]
    assert read_image(png(Image.fromarray(colours)), output="array").tolist() == expected
    assert read_image(colours, output="array").tolist() == expected
    assert read_image(colours.astype(np.uint16) * 257, output="array").tolist() == expected


def test_palette_and_one_bit() -> None:
    palette = Image.new("P", (2, 2))
    palette.putpalette([0, 0, 0, 200, 200, 200, 255, 0, 0])
    palette.putdata([0, 1, 2, 1])
    assert read_image(png(palette), output="array").tolist() == [[0, 200], [76, 200]]
    bits = Image.fromarray(np.array([[True, False], [False, True]]))
    assert bits.mode == "1"
    assert read_image(png(bits), output="array").tolist() == [[255, 0], [0, 255]]
    assert read_image(np.array([[True, False], [False, True]]), output="array").tolist() == [[255, 0], [0, 255]]


@pytest.mark.parametrize("form", ["file", "array"])
def test_transparency_is_composited_on_black(form: str) -> None:
    pixels = np.full((2, 2, 4), 200, dtype=np.uint8)
    pixels[..., 3] = [[255, 128], [0, 255]]
    source = png(Image.fromarray(pixels)) if form == "file" else pixels
    result = read_image(source, output="array")
    assert result[0, 0] == 200 and result[1, 0] == 0
    assert abs(int(result[0, 1]) - 200 * 128 / 255) <= 1


def test_grey_alpha_and_transparent_palette_entries() -> None:
    grey = Image.merge("LA", [Image.new("L", (2, 2), 90), Image.fromarray(np.array([[255, 0], [255, 255]], np.uint8))])
    assert read_image(png(grey), output="array").tolist() == [[90, 0], [90, 90]]
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 50, 50, 50])
    palette.putpixel((0, 0), 0)
    assert read_image(png(palette, transparency=1), output="array").max() == 0


@pytest.mark.parametrize("form", ["file", "array"])
def test_fully_transparent_is_an_error(form: str) -> None:
    pixels = np.full((4, 4, 4), 200, dtype=np.uint8)
    pixels[..., 3] = 0
    with pytest.raises(ImageReadError, match="fully transparent"):
        read_image(png(Image.fromarray(pixels)) if form == "file" else pixels)


def test_jpeg_cmyk_and_exif_orientation() -> None:
    upright = np.zeros((32, 16), dtype=np.uint8)
    upright[:16] = 240
    plain = read_image(png(Image.fromarray(upright), "JPEG", quality=95), output="array")
    assert plain.shape == (32, 16) and abs(int(plain[4, 8]) - 240) < 4
    exif = Image.Exif()
    exif[0x0112] = 6  # turn 90 degrees clockwise to view
    turned = read_image(png(Image.fromarray(upright), "JPEG", quality=95, exif=exif), output="array")
    assert turned.shape == (16, 32)
    assert turned[8, 28] > 200 and turned[8, 4] < 50
    cmyk = Image.fromarray(RAMP8).convert("RGB").convert("CMYK")
    assert np.abs(read_image(cmyk, output="array").astype(int) - RAMP8).max() <= 1


def test_float_arrays_and_their_limits() -> None:
    assert read_image(np.array([[0.0, 0.5], [1.0, 0.25]]), output="array").tolist() == [[0, 128], [255, 64]]
    assert read_image(np.array([[0.0, 128.0], [255.0, 1.0]]), output="array", max_value=255).tolist() == [
        [0, 128],
        [255, 1],
    ]
    assert read_image(Image.fromarray(np.full((2, 2), 0.5, np.float32)), output="array").max() == 128
    with pytest.raises(ImageReadError, match=r"outside 0\.\.1"):
        read_image(np.full((4, 4), 2.0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_errors(value: float) -> None:
    pixels = np.full((4, 4), 0.5)
    pixels[1, 1] = value
    with pytest.raises(ImageReadError, match="NaN or infinite"):
        read_image(pixels)
    with pytest.raises(ImageReadError, match="NaN or infinite"):
        read_image(Image.fromarray(pixels.astype(np.float32)))


@pytest.mark.parametrize("shape", [(16,), (3, 16, 16), (16, 16, 2), (1, 16, 16, 3), ()])
def test_wrong_dimensions_are_errors(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageReadError, match="shape"):
        read_image(np.zeros(shape, dtype=np.uint8))


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.complex64, object])
def test_types_without_an_agreed_white_are_errors(dtype: Any) -> None:
    with pytest.raises(ImageReadError, match="no agreed white"):
        read_image(np.zeros((4, 4), dtype=dtype))
    if np.dtype(dtype).kind == "i":
        assert read_image(np.full((4, 4), 100, dtype=dtype), output="array", max_value=200).max() == 128


def test_source_is_not_changed_nor_shared() -> None:
    source = RAMP8.copy()
    result = read_image(source, output="array")
    result[:] = 0
    np.testing.assert_array_equal(source, RAMP8)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (0, 5)])
def test_too_small_is_an_error_that_states_the_minimum(shape: tuple[int, int]) -> None:
    with pytest.raises(ImageReadError, match="minimum of 4 pixels"):
        read_image(np.zeros(shape, dtype=np.uint8))


def test_1x1_png_is_an_error() -> None:
    with pytest.raises(ImageReadError, match="1 x 1"):
        read_image(png(Image.new("L", (1, 1))))


def _png_that_declares(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_500, 20_000, 2_000_000])
def test_bombs_are_refused_before_their_pixels_are_made(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.core, "new", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(ImageReadError, match="decompression bomb"):
        read_image(_png_that_declares(side, side))


def test_bomb_limit_holds_without_pillows_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageReadError, match=f"{MAX_PIXELS:,}"):
        read_image(_png_that_declares(30_000, 30_000))


def test_missing_empty_folder_and_unusable_names(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    empty.touch()
    with pytest.raises(ImageReadError, match=r"empty\.png: is empty"):
        read_image(empty)
    with pytest.raises(ImageReadError, match="is empty"):
        read_image(b"")
    with pytest.raises(ImageReadError, match=r"gone\.png: no such file"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(ImageReadError, match="is a folder"):
        read_image(tmp_path)
    with pytest.raises(ImageReadError):
        read_image("a\0b.png")
    if Path("/dev/zero").exists():
        with pytest.raises(ImageReadError, match="not a regular file"):
            read_image("/dev/zero")


@pytest.mark.parametrize(
    "data", [b"hello, this is text", b"\x89PNG\r\n\x1a\n", b"%PDF-1.4 x", b"\xff\xd8\xff", b"GIF89a"]
)
def test_what_is_no_picture_is_an_error(data: bytes) -> None:
    with pytest.raises(ImageReadError, match=r"not a picture|damaged"):
        read_image(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP"])
def test_every_truncation_is_an_error_or_a_whole_picture(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    data = png(Image.fromarray(noise), kind)
    whole = read_image(data, output="array")
    failed = 0
    for length in range(1, len(data), 7):
        try:
            assert read_image(data[:length], output="array").shape == whole.shape
        except ImageReadError:
            failed += 1
    assert failed > 0.9 * len(range(1, len(data), 7))


def test_animations_are_errors() -> None:
    frames = [Image.fromarray(RAMP8), Image.fromarray(RAMP8[::-1].copy())]
    for kind in ("GIF", "TIFF"):
        with pytest.raises(ImageReadError, match="2 frames"):
            read_image(png(frames[0], kind, save_all=True, append_images=frames[1:]))


def test_formats_that_run_other_programs_are_not_opened() -> None:
    with pytest.raises(ImageReadError, match="not a picture"):
        read_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")


def test_wrong_settings_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="bits=12"):
        read_image(RAMP8, bits=12)
    with pytest.raises(ConfigError, match="output"):
        read_image(RAMP8, output="tensor")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="max_value"):
        read_image(RAMP8, max_value=0)
    with pytest.raises(ConfigError, match="max_value"):
        read_image(RAMP8, max_value="white")  # type: ignore[call-overload]
    with pytest.raises(ImageReadError, match="list is no image"):
        read_image([[0, 1], [2, 3]])  # type: ignore[call-overload]


def test_a_png_named_dcm_is_read_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "a.dcm"
    file.write_bytes(png(Image.fromarray(RAMP8)))
    np.testing.assert_array_equal(read_image(file, output="array"), RAMP8)


def test_encode_keeps_plain_files_and_makes_png_of_the_rest(tmp_path: Path, dicom: Callable[..., bytes]) -> None:
    plain = {
        "grey.png": png(Image.fromarray(RAMP8)),
        "colour.png": png(Image.fromarray(RAMP8).convert("RGB")),
        "grey.jpg": png(Image.fromarray(RAMP8), "JPEG"),
    }
    rest = {
        "deep.png": png(Image.fromarray(RAMP16)),
        "alpha.png": png(Image.fromarray(RAMP8).convert("RGBA")),
        "a.tif": png(Image.fromarray(RAMP8), "TIFF"),
        "a.dcm": dicom(RAMP16),
    }
    for name, data in {**plain, **rest}.items():
        (tmp_path / name).write_bytes(data)
        encoded = encode_image(tmp_path / name)
        assert (encoded == data) == (name in plain)
        with Image.open(io.BytesIO(encoded)) as image:
            assert image.mode in ("L", "RGB")
        np.testing.assert_array_equal(read_image(encoded, output="array"), read_image(data, output="array"))
    (tmp_path / "bad.png").write_bytes(b"no")
    with pytest.raises(ImageReadError):
        encode_image(tmp_path / "bad.png")


def test_every_real_picture_is_read(shared_dir: Path) -> None:
    files = [file for file in (shared_dir / "data").rglob("*") if file.suffix in (".png", ".jpg")]
    if not files:
        pytest.skip("no pictures in the sample data")
    modes = set()
    for file in files:
        with Image.open(file) as opened:
            modes.add(opened.mode)
            size = opened.size
            expected = np.asarray(opened.convert("RGB").convert("L")).astype(int)
            opaque = opened.mode != "RGBA" or opened.getchannel("A").getextrema() == (255, 255)
        result = read_image(file, output="array")
        assert result.shape == size[::-1]
        assert result.std() > 1
        if opaque:
            assert np.abs(result.astype(int) - expected).max() <= 1
    assert "RGBA" in modes, "the sample data should hold RGBA pictures"


def test_pillow_failures_of_any_kind_become_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("decoder text that may quote the file")

    monkeypatch.setattr(images.Image, "open", broken)
    with pytest.raises(ImageReadError) as caught:
        read_image(b"anything")
    assert "quote" not in str(caught.value)


def test_a_name_too_long_for_the_file_system_is_one_clear_error() -> None:
    with pytest.raises(ImageReadError, match="cannot be opened"):
        read_image("a" * 5000)
