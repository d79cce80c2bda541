"""What `rrg generate` finds behind its inputs, and the study ids it gives."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from PIL import Image

from rrg_hf.data.generation_inputs import collect_inputs
from rrg_hf.data.study import study_features
from rrg_hf.errors import DataError, ImageReadError
from rrg_hf.observations import OBSERVATIONS


def save(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def rows(ids: list[str], split: str = "test") -> Dataset:
    return Dataset.from_list(
        [
            {
                "study_id": study_id,
                "patient_id": study_id,
                "images": [Image.fromarray(np.full((16, 16), 7 * index, np.uint8)) for index in range(2)],
                "views": ["lateral", "frontal"],
                **dict.fromkeys(("comparison", "technique", "findings", "impression")),
                "indication": f"Cough {study_id}.",
                "labels": dict.fromkeys(OBSERVATIONS),
                "boxes": [],
                "masks": [],
                "source": "test",
                "split": split,
            }
            for study_id in ids
        ],
        features=study_features(),
    )


def ids(*sources: Path | str, split: str | None = None) -> list[str]:
    return [study.study_id for study in collect_inputs(sources, split=split).studies]


def test_a_folder_is_searched_for_images_of_every_kind(tmp_path: Path) -> None:
    save(tmp_path / "b.png")
    save(tmp_path / "p1" / "s1" / "view.JPG")
    (tmp_path / "p1" / "IM0001").write_bytes(bytes(128) + b"DICM" + bytes(40))
    (tmp_path / "p1" / "1.2.840.77").write_bytes(b"\x08\x00\x05\x00" + bytes(40))
    (tmp_path / "scan.dcm").write_bytes(b"whatever")
    for name in ("notes.txt", "table.csv", "more.csv", ".hidden.png", "DICOMDIR", "README"):
        (tmp_path / name).write_bytes(bytes(128) + b"DICM" if name == "DICOMDIR" else b"text")
    save(tmp_path / ".cache" / "thumb.png")
    collected = collect_inputs([tmp_path])
    assert [study.study_id for study in collected.studies] == ["b", "scan", "p1/1.2.840", "p1/IM0001", "p1/s1/view"]
    assert collected.studies[-1].images == ("view.JPG",)
    assert collected.ignored == {
        ".csv": 2, ".txt": 1, "hidden or special": 1, "hidden folder": 1, "no suffix": 2
    }  # fmt: skip


def test_folders_that_are_not_searched_are_counted(tmp_path: Path) -> None:
    save(tmp_path / "p1" / "a.png")
    save(tmp_path / ".cache" / "thumb.png")
    (tmp_path / "p1" / "back").symlink_to(tmp_path)
    collected = collect_inputs([tmp_path])
    assert [study.study_id for study in collected.studies] == ["p1/a"]
    assert collected.ignored == {"hidden folder": 1, "linked folder": 1}


def test_a_folder_that_cannot_be_searched_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.walk` leaves such folders out without a word; permissions cannot be taken from root, who may run this."""
    save(tmp_path / "a.png")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def closed(path: str) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", closed)
    with pytest.raises(DataError, match=r"closed cannot be read \(Permission denied\)"):
        collect_inputs([tmp_path])


def test_reading_waits_until_asked(tmp_path: Path) -> None:
    good, bad = save(tmp_path / "a.png", seed=1), tmp_path / "b.png"
    bad.write_bytes(b"")
    studies = collect_inputs([good, bad]).studies
    image, indication = studies[0].read()
    assert indication is None
    assert np.array_equal(np.asarray(image), np.asarray(Image.open(good)))
    with pytest.raises(ImageReadError, match="empty"):
        studies[1].read()


def test_equal_ids_are_told_apart(tmp_path: Path) -> None:
    save(tmp_path / "x" / "a.png")
    save(tmp_path / "x" / "a.jpg")
    save(tmp_path / "y" / "a.png")
    save(tmp_path / "y" / "b.png")
    assert ids(tmp_path / "x") == ["a.jpg", "a.png"]
    assert ids(tmp_path / "x", tmp_path / "y") == ["a.jpg", "x/a.png", "y/a.png", "b"]
    assert ids(tmp_path) == ["x/a.jpg", "x/a.png", "y/a", "y/b"]


def test_a_file_named_twice_gets_one_report(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png")
    (tmp_path / "link.png").symlink_to(path)
    collected = collect_inputs([path, tmp_path, f"{tmp_path}/../{tmp_path.name}/a.png"])
    assert [study.study_id for study in collected.studies] == ["a", "link"]
    assert collected.duplicates == 2


def test_data_sets_give_their_own_ids_and_indications(tmp_path: Path) -> None:
    DatasetDict({"test": rows(["s1", "s2"]), "train": rows(["s3"], "train")}).save_to_disk(tmp_path / "ds")
    studies = collect_inputs([tmp_path / "ds"], split="test").studies
    assert [study.study_id for study in studies] == ["s1", "s2"]
    image, indication = studies[1].read()
    assert (np.asarray(image).max(), indication) == (7, "Cough s2.")  # the frontal one
    with pytest.raises(DataError, match=r"splits test, train. Choose one with --split"):
        collect_inputs([tmp_path / "ds"])
    with pytest.raises(DataError, match="no split 'val'"):
        collect_inputs([tmp_path / "ds"], split="val")


def test_a_damaged_image_in_a_data_set_names_its_study(tmp_path: Path) -> None:
    table = rows(["s1"]).to_list()
    table[0]["images"] = [{"bytes": b"broken", "path": None}, {"bytes": b"broken", "path": "x.png"}]
    Dataset.from_list(table, features=study_features()).save_to_disk(tmp_path / "ds")
    (study,) = collect_inputs([tmp_path / "ds"]).studies
    assert study.images == ("", "x.png")
    with pytest.raises(DataError, match="Study 's1'"):
        study.read()


def test_repeated_ids_are_refused(tmp_path: Path) -> None:
    rows(["s1", "s1"]).save_to_disk(tmp_path / "ds")
    with pytest.raises(DataError, match=r"1 study ids occur more than once.*\['s1'\]"):
        collect_inputs([tmp_path / "ds"])


@pytest.mark.parametrize("source", ["missing.png", "no/such.dcm", "a/b/c", "missing"])
def test_what_is_not_there_is_an_error(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        collect_inputs([source])


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(DataError, match="An input is empty"):
        collect_inputs([""])


def test_an_unknown_hub_id_is_an_error() -> None:
    with pytest.raises(DataError, match="no-such-owner/no-such-data"):
        collect_inputs(["no-such-owner/no-such-data"])


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds no images \(1 other files\)"):
        collect_inputs([tmp_path])


def test_a_missing_image_does_not_stop_the_others(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "there.png")
    collected = collect_inputs([tmp_path / "gone.png", tmp_path / "there.png", tmp_path / "gone.dcm"])
    by_name = {study.images[0]: study for study in collected.studies}
    assert set(by_name) == {"gone.png", "there.png", "gone.dcm"}
    assert by_name["there.png"].read()[0].size == (8, 8)
    for name in ("gone.png", "gone.dcm"):
        with pytest.raises(DataError, match=f"{name}: no such file"):
            by_name[name].read()
