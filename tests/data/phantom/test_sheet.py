"""The contact sheet."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from rrg_hf.data.phantom import Fact, contact_sheet, phantom_study
from rrg_hf.data.phantom.sheet import caption_of
from rrg_hf.errors import DataError
from rrg_hf.observations import LabelState


def test_sheet_shows_the_pixels_of_each_study_and_writes_beside_them():
    studies = [phantom_study(i, size=64) for i in range(5)]
    sheet = np.asarray(contact_sheet(studies, columns=3, tile=64).convert("L"))
    assert sheet.shape[1] == 3 * 72 + 8
    assert np.array_equal(sheet[8:72, 8:72], studies[0].image)
    assert np.array_equal(sheet[8:72, 80:144], studies[1].image)
    below = sheet[72:90, 8:72]
    assert below.min() < 100, "a caption stands under the picture"


def test_caption():
    fact = Fact("Lung Lesion", side="left", zone="upper", severity="small", kind="nodule")
    assert caption_of(fact) == "small left upper Lung Lesion (nodule)"
    assert caption_of(Fact("Edema", state=LabelState.UNCERTAIN, severity="mild")) == "mild Edema ?"


def test_result_is_an_image_whatever_the_number():
    assert isinstance(contact_sheet([phantom_study(0, size=64)]), Image.Image)


def test_bad_arguments():
    with pytest.raises(DataError, match="at least one study"):
        contact_sheet([])
    with pytest.raises(DataError, match="columns=0"):
        contact_sheet([phantom_study(0, size=64)], columns=0)
