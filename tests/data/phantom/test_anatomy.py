"""Geometry: radiological convention, and masks that lie where anatomy has them."""

from __future__ import annotations

import numpy as np
import pytest

from rrg_hf.data.phantom import ANATOMY_NODES, phantom_study


@pytest.fixture(scope="module")
def normals():
    return [phantom_study(i, observations=[]) for i in range(40)]


def _centre(mask):
    rows, columns = np.nonzero(mask)
    return rows.mean(), columns.mean()


def test_there_are_the_32_nodes():
    assert len(ANATOMY_NODES) == 32
    assert len(set(ANATOMY_NODES)) == 32


@pytest.mark.parametrize("size", [64, 128, 512])
def test_every_node_has_a_mask_of_the_image_size(size):
    for index in range(12 if size < 512 else 2):
        study = phantom_study(index, size=size, observations=[])
        for name in ANATOMY_NODES:
            mask = study.mask(name)
            assert mask.dtype == bool
            assert mask.shape == (size, size)
            assert mask.any(), f"{name} is empty in study {index}"


def test_the_patients_right_is_on_the_images_left(normals):
    pairs = [name.removeprefix("right ") for name in ANATOMY_NODES if name.startswith("right ")]
    pairs.remove("atrium")
    for study in normals:
        middle = _centre(study.mask("spine"))[1]
        for part in pairs:
            assert _centre(study.mask(f"right {part}"))[1] < middle < _centre(study.mask(f"left {part}"))[1], part
        assert _centre(study.mask("right atrium"))[1] < middle
        assert _centre(study.mask("superior vena cava"))[1] < middle
        assert _centre(study.mask("aortic arch"))[1] > middle


def test_heart_points_to_the_patients_left(normals):
    for study in normals:
        middle = _centre(study.mask("spine"))[1]
        columns = np.nonzero(study.mask("cardiac silhouette"))[1]
        assert columns.max() - middle > 1.4 * (middle - columns.min())


def test_normal_hearts_are_narrower_than_half_the_thorax(normals):
    for study in normals:
        columns = np.flatnonzero(study.mask("cardiac silhouette").any(0))
        lungs = np.flatnonzero(study.mask("lungs").any(0))
        assert np.ptp(columns) / np.ptp(lungs) < 0.5


def test_stomach_bubble_lies_under_the_left_hemidiaphragm(normals):
    shown = [study for study in normals if "stomach bubble" in study.masks]
    assert 0 < len(shown) < len(normals), "some patients show a bubble, some do not"
    for study in shown:
        row, column = _centre(study.mask("stomach bubble"))
        assert column > _centre(study.mask("spine"))[1]
        assert row > _centre(study.mask("left hemidiaphragm"))[0]
        bubble = study.mask("stomach bubble")
        around = study.mask("abdomen") & ~bubble
        assert study.image[bubble].mean() < study.image[around].mean() - 15
    for study in normals:
        if study not in shown:
            assert not study.mask("stomach bubble").any()


def test_air_is_dark_and_bone_is_bright(normals):
    for study in normals:
        image = study.image.astype(float)
        lungs = image[study.mask("lungs")].mean()
        assert lungs < image[study.mask("cardiac silhouette")].mean() - 40
        assert lungs < image[study.mask("abdomen")].mean() - 40
        assert image[study.mask("trachea")].mean() < image[study.mask("spine")].mean()
        outside = image[:8, :8].mean()
        assert outside < lungs


def test_parts_lie_in_their_parents(normals):
    for study in normals[:10]:
        for side in ("right", "left"):
            lung = study.mask(f"{side} lung")
            zones = [study.mask(f"{side} {zone} lung zone") for zone in ("upper", "mid", "lower")]
            assert np.array_equal(np.logical_or.reduce(zones), lung)
            assert np.sum(zones) == lung.sum(), "zones do not overlap"
            assert not (study.mask(f"{side} apical zone") & ~lung).any()
            assert not (study.mask(f"{side} costophrenic angle") & ~study.mask(f"{side} lower lung zone")).any()
        assert np.array_equal(study.mask("lungs"), study.mask("left lung") | study.mask("right lung"))
        assert not (study.mask("right atrium") & ~study.mask("cardiac silhouette")).any()
        assert not (study.mask("upper mediastinum") & ~study.mask("mediastinum")).any()
        assert not (study.mask("left clavicle") & ~study.mask("skeletal structures")).any()


def test_patients_differ(normals):
    images = np.stack([study.image for study in normals]).astype(float)
    spread = images.std(0)
    assert spread.mean() > 8
    widths = [np.ptp(np.flatnonzero(study.mask("lungs").any(0))) for study in normals]
    assert len(set(widths)) > 5
    assert np.ptp(images.mean((1, 2))) > 20, "exposure varies"
