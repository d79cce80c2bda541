"""DICOM: the order modality -> VOI -> polarity, against a slow reference, and every kind of bad file."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEGLSLossless,
    RLELossless,
)

from rrg_hf.data.dicom import apply_window
from rrg_hf.data.images import read_image
from rrg_hf.errors import ImageReadError

Dicom = Callable[..., bytes]
CASE = np.array([[0, 1023, 2047, 4095]], dtype=np.uint16)


def grey(data: bytes, bits: int = 8) -> list[list[int]]:
    return read_image(data, bits=bits, output="array").tolist()  # type: ignore[no-any-return]


def reference(
    pixels: np.ndarray,
    *,
    slope: float = 1,
    intercept: float = 0,
    window: tuple[float, float] | None = None,
    function: str = "LINEAR",
    invert: bool = False,
    top: int = 255,
) -> list[list[int]]:
    """One pixel at a time, by the formulas of PS3.3 C.11.2.1.2 and C.11.2.1.3."""
    rows = [[slope * int(value) + intercept for value in row] for row in pixels]
    if window is None:
        low, high = min(map(min, rows)), max(map(max, rows))
    result = []
    for row in rows:
        line = []
        for value in row:
            if window is None:
                share = (value - low) / (high - low)
            else:
                center, width = window
                if function == "SIGMOID":
                    share = 1 / (1 + math.exp(-4 * (value - center) / width))
                elif function == "LINEAR":
                    if value <= center - 0.5 - (width - 1) / 2:
                        share = 0.0
                    elif value > center - 0.5 + (width - 1) / 2:
                        share = 1.0
                    else:
                        share = (value - (center - 0.5)) / (width - 1) + 0.5
                else:
                    share = min(max((value - center) / width + 0.5, 0.0), 1.0)
            line.append(math.floor((1 - share if invert else share) * top + 0.5))
        result.append(line)
    return result


def test_monochrome1_is_inverted_once_after_the_window(dicom: Dicom) -> None:
    window = {"BitsStored": 12, "WindowCenter": 1024, "WindowWidth": 1024}
    one = dicom(CASE, PhotometricInterpretation="MONOCHROME1", **window)
    two = dicom(CASE, PhotometricInterpretation="MONOCHROME2", **window)
    assert grey(one) == [[255, 128, 0, 0]]
    assert grey(two) == [[0, 127, 255, 255]]
    # On the 12-bit scale of the published case: [4095, 2049.5, 0, 0] and [0, 2045.5, 4095, 4095].
    on_12_bits = np.array(grey(one, 16)[0]) / 65535 * 4095
    np.testing.assert_allclose(on_12_bits, [4095, 2049.5, 0, 0], atol=0.05)
    np.testing.assert_allclose(np.array(grey(two, 16)[0]) / 65535 * 4095, [0, 2045.5, 4095, 4095], atol=0.05)


def test_the_published_case_says_the_same(shared_dir: Path) -> None:
    cases = [json.loads(line) for line in (shared_dir / "cases" / "public_faults.jsonl").read_text().splitlines()]
    case = next(case for case in cases if case["id"] == "mono1-order")
    assert "[4095, 2049.5, 0, 0]" in case["expected"] and "[255,128,0,0]" in case["expected"]


@pytest.mark.parametrize(
    ("photometric", "shape", "inverted"),
    [
        ("MONOCHROME1", None, True),
        ("MONOCHROME1", "INVERSE", True),
        ("MONOCHROME1", "IDENTITY", True),
        ("MONOCHROME2", "INVERSE", True),
        ("MONOCHROME2", "IDENTITY", False),
        ("MONOCHROME2", None, False),
    ],
)
def test_polarity_is_changed_at_most_once(dicom: Dicom, photometric: str, shape: str | None, inverted: bool) -> None:
    tags: dict[str, Any] = {"PhotometricInterpretation": photometric, "BitsStored": 12}
    if shape:
        tags["PresentationLUTShape"] = shape
    assert grey(dicom(CASE, **tags)) == reference(CASE, invert=inverted)


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(("slope", "intercept"), [(1, 0), (2, -1024), (-1, 4095), (0.5, 10)])
def test_windows_match_the_reference(
    dicom: Dicom, function: str, invert: bool, slope: float, intercept: float
) -> None:
    pixels = np.random.default_rng(3).integers(0, 4096, (9, 7), dtype=np.uint16)
    data = dicom(
        pixels,
        BitsStored=12,
        PhotometricInterpretation="MONOCHROME1" if invert else "MONOCHROME2",
        RescaleSlope=slope,
        RescaleIntercept=intercept,
        WindowCenter=1500,
        WindowWidth=2000,
        VOILUTFunction=function,
    )
    expected = reference(
        pixels, slope=slope, intercept=intercept, window=(1500, 2000), function=function, invert=invert, top=65535
    )
    np.testing.assert_allclose(grey(data, 16), expected, atol=1)


def test_windows_match_pydicom_for_positive_slopes(dicom: Dicom) -> None:
    from pydicom.pixels import apply_windowing

    pixels = np.random.default_rng(4).integers(0, 4096, (16, 16), dtype=np.uint16)
    dataset = Dataset()
    dataset.PhotometricInterpretation, dataset.BitsStored, dataset.PixelRepresentation = "MONOCHROME2", 12, 0
    dataset.WindowCenter, dataset.WindowWidth = 2000.5, 1777
    ours = apply_window(pixels.astype(float), 2000.5, 1777, "LINEAR", "test")
    assert ours is not None
    np.testing.assert_allclose(ours * 4095, apply_windowing(pixels, dataset), atol=1e-9)


def test_a_negative_slope_reverses_exactly_once(dicom: Dicom) -> None:
    plain = dicom(CASE, BitsStored=12, WindowCenter=2048, WindowWidth=4096)
    reverse = dicom(CASE, BitsStored=12, WindowCenter=2048, WindowWidth=4096, RescaleSlope=-1, RescaleIntercept=4095)
    assert np.abs(np.array(grey(reverse)) + np.array(grey(plain)) - 255).max() <= 1
    both = dicom(
        CASE, BitsStored=12, WindowCenter=2048, WindowWidth=4096, RescaleSlope=-1, RescaleIntercept=4095,
        PhotometricInterpretation="MONOCHROME1",
    )  # fmt: skip
    assert np.abs(np.array(grey(both)) - np.array(grey(plain))).max() <= 1


def test_without_voi_the_range_of_the_picture_is_used(dicom: Dicom) -> None:
    pixels = np.array([[100, 200], [300, 500]], dtype=np.uint16)
    assert grey(dicom(pixels, BitsStored=12)) == [[0, 64], [128, 255]]
    signed = np.array([[-100, 0], [100, 300]], dtype=np.int16)
    assert grey(dicom(signed)) == [[0, 64], [128, 255]]
    assert grey(dicom(np.full((2, 2), 7, dtype=np.uint16))) == [[0, 0], [0, 0]]


def test_the_first_of_several_windows_counts(dicom: Dicom) -> None:
    data = dicom(CASE, BitsStored=12, WindowCenter=[1024, 9], WindowWidth=[1024, 2])
    assert grey(data) == reference(CASE, window=(1024, 1024))


@pytest.mark.parametrize(
    "window",
    [{"WindowCenter": 9000, "WindowWidth": 10}, {"WindowCenter": 5, "WindowWidth": 0}],
    ids=["outside", "zero"],
)
def test_a_window_that_shows_nothing_is_passed_over_with_a_warning(
    dicom: Dicom, window: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert grey(dicom(CASE, BitsStored=12, **window)) == reference(CASE)
    assert "window" in caplog.text


def _table(values: list[int], first: int, bits: int) -> Dataset:
    item = Dataset()
    item.LUTDescriptor = [len(values) % 65536, first, bits]
    item.LUTData = values
    item["LUTData"].VR = "US"
    item["LUTDescriptor"].VR = "SS" if first < 0 else "US"
    return item


def test_modality_and_voi_tables_in_order(dicom: Dicom) -> None:
    pixels = np.array([[0, 1], [2, 9]], dtype=np.uint16)
    modality = _table([3, 2, 1, 0], 0, 8)  # reverses; values above the table take its last entry
    voi = _table([0, 100, 200, 255], 0, 8)
    assert grey(dicom(pixels, ModalityLUTSequence=[modality])) == [[255, 170], [85, 0]]
    assert grey(dicom(pixels, VOILUTSequence=[voi])) == [[0, 100], [200, 255]]
    assert grey(dicom(pixels, ModalityLUTSequence=[modality], VOILUTSequence=[voi])) == [[255, 200], [100, 0]]
    inverted = dicom(pixels, VOILUTSequence=[voi], PhotometricInterpretation="MONOCHROME1")
    assert grey(inverted) == [[255, 155], [55, 0]]


def test_a_voi_table_wins_over_a_window_and_maps_from_its_first_value(dicom: Dicom) -> None:
    pixels = np.array([[0, 1000], [1001, 4000]], dtype=np.uint16)
    data = dicom(pixels, BitsStored=12, VOILUTSequence=[_table([10, 255], 1000, 8)], WindowCenter=1, WindowWidth=2)
    assert grey(data) == [[10, 10], [255, 255]]


def test_a_table_that_declares_more_bits_than_it_uses(dicom: Dicom) -> None:
    pixels = np.array([[0, 1], [2, 3]], dtype=np.uint16)
    assert grey(dicom(pixels, VOILUTSequence=[_table([0, 1365, 2730, 4095], 0, 16)])) == [[0, 85], [170, 255]]
    full = _table([0, 21845, 43690, 65535], 0, 16)
    assert grey(dicom(pixels, VOILUTSequence=[full])) == [[0, 85], [170, 255]]


def test_a_table_for_signed_values(dicom: Dicom) -> None:
    pixels = np.array([[-2, -1], [0, 1]], dtype=np.int16)
    assert grey(dicom(pixels, VOILUTSequence=[_table([0, 85, 170, 255], -2, 8)])) == [[0, 85], [170, 255]]


def test_long_tables_of_eight_bits(dicom: Dicom) -> None:
    # 4096 entries of 8 bits: an index kept in 8 bits would wrap around.
    pixels = np.array([[0, 300], [2000, 4095]], dtype=np.uint16)
    table = _table([value // 16 for value in range(4096)], 0, 8)
    assert grey(dicom(pixels, BitsStored=12, VOILUTSequence=[table])) == [[0, 18], [125, 255]]


def test_a_table_shorter_than_it_says_is_an_error(dicom: Dicom) -> None:
    item = _table([0, 1, 2, 3], 0, 8)
    item.LUTDescriptor = [400, 0, 8]
    with pytest.raises(ImageReadError, match="lookup table"):
        read_image(dicom(CASE, VOILUTSequence=[item]))


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_and_does_not_stretch_the_range(dicom: Dicom, photometric: str) -> None:
    pixels = np.array([[4000, 100], [300, 500]], dtype=np.uint16)
    result = grey(dicom(pixels, PixelPaddingValue=4000, PhotometricInterpretation=photometric))
    expected = reference(np.array([[100, 100], [300, 500]]), invert=photometric == "MONOCHROME1")
    assert result == [[0, expected[0][1]], expected[1]]
    ranged = grey(dicom(pixels, PixelPaddingValue=3000, PixelPaddingRangeLimit=5000))
    assert ranged == [[0, 0], [128, 255]]


def test_all_padding_is_black(dicom: Dicom) -> None:
    assert grey(dicom(np.full((2, 2), 9, np.uint16), PixelPaddingValue=9)) == [[0, 0], [0, 0]]


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, RLELossless])
def test_other_encodings_give_the_same_picture(dicom: Dicom, syntax: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 4096, (20, 30), dtype=np.uint16)
    expected = reference(pixels)
    if syntax != RLELossless:
        assert grey(dicom(pixels, BitsStored=12, syntax=syntax)) == expected
        return
    import io

    from pydicom import dcmread

    dataset = dcmread(io.BytesIO(dicom(pixels, BitsStored=12)))
    dataset.compress(RLELossless)
    buffer = io.BytesIO()
    dataset.save_as(buffer)
    assert grey(buffer.getvalue()) == expected


def test_big_endian_and_files_without_preamble(dicom: Dicom) -> None:
    pixels = np.array([[0, 256], [512, 4095]], dtype=np.uint16)
    swapped = dicom(pixels, BitsStored=12, syntax=ExplicitVRBigEndian, PixelData=pixels.astype(">u2").tobytes())
    assert grey(swapped) == reference(pixels)
    assert grey(dicom(pixels, BitsStored=12)[132:]) == reference(pixels)


def test_rgb_and_palette_become_luma(dicom: Dicom) -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 9, 9]]], dtype=np.uint8)
    assert grey(dicom(colours)) == [[76, 150], [29, 9]]
    palette: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for colour in ("Red", "Green", "Blue"):
        palette[f"{colour}PaletteColorLookupTableDescriptor"] = [4, 0, 16]
        palette[f"{colour}PaletteColorLookupTableData"] = np.array([0, 20000, 40000, 65535], dtype="<u2").tobytes()
    result = grey(dicom(np.array([[0, 1], [2, 3]], dtype=np.uint8), **palette))
    assert result == [[0, 78], [156, 255]]


def test_missing_photometric_interpretation_reads_as_monochrome2(dicom: Dicom) -> None:
    assert grey(dicom(CASE, BitsStored=12, drop=("PhotometricInterpretation",))) == reference(CASE)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"NumberOfFrames": 2}, "2 frames"),
        ({"Rows": 60000, "Columns": 60000}, "60000 x 60000 pixels, more than"),
        ({"Rows": 1, "Columns": 1}, "minimum"),
        ({"Rows": 0}, "minimum"),
        ({"Rows": 4}, "truncated, with 8 of 32 bytes"),
        ({"SamplesPerPixel": 2}, "2 samples"),
        ({"RescaleSlope": 0, "RescaleIntercept": 0}, "slope is 0"),
        ({"drop": ("PixelData",)}, "no pixel data"),
        ({"drop": ("Rows",)}, "no Rows"),
    ],
)
def test_unusable_files_are_clear_errors(dicom: Dicom, tags: dict[str, Any], message: str) -> None:
    with pytest.raises(ImageReadError, match=message):
        read_image(dicom(CASE, **tags))


def test_multi_frame_is_refused_before_decoding(dicom: Dicom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.data.dicom.pixel_array", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ImageReadError, match="frames"):
        read_image(dicom(CASE, NumberOfFrames=1000))
    with pytest.raises(ImageReadError, match="more than"):
        read_image(dicom(CASE, Rows=65535, Columns=65535))


def test_unsupported_transfer_syntaxes_name_themselves_and_the_extra(
    dicom: Dicom, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dicom(CASE, syntax=JPEGLSLossless, PixelData=encapsulate([b"\0" * 16]))
    from pydicom.pixels import get_decoder

    # The decoders may be installed here; a user without them is what is tested.
    monkeypatch.setattr(type(get_decoder(JPEGLSLossless)), "is_available", property(lambda _: False))
    with pytest.raises(ImageReadError, match=r"JPEG-LS Lossless.*1\.2\.840\.10008\.1\.2\.4\.80.*rrg_hf\[dicom\]"):
        read_image(data)


def test_video_and_deflated_transfer_syntaxes(dicom: Dicom) -> None:
    video = dicom(CASE, syntax="1.2.840.10008.1.2.4.100", PixelData=encapsulate([b"\0" * 16]))
    with pytest.raises(ImageReadError, match="MPEG2 Main Profile"):
        read_image(video)
    with pytest.raises(ImageReadError, match="Deflated Explicit VR Little Endian"):
        read_image(dicom(np.zeros((64, 64), np.uint16), syntax=DeflatedExplicitVRLittleEndian))


def test_damaged_compressed_pixels_name_the_extra(dicom: Dicom) -> None:
    data = dicom(CASE, syntax="1.2.840.10008.1.2.4.90", PixelData=encapsulate([b"no codestream"]))
    with pytest.raises(ImageReadError, match="JPEG 2000"):
        read_image(data)


def test_every_truncation_is_an_error(dicom: Dicom) -> None:
    data = dicom(np.arange(64, dtype=np.uint16).reshape(8, 8))
    for length in range(1, len(data), 5):
        with pytest.raises(ImageReadError):
            read_image(data[:length])


def test_random_damage_gives_a_picture_or_an_image_error(dicom: Dicom) -> None:
    data = dicom(np.arange(64, dtype=np.uint16).reshape(8, 8), WindowCenter=30, WindowWidth=60)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for place in rng.integers(132, len(data) - 128, size=3):
            damaged[place] = rng.integers(256)
        try:
            result = read_image(bytes(damaged), output="array")
        except ImageReadError:
            continue
        assert result.ndim == 2


def test_errors_never_quote_the_patient(dicom: Dicom, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "study.dcm"
    broken = [
        dicom(CASE, Rows=4),
        dicom(CASE, NumberOfFrames=2),
        dicom(CASE)[:-3],
        dicom(CASE).replace(b"MONOCHROME2 ", b"SECRET-NAME "),
        dicom(CASE, WindowCenter="1", WindowWidth="1").replace(b"DS\x02\x001 ", b"DS\x02\x00SE"),
    ]
    for data in broken:
        file.write_bytes(data)
        try:
            read_image(file)
        except ImageReadError as error:
            assert "SECRET" not in str(error) and "study.dcm" in str(error)
            assert error.__suppress_context__ or error.__context__ is None
        else:
            pytest.fail("one of the broken files was read")
    assert "SECRET" not in caplog.text


def test_sample_files_of_pydicom_are_read_or_refused() -> None:
    names = sorted((Path(pydicom.__file__).parent / "data" / "test_files").glob("*.dcm"))
    read = 0
    for name in names:
        try:
            result = read_image(name, output="array")
        except ImageReadError:
            continue
        assert result.ndim == 2 and result.dtype == np.uint8
        read += 1
    assert read >= 25


def test_warnings_do_not_quote_the_file(recwarn: pytest.WarningsRecorder) -> None:
    """pydicom would print the unknown character set, which in a damaged file can be any bytes of it."""
    secret = b"SECRET NAME "
    data = b"\x08\x00\x05\x00" + len(secret).to_bytes(4, "little") + secret + bytes(40)
    with pytest.raises(ImageReadError) as caught:
        read_image(data)
    assert "SECRET" not in str(caught.value) + "".join(str(warning.message) for warning in recwarn)
