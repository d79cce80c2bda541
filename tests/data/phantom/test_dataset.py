"""Studies by (seed, split, index), and the data sets made of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rrg_hf.data.phantom import ANATOMY_NODES, PHANTOM_SPLITS, Fact, phantom_dataset, phantom_splits, phantom_study
from rrg_hf.data.study import study_features
from rrg_hf.errors import DataError
from rrg_hf.observations import OBSERVATIONS, LabelState

_DIGEST = """
import hashlib
from rrg_hf.data.phantom import phantom_study
h = hashlib.sha256()
for split in ("train", "test_shifted"):
    for index in (0, 7, 123456):
        s = phantom_study(index, seed=3, split=split, size=96)
        h.update(s.image.tobytes())
        h.update(repr((s.facts, s.indication, s.findings, s.impression, s.boxes)).encode())
        for name, mask in s.masks.items():
            h.update(name.encode() + mask.tobytes())
print(h.hexdigest())
"""


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_same_study_in_any_process_and_order(order):
    """A fresh interpreter with another hash seed draws the same bytes, and so does another order of calls."""
    env = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": str(Path(__file__).parents[3])}
    other = subprocess.run([sys.executable, "-c", _DIGEST], env=env, capture_output=True, text=True, check=True)
    wanted = [(split, index) for split in ("train", "test_shifted") for index in (0, 7, 123456)]
    studies = {}
    for split, index in wanted if order == "forwards" else reversed(wanted):
        studies[split, index] = phantom_study(index, seed=3, split=split, size=96)
    digest = hashlib.sha256()
    for key in wanted:
        study = studies[key]
        digest.update(study.image.tobytes())
        digest.update(repr((study.facts, study.indication, study.findings, study.impression, study.boxes)).encode())
        for name, mask in study.masks.items():
            digest.update(name.encode() + mask.tobytes())
    assert other.stdout.strip() == digest.hexdigest()


def test_seed_split_and_index_each_give_another_patient():
    base = phantom_study(5)
    for other in (phantom_study(6), phantom_study(5, seed=1), phantom_study(5, split="test")):
        assert not np.array_equal(base.image, other.image)
        assert base.study_id != other.study_id
        assert base.patient_id != other.patient_id


def test_size_changes_resolution_only():
    small, large = phantom_study(11, size=64), phantom_study(11, size=256)
    assert small.image.shape == (64, 64)
    assert large.image.shape == (256, 256)
    assert (small.facts, small.findings, small.labels) == (large.facts, large.findings, large.labels)
    shrunk = np.asarray(Image.fromarray(large.image).resize((64, 64), Image.Resampling.BOX), dtype=float)
    assert np.corrcoef(shrunk.ravel(), small.image.ravel().astype(float))[0, 1] > 0.97


def test_every_study_is_labelled_phantom():
    for split in PHANTOM_SPLITS:
        row = phantom_study(2, split=split, size=64).to_row()
        assert row["source"] == "phantom"
        assert row["study_id"] == f"phantom-{split}-0000002"
        assert row["patient_id"].startswith("phantom-patient-")
        assert row["split"] == split


def test_rows_cast_to_the_study_schema(tmp_path):
    data = phantom_dataset(6, size=64)
    assert data.features == study_features()
    data.save_to_disk(str(tmp_path / "phantom"))
    from datasets import load_from_disk

    for index, row in enumerate(load_from_disk(str(tmp_path / "phantom"))):
        study = phantom_study(index, size=64)
        assert np.array_equal(np.asarray(row["images"][0]), study.image)
        assert row["findings"] == study.findings
        assert {name: LabelState(state) for name, state in row["labels"].items()} == study.labels
        assert [box["finding"] for box in row["boxes"]] == [box["finding"] for box in study.boxes]
        assert [mask["name"] for mask in row["masks"]] == ["left lung", "right lung", "cardiac silhouette"]
        for mask in row["masks"]:
            assert np.array_equal(np.asarray(mask["mask"]) > 127, study.mask(mask["name"]))


def test_masks_to_store_can_be_chosen():
    study = phantom_study(0, size=64, observations=["Edema"])
    assert study.to_row(())["masks"] == []
    names = [mask["name"] for mask in study.to_row(["Edema", "Fracture", "trachea"])["masks"]]
    assert names == ["Edema", "trachea"]
    everything = [mask["name"] for mask in study.to_row(None)["masks"]]
    assert set(everything) >= {*ANATOMY_NODES, "Edema"}


def test_splits_share_no_patient_and_no_image():
    data = phantom_splits(dict.fromkeys(PHANTOM_SPLITS, 40), size=64, masks=())
    assert {name: len(part) for name, part in data.items()} == dict.fromkeys(PHANTOM_SPLITS, 40)
    patients = [patient for part in data.values() for patient in part["patient_id"]]
    assert len(set(patients)) == 160
    images = {np.asarray(row["images"][0]).tobytes() for part in data.values() for row in part}
    assert len(images) == 160


def test_chunks_do_not_change_a_data_set():
    """The data set is built in pieces of 250; study 250 is the same as when drawn alone."""
    seen = []
    data = phantom_dataset(252, size=64, masks=(), progress=seen.append)
    assert seen == [250, 252]
    assert np.array_equal(np.asarray(data[251]["images"][0]), phantom_study(251, size=64).image)


def test_asking_for_findings_keeps_the_patient():
    normal = phantom_study(4, observations=[])
    assert normal.facts == ()
    assert normal.labels["No Finding"] is LabelState.POSITIVE
    fact = Fact("Lung Lesion", side="left", zone="upper", severity="large", kind="mass")
    study = phantom_study(4, observations=[fact, "Cardiomegaly"])
    assert [f.observation for f in study.facts] == ["Cardiomegaly", "Lung Lesion"]
    assert fact in study.facts
    assert study.chest.anatomy.bubble == normal.chest.anatomy.bubble


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": -1}, "index must be an integer of at least 0, not -1"),
        ({"index": 1.5}, "index must be an integer"),
        ({"index": True}, "index must be an integer"),
        ({"index": 0, "seed": -3}, "seed must be"),
        ({"index": 0, "size": 32}, "64 to 512"),
        ({"index": 0, "size": 1024}, "64 to 512"),
        ({"index": 0, "split": "val"}, r"no split 'val'.*validation"),
        ({"index": 0, "observations": ["Heart"]}, "Cannot draw 'Heart'"),
        ({"index": 0, "observations": ["No Finding"]}, "Cannot draw 'No Finding'"),
        ({"index": 0, "observations": "Edema"}, "must be a list"),
        ({"index": 0, "observations": ["Edema", Fact("Edema")]}, "listed twice: \\['Edema'\\]"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(DataError, match=message):
        phantom_study(**arguments)


def test_bad_data_set_arguments_are_named():
    with pytest.raises(DataError, match="n must be an integer of at least 1, not 0"):
        phantom_dataset(0)
    with pytest.raises(DataError, match="No splits"):
        phantom_splits({})
    with pytest.raises(DataError, match=r"sizes\['test'\]"):
        phantom_splits({"train": 5, "test": 0})
    with pytest.raises(DataError, match="no split 'dev'"):
        phantom_splits({"dev": 5})
    with pytest.raises(DataError, match=r"no masks \['liver'\]"):
        phantom_dataset(3, masks=["liver"])
    with pytest.raises(DataError, match="not the string"):
        phantom_dataset(3, masks="left lung")
    with pytest.raises(DataError, match=r"no masks \['liver'\]"):
        phantom_study(0).mask("liver")


def test_labels_cover_the_fourteen_observations():
    labels = phantom_study(0).labels
    assert tuple(labels) == OBSERVATIONS
    labels["Edema"] = LabelState.UNCERTAIN
    assert phantom_study(0).labels != labels, "changing the answer must not change the study"
