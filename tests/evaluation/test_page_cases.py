"""One case of the page: the picture, the statements with their verdicts, and the heat maps beside them."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from rrg_hf.evaluation.heatmap import SentenceMaps
from rrg_hf.evaluation.page_cases import PageCase, lay_out_case
from rrg_hf.observations import OBSERVATIONS

GENERATED = "There is a small left pleural effusion. No pneumothorax is seen. The heart is enlarged."
REFERENCE = "Small left pleural effusion. No pneumothorax. Pulmonary edema is present."


def grey(height: int = 40, width: int = 30) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)


def maps(*tops: float, method: str = "occlusion", text: str = GENERATED) -> SentenceMaps:
    """A map per sentence whose brightest spot is as given."""
    ends = [at + 1 for at, char in enumerate(text) if char == "."]
    starts = [0, *(end + 1 for end in ends[:-1])]
    heat = np.zeros((len(tops), 40, 30), np.float32)
    for index, top in enumerate(tops):
        heat[index, 5, 5] = top
    return SentenceMaps(tuple(zip(starts, ends, strict=True))[: len(tops)], heat, method, np.zeros(len(tops)))


def picture_of(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


def test_statements_get_their_verdicts_on_both_sides() -> None:
    laid = lay_out_case(3, PageCase("s1", grey(), GENERATED, REFERENCE))
    assert laid.anchor == "case-3"
    assert [(entry.text, entry.verdict) for entry in laid.generated] == [
        ("There is a small left pleural effusion.", "right"),
        ("No pneumothorax is seen.", "right"),
        ("The heart is enlarged.", "invented"),
    ]
    assert [entry.verdict for entry in laid.reference] == ["covered", "covered", "missed"]
    assert laid.counts == {"right": 2, "wrong": 0, "missed": 1, "invented": 1}
    assert any("Cardiomegaly" in reason for reason in laid.generated[2].reasons)


def test_known_labels_win_over_the_labellers() -> None:
    labels = dict.fromkeys(OBSERVATIONS) | {"Cardiomegaly": "positive", "Pleural Effusion": "negative"}
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, REFERENCE, labels=labels))
    verdicts = {entry.text: entry.verdict for entry in laid.generated}
    assert verdicts["The heart is enlarged."] == "right"
    assert verdicts["There is a small left pleural effusion."] == "wrong"


def test_without_a_reference_nothing_is_judged() -> None:
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED))
    assert {entry.verdict for entry in laid.generated} == {"unjudged"} and len(laid.generated) == 3
    assert laid.reference == [] and laid.counts == {}


def test_the_sentence_with_most_evidence_is_shown_first() -> None:
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, REFERENCE, maps=[maps(0.01, 2.0, 1.0)]))
    assert laid.selected == 1 and laid.mapped == {0, 1, 2} and laid.methods == ["occlusion"]
    captions = [entry.caption for entry in laid.generated]
    assert "does not hang on one place" in captions[0]
    assert f"{math.exp(2.0):.1f} times less likely" in captions[1]
    assert f"{math.exp(1.0):.1f} times" in captions[2]


def test_a_huge_ratio_is_not_spelt_out() -> None:
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, maps=[maps(500.0, 3.0, 0.0)]))
    assert "more than 1,000 times less likely" in laid.generated[0].caption
    assert f"{math.exp(3.0):,.0f} times" in laid.generated[1].caption


def test_noise_does_not_glow() -> None:
    """A map is scaled to its own maximum, but not below a floor: weak evidence stays pale."""

    def strongest(top: float, method: str = "occlusion") -> int:
        laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, maps=[maps(top, 0.0, 0.0, method=method)]))
        return int(np.asarray(picture_of(laid.layers[0]["url"]))[..., 3].max())

    assert strongest(0.05) < 0.5 * strongest(0.5)
    assert strongest(0.5) == strongest(5.0)
    assert strongest(0.001, "attention") == strongest(0.5, "attention")  # shares of 1 have no such floor


def test_sentences_beyond_the_models_length_have_no_map() -> None:
    cut = maps(1.0, 1.0, np.nan)
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, REFERENCE, maps=[cut]))
    assert laid.mapped == {0, 1} and laid.generated[2].caption == ""


def test_attention_alone_selects_the_first_sentence_and_gives_no_caption() -> None:
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, maps=[maps(0.1, 0.9, 0.2, method="attention")]))
    assert laid.selected == 0 and [entry.caption for entry in laid.generated] == ["", "", ""]
    both = [maps(0.1, 0.9, 0.2, method="attention"), maps(0.1, 0.2, 3.0)]
    laid = lay_out_case(1, PageCase("s1", grey(), GENERATED, maps=both))
    assert laid.selected == 2 and laid.methods == ["attention", "occlusion"] and len(laid.layers) == 6


def test_small_pictures_are_exact_and_large_ones_are_scaled_down() -> None:
    small = lay_out_case(1, PageCase("s1", grey(), GENERATED))
    assert np.array_equal(np.asarray(picture_of(small.image)), grey())
    large = lay_out_case(1, PageCase("s1", grey(2000, 1000), GENERATED))
    assert large.size == (360, 720) == picture_of(large.image).size
    assert picture_of(large.image).format == "JPEG" and len(large.image) < 200_000
    assert max(picture_of(large.thumbnail).size) == 96


def test_deep_images_are_stretched_to_their_own_range() -> None:
    deep = np.linspace(1000, 1400, 40 * 30).reshape(40, 30).astype(np.uint16)
    shown = np.asarray(picture_of(lay_out_case(1, PageCase("s1", deep, GENERATED)).image))
    assert shown.min() == 0 and shown.max() == 255 and (np.diff(shown.ravel().astype(int)) >= 0).all()
    flat = np.full((40, 30), 700, np.uint16)
    assert np.unique(np.asarray(picture_of(lay_out_case(1, PageCase("s1", flat, GENERATED)).image))).size == 1


def test_colour_and_odd_shapes() -> None:
    colour = Image.fromarray(np.stack([grey()] * 3, axis=-1))
    shown = picture_of(lay_out_case(1, PageCase("s1", colour, GENERATED)).image)
    assert np.abs(np.asarray(shown).astype(int) - grey()).max() <= 1
    for bad in (np.zeros((4, 4, 3), np.uint8), np.zeros((0, 4), np.uint8)):
        with pytest.raises(ValueError, match="must be greyscale of shape"):
            lay_out_case(1, PageCase("s1", bad, GENERATED))
