"""Every observation is drawn where its mask says, and nowhere else."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.ndimage import binary_dilation

from rrg_hf.data.phantom import Fact, phantom_study
from rrg_hf.data.phantom.facts import DRAWABLE, OPTIONS
from rrg_hf.observations import LabelState


def _difference(study, index, size=128):
    """Change against the same patient without findings, in grey levels."""
    return np.abs(study.image.astype(float) - phantom_study(index, size=size, observations=[]).image.astype(float))


@pytest.mark.parametrize("name", DRAWABLE)
def test_each_observation_alone_changes_pixels_in_its_mask_only(name):
    for index in range(8):
        study = phantom_study(index, observations=[name])
        assert [fact.observation for fact in study.facts] == [name]
        mask = study.mask(name)
        change = _difference(study, index)
        assert mask.any()
        assert change[mask].mean() > 4, f"{name} can hardly be seen in study {index}"
        # A large heart or a wide mediastinum also pushes the vessels beside it; one tenth of the image is near.
        near = binary_dilation(mask, iterations=6)
        assert change[~near].max() <= 12
        assert change[~near].sum() < 0.05 * change.sum()


@pytest.mark.parametrize(("first", "second"), list(combinations(DRAWABLE, 2)))
def test_each_pair_can_be_drawn(first, second):
    study = phantom_study(1, size=96, observations=[first, second])
    assert {fact.observation for fact in study.facts} == {first, second}
    assert study.mask(first).any()
    assert study.mask(second).any()
    assert {box["finding"] for box in study.boxes} == {first, second}


def test_all_thirteen_together():
    study = phantom_study(3, observations=list(DRAWABLE))
    assert {box["finding"] for box in study.boxes} == set(DRAWABLE)


@pytest.mark.parametrize("size", [64, 128, 512])
def test_boxes_hold_their_masks_inside_the_image(size):
    for index in range(60 if size < 512 else 6):
        study = phantom_study(index, size=size)
        assert {box["finding"] for box in study.boxes} == {fact.observation for fact in study.facts}
        covered = {name: np.zeros((size, size), dtype=bool) for name in study.finding_masks}
        for box in study.boxes:
            left, top, width, height = box["xywh"]
            assert width > 0 and height > 0
            assert left >= 0 and top >= 0 and left + width <= size and top + height <= size
            covered[box["finding"]][int(top) : int(top + height), int(left) : int(left + width)] = True
        for name, parts in study.finding_masks.items():
            for part in parts:
                assert part.any(), f"{name} of study {index} has an empty mask"
                assert not (part & ~covered[name]).any()


@pytest.mark.parametrize("name", [name for name in DRAWABLE if OPTIONS[name][0]])
@pytest.mark.parametrize("side", ["right", "left", "bilateral"])
def test_side_is_the_patients(name, side):
    if side not in OPTIONS[name][0]:
        pytest.skip(f"{name} is one-sided")
    for index in range(5):
        study = phantom_study(index, observations=[Fact(name, side=side)])
        spine = np.nonzero(study.mask("spine"))[1].mean()
        centres = [np.nonzero(part)[1].mean() for part in study.finding_masks[name]]
        assert len(centres) == (2 if side == "bilateral" else 1)
        assert any(c < spine for c in centres) == (side in ("right", "bilateral"))
        assert any(c > spine for c in centres) == (side in ("left", "bilateral"))


@pytest.mark.parametrize("name", [name for name in DRAWABLE if OPTIONS[name][1]])
def test_zone_is_where_most_of_the_finding_lies(name):
    for index in range(5):
        for zone in OPTIONS[name][1]:
            for side in ("right", "left"):
                study = phantom_study(index, observations=[Fact(name, side=side, zone=zone)])
                mask = study.mask(name)
                inside = {z: (mask & study.mask(f"{side} {z} lung zone")).sum() for z in ("upper", "mid", "lower")}
                assert max(inside, key=inside.get) == zone


@pytest.mark.parametrize("name", [name for name in DRAWABLE if OPTIONS[name][2] and name != "Edema"])
def test_severity_grows(name):
    least, middle, most = OPTIONS[name][2]
    side = "left" if OPTIONS[name][0] else None
    zone = "mid" if OPTIONS[name][1] else None
    for index in range(5):
        areas = [
            phantom_study(index, size=256, observations=[Fact(name, side=side, zone=zone, severity=s)])
            .mask(name)
            .sum()
            for s in (least, middle, most)
        ]
        assert areas[0] < areas[1] < areas[2]


def test_edema_grows_denser():
    for index in range(5):
        changes = []
        for severity in ("mild", "moderate", "severe"):
            study = phantom_study(index, observations=[Fact("Edema", severity=severity)])
            changes.append(_difference(study, index).sum())
        assert changes[0] < changes[1] < changes[2]


@pytest.mark.parametrize("name", [name for name in DRAWABLE if name != "Support Devices"])
def test_uncertain_is_fainter(name):
    side = "left" if OPTIONS[name][0] else None
    zone = "mid" if OPTIONS[name][1] else None
    severity = OPTIONS[name][2][0] if OPTIONS[name][2] else None
    for index in range(4):
        total = {}
        for state in (LabelState.POSITIVE, LabelState.UNCERTAIN):
            fact = Fact(name, state=state, side=side, zone=zone, severity=severity)
            total[state] = _difference(phantom_study(index, observations=[fact]), index).sum()
        assert 0 < total[LabelState.UNCERTAIN] < total[LabelState.POSITIVE]


def test_cardiomegaly_makes_the_heart_wider_than_half_the_thorax():
    for index in range(20):
        for severity in ("mild", "moderate", "severe"):
            study = phantom_study(index, size=256, observations=[Fact("Cardiomegaly", severity=severity)])
            heart = np.flatnonzero(study.mask("cardiac silhouette").any(0))
            lungs = np.flatnonzero(study.mask("chest").any(0))
            assert np.ptp(heart) / (np.ptp(lungs) - 0.06 * 256) > 0.49


def test_pneumothorax_is_dark_and_effusion_is_bright():
    for index in range(10):
        normal = phantom_study(index, observations=[]).image.astype(float)
        for name, sign in (("Pneumothorax", -1), ("Pleural Effusion", 1), ("Consolidation", 1)):
            study = phantom_study(index, observations=[name])
            change = (study.image.astype(float) - normal)[study.mask(name)].mean()
            assert sign * change > 3


@pytest.mark.parametrize("kind", OPTIONS["Support Devices"][3])
def test_devices_are_radiopaque(kind):
    for index in range(6):
        study = phantom_study(index, observations=[Fact("Support Devices", kind=kind)])
        mask = study.mask("Support Devices")
        normal = phantom_study(index, observations=[]).image
        assert (study.image[mask].astype(float) - normal[mask]).mean() > 12
        if kind == "endotracheal tube":
            assert np.nonzero(mask)[0].max() < np.nonzero(study.mask("carina"))[0].mean()
