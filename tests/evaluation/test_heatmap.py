"""Occlusion and attention maps against slow references, one image and one sentence at a time."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rrg_hf.evaluation.heatmap import attention_maps, colorize, occlusion_maps, overlay_png
from tests.report_model import make_report_model

REPORT = "The heart size is normal. There is a small left pleural effusion. No pneumothorax is seen."
SENTENCES = ["The heart size is normal.", "There is a small left pleural effusion.", "No pneumothorax is seen."]


@pytest.fixture(scope="module")
def palm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return make_report_model(tmp_path_factory.mktemp("heatmap") / "tiny", seed=1)


def picture(seed: int = 0, height: int = 60, width: int = 72) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def sentence_log_prob(palm: tuple[Any, Any], image: np.ndarray, upto: int, indication: str | None = None) -> float:
    """log p(first `upto` sentences), from scratch: no masks, no offsets, one token after the other."""
    model, processor = palm
    text = " ".join(SENTENCES[:upto])
    ids = processor(text=[text], return_tensors="pt")["input_ids"] if upto else None
    if ids is None:
        return 0.0
    inputs = processor(images=[image], indication=None if indication is None else [indication], return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=ids, **inputs).logits[0].log_softmax(-1)
    return sum(float(logits[at - 1, ids[0, at]]) for at in range(1, ids.shape[1]))


def sentence_scores(palm: tuple[Any, Any], image: np.ndarray, indication: str | None = None) -> np.ndarray:
    totals = [sentence_log_prob(palm, image, upto, indication) for upto in range(4)]
    return np.diff(totals)


@pytest.mark.parametrize("indication", [None, "Cough and fever."])
def test_occlusion_maps_equal_one_by_one_occlusion(palm: tuple[Any, Any], indication: str | None) -> None:
    image = picture()
    maps = occlusion_maps(*palm, image, REPORT, indication=indication, grid=3, batch_size=4)
    assert [REPORT[start:end] for start, end in maps.spans] == SENTENCES
    assert maps.maps.shape == (3, 60, 72) and maps.maps.dtype == np.float32 and maps.method == "occlusion"
    base = sentence_scores(palm, image, indication)
    assert maps.log_probs == pytest.approx(base, abs=1e-3)
    for row in range(3):
        for column in range(3):
            covered = image.copy()
            covered[20 * row : 20 * row + 20, 24 * column : 24 * column + 24] = round(image.mean())
            drop = base - sentence_scores(palm, covered, indication)
            # At a cell's centre, bilinear upsampling gives about the cell's own value.
            patch = maps.maps[:, 20 * row + 9 : 20 * row + 11, 24 * column + 11 : 24 * column + 13].mean((1, 2))
            scale = float(np.abs(maps.maps).max())
            assert patch == pytest.approx(drop, abs=0.06 * scale)


def test_batch_size_does_not_matter(palm: tuple[Any, Any]) -> None:
    one, all_at_once = (occlusion_maps(*palm, picture(), REPORT, grid=2, batch_size=size).maps for size in (1, 64))
    assert one == pytest.approx(all_at_once, abs=1e-4)


def test_a_model_that_ignores_the_image_has_flat_maps(palm: tuple[Any, Any], tmp_path: Path) -> None:
    model, processor = make_report_model(tmp_path / "blind", seed=1)
    with torch.no_grad():
        for block in model.model.decoder.h:
            block.crossattention.c_proj.weight.zero_()
    blind = occlusion_maps(model, processor, picture(), REPORT, grid=2)
    seeing = occlusion_maps(*palm, picture(), REPORT, grid=2)
    assert np.abs(blind.maps).max() < 1e-4 < np.abs(seeing.maps).max()


def test_occluding_a_uniform_image_changes_nothing(palm: tuple[Any, Any]) -> None:
    assert np.abs(occlusion_maps(*palm, np.full((64, 64), 90, np.uint8), REPORT, grid=2).maps).max() < 1e-5


def test_only_the_looked_at_cell_lights_up(palm: tuple[Any, Any]) -> None:
    """A picture with structure in one corner only: covering elsewhere changes nothing but by the mean grey."""
    image = np.full((64, 64), 128, np.uint8)
    image[:32, :32] = picture(5, 32, 32)
    image[:32, :32] = (image[:32, :32].astype(int) + 128 - round(image[:32, :32].mean())).clip(0, 255)
    maps = occlusion_maps(*palm, image, REPORT, grid=2).maps
    corner = np.abs(maps[:, 8:24, 8:24]).max()
    assert np.abs(maps[:, 40:56, 40:56]).max() < 0.2 * corner


@pytest.mark.parametrize("report", ["", "  \n"])
def test_an_empty_report_has_no_maps(palm: tuple[Any, Any], report: str) -> None:
    for maps in (occlusion_maps(*palm, picture(), report), attention_maps(*palm, picture(), report)):
        assert maps is not None and maps.spans == () and maps.maps.shape == (0, 60, 72)


def test_16_bit_images_and_pil_images(palm: tuple[Any, Any]) -> None:
    image = picture(2)
    plain = occlusion_maps(*palm, image, REPORT, grid=2)
    assert occlusion_maps(*palm, Image.fromarray(image), REPORT, grid=2).maps == pytest.approx(plain.maps, abs=1e-5)
    assert occlusion_maps(*palm, Image.fromarray(image).convert("RGB"), REPORT, grid=2).maps == pytest.approx(
        plain.maps, abs=1e-5
    )
    deep = occlusion_maps(*palm, image.astype(np.uint16) * 257, REPORT, grid=2)
    assert deep.log_probs == pytest.approx(plain.log_probs, abs=1e-3)


def test_attention_maps_equal_the_mean_over_layers_heads_and_tokens(palm: tuple[Any, Any]) -> None:
    model, processor = palm
    image = picture(3, 56, 56)
    before = model.config._attn_implementation
    maps = attention_maps(model, processor, image, REPORT)
    assert maps is not None and maps.maps.shape == (3, 56, 56) and maps.log_probs is None
    assert model.config._attn_implementation == before
    assert maps.maps.sum((1, 2)) == pytest.approx(np.ones(3), abs=1e-4)
    # The middle sentence by hand, on the 4 x 4 patches.
    ids = processor(report=[REPORT], return_tensors="pt")
    inputs = processor(images=[image], return_tensors="pt")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(input_ids=ids["input_ids"], output_attentions=True, **inputs)
    model.set_attn_implementation(before)
    lengths = [
        processor(text=[" ".join(SENTENCES[:upto])], return_tensors="pt")["input_ids"].shape[1] for upto in (1, 2)
    ]
    steps = range(lengths[0] - 1, lengths[1] - 1)  # position t writes token t + 1
    cells = np.zeros(16)
    for step in steps:
        for layer in output.cross_attentions:
            cells += layer[0, :, step, 1:17].mean(0).numpy()
    expected = np.asarray(Image.fromarray(cells.reshape(4, 4).astype(np.float32)).resize((56, 56), 2))
    assert maps.maps[1] == pytest.approx(expected / expected.sum(), abs=1e-6)


def test_a_prefix_decoder_has_no_attention_maps(tmp_path: Path) -> None:
    from tests.tiny_palm import make_tiny_palm

    model, processor = make_tiny_palm(tmp_path / "prefix", decoder_input="prefix")
    assert attention_maps(model, processor, picture(), REPORT) is None
    assert occlusion_maps(model, processor, picture(), REPORT, grid=2).maps.shape == (3, 60, 72)


def test_sentences_beyond_the_longest_text_are_nan(palm: tuple[Any, Any]) -> None:
    maps = occlusion_maps(*palm, picture(), REPORT, grid=2, max_length=14)
    assert maps.log_probs is not None
    finite = np.isfinite(maps.log_probs)
    assert finite.tolist() == [True, False, False]
    assert np.isnan(maps.maps[2]).all() and np.isfinite(maps.maps[0]).all()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"grid": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"grid": 70}, "Use a smaller grid"),
        ({"image": np.zeros((4, 4, 4, 4), np.uint8)}, "greyscale"),
    ],
)
def test_settings_that_cannot_work(palm: tuple[Any, Any], arguments: dict[str, Any], match: str) -> None:
    values: dict[str, Any] = {"image": picture(), "report": REPORT, **arguments}
    with pytest.raises(ValueError, match=match):
        occlusion_maps(*palm, values.pop("image"), values.pop("report"), **values)


def test_colours_grow_with_the_evidence() -> None:
    heat = np.array([[-1.0, 0.0, 0.5, 1.0, 2.0, np.nan]], dtype=np.float32)
    rgba = colorize(heat, scale=1.0)
    assert rgba.shape == (1, 6, 4) and rgba.dtype == np.uint8
    alpha = rgba[0, :, 3].astype(int)
    assert alpha[0] == alpha[1] == alpha[5] == 0 < alpha[2] < alpha[3] == alpha[4]
    lightness = rgba[..., :3].astype(float) @ [0.299, 0.587, 0.114]
    assert lightness[0, 1] < lightness[0, 2] < lightness[0, 3]
    assert not colorize(np.zeros((2, 2)))[..., 3].any()


def test_overlay_keeps_the_shape_and_the_place() -> None:
    heat = np.zeros((300, 600), dtype=np.float32)
    heat[:150, 300:] = 1
    picture = Image.open(io.BytesIO(overlay_png(heat, max_side=100)))
    assert (picture.size, picture.mode) == ((100, 50), "RGBA")
    alpha = np.asarray(picture)[..., 3]
    assert alpha[:20, 60:].min() > 100 and alpha[30:].max() == 0
