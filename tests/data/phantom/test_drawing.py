"""Drawing: a finding stays where it was put, structures have their brightness, exposure is one tone curve."""

import dataclasses

import numpy as np
import pytest

from rrg_hf.data.phantom.anatomy import Chest, sample_anatomy
from rrg_hf.data.phantom.drawing import BEHIND_HEART, Radiograph, clavicle_shaft

SIZE = 128


@pytest.fixture(scope="module")
def anatomy():
    return sample_anatomy(np.random.default_rng(8))


def quiet(anatomy, **changes):
    """The same patient without photon noise."""
    return dataclasses.replace(anatomy, noise=0.0, **changes)


def expose(radiograph):
    return radiograph.expose(np.random.default_rng(0)).astype(int)


def test_lungs_hold_air_and_less_of_it_behind_the_heart(anatomy):
    chest = Chest(anatomy, SIZE)
    air = Radiograph(chest).air
    assert air.min() >= 0 and air.max() <= 1 + 1e-6
    lungs = (chest.lung("right") + chest.lung("left")) > 0.99
    behind = lungs & (chest.silhouette() > 0.99)
    free = lungs & (chest.silhouette() < 0.01)
    assert behind.any() and air[behind] == pytest.approx(BEHIND_HEART, abs=0.02)
    assert air[free] == pytest.approx(1.0, abs=0.02)
    assert (air[(chest.lung("right") + chest.lung("left")) == 0] == 0).all()


def test_filling_takes_a_share_of_the_air_away_in_its_window_only(anatomy):
    radiograph = Radiograph(Chest(anatomy, SIZE))
    before = radiograph.air.copy()
    at = (slice(40, 60), slice(20, 50))
    radiograph.fill(at, np.full((20, 30), 0.25, np.float32))
    radiograph.fill(at, np.full((20, 30), 0.5, np.float32))
    assert radiograph.air[at] == pytest.approx(before[at] * 0.75 * 0.5)
    outside = np.ones((SIZE, SIZE), bool)
    outside[at] = False
    assert np.array_equal(radiograph.air[outside], before[outside])


def test_a_window_becomes_a_mask_of_the_whole_image(anatomy):
    radiograph = Radiograph(Chest(anatomy, SIZE))
    inside = np.zeros((5, 4), bool)
    inside[1, 2] = True
    mask = radiograph.full((slice(10, 15), slice(20, 24)), inside)
    assert mask.shape == (SIZE, SIZE) and mask.sum() == 1 and mask[11, 22]


def test_fluid_and_metal_brighten_the_place_and_leave_the_rest_as_it_was(anatomy):
    patient = quiet(anatomy)
    plain = expose(Radiograph(Chest(patient, SIZE)))
    at = (slice(50, 60), slice(30, 40))
    outside = np.ones((SIZE, SIZE), bool)
    outside[at] = False
    for change in ("fill", "add"):
        radiograph = Radiograph(Chest(patient, SIZE))
        getattr(radiograph, change)(at, np.full((10, 10), 0.8, np.float32))
        drawn = expose(radiograph)
        assert np.array_equal(drawn[outside], plain[outside])
        assert (drawn[at] > plain[at]).mean() > 0.9
    twice = Radiograph(Chest(patient, SIZE))
    twice.add(at, np.full((10, 10), 0.2, np.float32))
    once = expose(twice)
    twice.add(at, np.full((10, 10), 0.2, np.float32))
    assert (expose(twice)[at] >= once[at]).all() and expose(twice)[at].mean() > once[at].mean()


def test_bones_are_denser_than_what_lies_between_them(anatomy):
    chest = Chest(anatomy, SIZE)
    density = Radiograph(chest).density
    spine, lung = chest.mask("spine"), chest.mask("right lung")
    assert density[spine].mean() > 3 * density[lung & ~chest.mask("right clavicle")].mean()
    assert density.min() >= 0
    strong = Radiograph(Chest(dataclasses.replace(anatomy, rib_contrast=2 * anatomy.rib_contrast), SIZE)).density
    ribs_only = lung & ~spine
    assert strong[ribs_only].sum() == pytest.approx(2 * density[ribs_only].sum(), rel=0.25)


def test_a_clavicle_is_densest_at_its_cortex_and_ends_there():
    offsets = np.linspace(-0.03, 0.03, 601, dtype=np.float32)
    profile = clavicle_shaft(offsets)
    assert profile == pytest.approx(profile[::-1], abs=1e-5)
    peak = abs(offsets[profile.argmax()])
    assert 0.005 < peak < 0.0135 and profile[300] < profile.max()
    assert profile[0] == profile[-1] == 0


def test_without_markings_there_are_no_vessels(anatomy):
    patient = quiet(anatomy)
    with_vessels, without = Radiograph(Chest(patient, SIZE)), Radiograph(Chest(patient, SIZE))
    without.markings[:] = 0
    one, other = expose(with_vessels), expose(without)
    lung = Chest(patient, SIZE).mask("right lung")
    assert (other <= one).all() and one[lung].mean() > other[lung].mean() + 1


def test_the_airway_is_darker_than_the_mediastinum_beside_it(anatomy):
    chest = Chest(quiet(anatomy), SIZE)
    image = expose(Radiograph(chest))
    trachea = chest.mask("trachea")
    rows = np.flatnonzero(trachea.any(axis=1))
    row = rows[len(rows) // 2]
    columns = np.flatnonzero(trachea[row])
    middle = int(columns.mean())
    beside = [columns.min() - 4, columns.max() + 4]
    assert image[row, middle] < min(image[row, at] for at in beside)


def test_noise_comes_from_the_generator_and_is_the_patients(anatomy):
    radiograph = Radiograph(Chest(dataclasses.replace(anatomy, noise=0.03), SIZE))
    first, again = (radiograph.expose(np.random.default_rng(1)) for _ in range(2))
    other = radiograph.expose(np.random.default_rng(2))
    assert first.dtype == np.uint8 and first.shape == (SIZE, SIZE)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    calm = Radiograph(Chest(quiet(anatomy), SIZE))
    assert np.array_equal(expose(calm), calm.expose(np.random.default_rng(2)).astype(int))


def test_exposure_makes_the_image_brighter_or_darker_without_clipping_it(anatomy):
    means = []
    for gain in (0.8, 1.0, 1.25):
        image = expose(Radiograph(Chest(quiet(anatomy, gain=gain), SIZE)))
        means.append(image.mean())
        assert np.mean((image == 0) | (image == 255)) < 0.05
    assert means[0] < means[1] < means[2]
