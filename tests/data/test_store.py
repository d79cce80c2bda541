"""Saving in one step, loading with schema checks, and splits that share no patient."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, IterableDataset, Value, load_dataset, load_from_disk
from PIL import Image

from rrg_hf.data import store
from rrg_hf.data.store import (
    DEFAULT_FRACTIONS,
    check_schema,
    check_single_world,
    check_splits,
    load_studies,
    save_studies,
    split_by_patient,
    split_of_patient,
    write_rows,
)
from rrg_hf.data.study import study_features
from rrg_hf.errors import DataError
from rrg_hf.observations import OBSERVATIONS


def row(study: str, patient: str | None = None, **changes: Any) -> dict[str, Any]:
    picture = Image.fromarray(np.full((8, 8), sum(study.encode()) % 256, dtype=np.uint8))
    return {
        "study_id": study,
        "patient_id": patient or f"p-{study}",
        "images": [picture],
        "views": ["frontal"],
        "indication": None,
        "comparison": None,
        "technique": None,
        "findings": "The lungs are clear.",
        "impression": None,
        "labels": {**dict.fromkeys(OBSERVATIONS), "Edema": "negative"},
        "boxes": [{"finding": "Edema", "image_index": 0, "xywh": [1.0, 2.0, 3.0, 4.0]}],
        "masks": [{"name": "left lung", "image_index": 0, "mask": picture}],
        "source": "iu_xray",
        "split": "train",
        **changes,
    }


def studies(**splits: list[dict[str, Any]]) -> DatasetDict:
    return DatasetDict({name: Dataset.from_list(rows, features=study_features()) for name, rows in splits.items()})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_studies(studies(train=[row("a"), row("b")], test=[row("c")]), tmp_path / "data")


def test_round_trip_by_this_and_by_plain_datasets(saved: Path) -> None:
    for loaded in (load_studies(saved), load_from_disk(str(saved))):
        assert isinstance(loaded, DatasetDict)
        assert {name: part["study_id"][:] for name, part in loaded.items()} == {"train": ["a", "b"], "test": ["c"]}
        first = loaded["train"][0]
        assert first["findings"] == "The lungs are clear." and first["impression"] is None
        assert first["labels"]["Edema"] == "negative" and first["labels"]["Fracture"] is None
        assert np.asarray(first["images"][0]).tolist() == np.full((8, 8), ord("a")).tolist()
        assert first["boxes"][0]["xywh"] == [1.0, 2.0, 3.0, 4.0]
    assert load_studies(saved, "test")["study_id"][:] == ["c"]


def test_further_files_lie_in_the_folder(tmp_path: Path) -> None:
    target = save_studies(studies(train=[row("a")]), tmp_path / "deep" / "data", files={"tally.json": "{}\n"})
    assert (target / "tally.json").read_text() == "{}\n"
    assert load_studies(target, "train").num_rows == 1


def test_streaming_from_disk_and_from_parquet(saved: Path, tmp_path: Path) -> None:
    stream = load_studies(saved, "train", streaming=True)
    assert isinstance(stream, IterableDataset)
    assert [item["study_id"] for item in stream] == ["a", "b"]
    assert [item["study_id"] for item in load_studies(saved)["train"].to_iterable_dataset()] == ["a", "b"]
    folder = tmp_path / "parquet"
    folder.mkdir()
    for name, part in load_studies(saved).items():
        part.to_parquet(str(folder / f"{name}-00000-of-00001.parquet"))
    plain = load_dataset("parquet", data_files={"train": str(folder / "train*.parquet")}, streaming=True)["train"]
    item = next(iter(plain))
    assert item["study_id"] == "a" and item["images"][0].size == (8, 8) and item["masks"][0]["name"] == "left lung"
    ours = load_studies(folder, "test", streaming=True)
    assert next(iter(ours))["images"][0].size == (8, 8)
    assert load_studies(folder)["train"].features == study_features()


def test_an_existing_data_set_needs_overwrite(saved: Path) -> None:
    new = studies(train=[row("z")])
    with pytest.raises(DataError, match=r"already there.*overwrite"):
        save_studies(new, saved)
    assert load_studies(saved, "train").num_rows == 2
    save_studies(new, saved, overwrite=True)
    assert load_studies(saved)["train"]["study_id"][:] == ["z"]
    assert [file.name for file in saved.parent.iterdir()] == ["data"]


def test_another_folder_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "holiday"
    target.mkdir()
    (target / "photo.txt").write_text("keep")
    with pytest.raises(DataError, match="not a saved data set"):
        save_studies(studies(train=[row("a")]), target, overwrite=True)
    assert (target / "photo.txt").read_text() == "keep"
    with pytest.raises(DataError, match="is a file"):
        save_studies(studies(train=[row("a")]), target / "photo.txt" / "data")
    (tmp_path / "empty").mkdir()
    save_studies(studies(train=[row("a")]), tmp_path / "empty")
    assert load_studies(tmp_path / "empty", "train").num_rows == 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_ctrl_c_leaves_the_old_data_set_and_nothing_else(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = DatasetDict.save_to_disk

    def half(self: DatasetDict, path: str, *_: Any, **__: Any) -> None:
        real(self, path)
        (Path(path) / "dataset_dict.json").unlink()
        raise error

    monkeypatch.setattr(DatasetDict, "save_to_disk", half)
    expected = DataError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        save_studies(studies(train=[row("z")]), saved, overwrite=True)
    if expected is DataError:
        assert "No space left" in str(caught.value)
    assert [file.name for file in saved.parent.iterdir()] == ["data"]
    assert load_studies(saved, "train")["study_id"][:] == ["a", "b"]


def test_a_failed_rename_puts_the_old_data_set_back(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EACCES, "Permission denied")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(DataError, match="Permission denied"):
        save_studies(studies(train=[row("z")]), saved, overwrite=True)
    assert load_studies(saved, "train")["study_id"][:] == ["a", "b"]
    assert [file.name for file in saved.parent.iterdir()] == ["data"]


def test_missing_and_wrong_columns_are_named() -> None:
    dataset = studies(train=[row("a")])["train"].remove_columns(["views", "source"])
    dataset = dataset.cast_column("findings", Value("binary"))
    with pytest.raises(DataError) as caught:
        check_schema(dataset, "mine")
    message = str(caught.value)
    assert "missing columns: views, source" in message
    assert "findings is binary, should be string" in message and "indication" not in message
    with pytest.raises(DataError, match="missing columns"):
        save_studies(DatasetDict({"train": dataset}), "unused")


def test_extra_columns_stay_and_equal_storage_is_cast() -> None:
    dataset = studies(train=[row("a")])["train"].add_column("extra", [1])
    assert check_schema(dataset, "mine") is dataset
    from datasets import Features, List

    structs = Features({**study_features(), "images": List({"bytes": Value("binary"), "path": Value("string")})})
    plain = studies(train=[row("a")])["train"].cast(structs)
    assert isinstance(plain[0]["images"][0], dict)
    assert check_schema(plain, "mine")[0]["images"][0].size == (8, 8)
    undecoded = studies(train=[row("a")])["train"].cast(study_features(decode_images=False))
    assert check_schema(undecoded, "mine") is undecoded


def test_load_errors_say_what_is_wrong(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_studies(tmp_path / "gone")
    with pytest.raises(DataError, match=r"no split 'dev'\. It has: train, test"):
        load_studies(saved, "dev")
    file = tmp_path / "reports.jsonl"
    file.write_text("{}")
    with pytest.raises(DataError, match="is a file"):
        load_studies(file)
    next(saved.glob("train/*.arrow")).write_bytes(b"damaged")
    with pytest.raises(DataError, match="damaged"):
        load_studies(saved)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="neither a saved data set nor"):
        load_studies(tmp_path / "nothing")
    with pytest.raises(DataError, match="neither a saved data set nor"):
        load_studies("nobody/no-such-studies")


def test_worlds_are_not_mixed() -> None:
    real = studies(train=[row("a")])
    phantom = studies(train=[row("b", source="phantom")])
    assert check_single_world(real, real["train"]) == "real"
    assert check_single_world(phantom) == "phantom"
    with pytest.raises(DataError, match=r"Phantom.*iu_xray"):
        check_single_world(real, phantom["train"])
    mixed = studies(train=[row("a")], test=[row("b", source="phantom")])
    with pytest.raises(DataError, match="Phantom"):
        save_studies(mixed, "unused")
    with pytest.raises(DataError, match="name no source"):
        check_single_world(studies(train=[row("a", source=None)]))


def test_repeated_studies_and_shared_patients_are_named() -> None:
    with pytest.raises(DataError, match="1 study ids are repeated: a"):
        check_splits(studies(train=[row("a"), row("b")], test=[row("a", "other")]))
    with pytest.raises(DataError, match="1 patients are in more than one split: P7"):
        check_splits(studies(train=[row("a", "P7"), row("b", "P7")], test=[row("c", "P7")]))
    check_splits(studies(train=[row("a", "P7"), row("b", "P7")], test=[row("c", "P8")]))
    with pytest.raises(DataError, match="without a study_id"):
        check_splits(studies(train=[row("a", study_id=None)]))


def test_empty_data_sets_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no study"):
        save_studies(DatasetDict({"train": write_rows([], tmp_path / "x.arrow")}), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_write_rows_streams_and_checks(tmp_path: Path) -> None:
    alive: list[int] = []

    def rows() -> Any:
        for index in range(5):
            alive.append(index)
            yield row(str(index))

    dataset = write_rows(rows(), tmp_path / "a.arrow")
    assert dataset.features == study_features() and dataset["study_id"][:] == list("01234") and len(alive) == 5
    assert write_rows([], tmp_path / "b.arrow").features == study_features()
    with pytest.raises(DataError, match="'q' lacks the columns \\['views'\\]"):
        write_rows([{key: value for key, value in row("q").items() if key != "views"}], tmp_path / "c.arrow")
    wrong = [{"finding": "Edema", "image_index": "left", "xywh": "wide"}]
    with pytest.raises(DataError, match="Study 'q' does not fit"):
        write_rows([row("q", boxes=wrong)], tmp_path / "d.arrow")
    with pytest.raises(DataError, match=r"One of the studies '16', '17', 'q' does"):
        write_rows([*map(row, map(str, range(18))), row("q", boxes=wrong)], tmp_path / "e.arrow")


def test_splits_by_patient_share_none_and_ignore_order() -> None:
    rows = [{"patient_id": f"p{index % 700}", "study_id": str(index)} for index in range(2000)]
    splits = split_by_patient(rows, seed=3)
    patients = {name: {item["patient_id"] for item in part} for name, part in splits.items()}
    assert patients["train"].isdisjoint(patients["test"] | patients["validation"])
    assert patients["validation"].isdisjoint(patients["test"])
    assert sum(map(len, splits.values())) == 2000
    for name, share in DEFAULT_FRACTIONS.items():
        assert abs(len(patients[name]) / 700 - share) < 0.05
    shuffled = rows[:]
    random.Random(0).shuffle(shuffled)
    again = split_by_patient(shuffled[:1000], seed=3)
    for name, part in again.items():
        assert {item["patient_id"] for item in part} <= patients[name]
    assert split_by_patient(rows, seed=4)["test"] != splits["test"]


def test_a_split_is_the_same_in_every_process() -> None:
    assert [split_of_patient(f"CXR{number}", seed=0) for number in range(1, 9)] == _reference_splits(8)


def _reference_splits(count: int) -> list[str]:
    import hashlib

    names = []
    for number in range(1, count + 1):
        tenths = int(hashlib.sha256(f"0:CXR{number}".encode()).hexdigest()[:16], 16) * 10 // 2**64
        names.append("train" if tenths < 7 else "validation" if tenths < 8 else "test")
    return names


@pytest.mark.parametrize("fractions", [{}, {"train": 0.5}, {"train": 1.5, "test": -0.5}, {"train": float("nan")}])
def test_fractions_must_be_shares_of_one(fractions: dict[str, float]) -> None:
    with pytest.raises(DataError, match="shares of 1"):
        split_of_patient("p", fractions)
    with pytest.raises(DataError, match="no patient_id"):
        split_by_patient([{"patient_id": None}])


def test_a_share_of_zero_gets_nobody() -> None:
    fractions = {"train": 0.0, "validation": 1.0, "test": 0.0}
    assert {split_of_patient(str(number), fractions) for number in range(200)} == {"validation"}


@pytest.mark.slow
def test_push_to_hub_and_back_over_a_loopback_hub(shared_dir: Path, saved: Path, tmp_path: Path) -> None:
    hub = shared_dir / "tools" / "local_hub.py"
    if not hub.is_file():
        pytest.skip("no loopback hub in the sample data")
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, str(hub), str(port), str(tmp_path / "hub")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LFSMODE": "1"},
    )
    script = (
        "import sys\n"
        "from rrg_hf.data.store import load_studies\n"
        "load_studies(sys.argv[1]).push_to_hub('me/studies')\n"
        "back = load_studies('me/studies')\n"
        "assert {k: v['study_id'][:] for k, v in back.items()} == {'train': ['a', 'b'], 'test': ['c']}\n"
        "assert back['test'][0]['images'][0].size == (8, 8)\n"
        "first = next(iter(load_studies('me/studies', 'train', streaming=True)))\n"
        "assert first['study_id'] == 'a' and first['masks'][0]['name'] == 'left lung'\n"
    )
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "loopback",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        result = subprocess.run(
            [sys.executable, "-c", script, str(saved)],
            env={**os.environ, **settings},
            cwd=Path(store.__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-2000:]
    finally:
        server.kill()
        server.wait()
