"""Checkpoint folders: nothing half-written is visible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rrg_hf.errors import CheckpointError
from rrg_hf.trainers.checkpoints import (
    METADATA_NAME,
    explained,
    is_finished,
    publish_files,
    publish_folder,
    read_metadata,
    write_json,
)


def test_metadata(tmp_path: Path) -> None:
    assert read_metadata(tmp_path) is None and not is_finished(tmp_path, "mem")
    write_json(tmp_path / METADATA_NAME, {"stage": "mem", "finished": True})
    assert is_finished(tmp_path, "mem") and not is_finished(tmp_path, "align")
    (tmp_path / METADATA_NAME).write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_metadata(tmp_path)


def test_a_failed_write_is_explained(tmp_path: Path) -> None:
    for error in (OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing file")):
        with (
            pytest.raises(CheckpointError, match=r"checkpoint-3 could not be written.*checkpoint-2 is still there"),
            explained(tmp_path / "checkpoint-3", "checkpoint-2 is still there."),
        ):
            raise error


def test_publishing_replaces_a_folder_whole(tmp_path: Path) -> None:
    staging, target = tmp_path / "tmp-checkpoint-1", tmp_path / "checkpoint-1"
    for folder, name in ((staging, "new"), (target, "old")):
        folder.mkdir()
        (folder / name).write_text(name)
    publish_folder(staging, target)
    assert [path.name for path in target.iterdir()] == ["new"] and not staging.exists()


def test_publishing_files_keeps_what_else_is_there(tmp_path: Path) -> None:
    staging = tmp_path / "out" / "tmp-model"
    (staging / "tokenizer").mkdir(parents=True)
    (staging / "tokenizer" / "vocab.txt").write_text("new")
    (staging / METADATA_NAME).write_text(json.dumps({}))
    (tmp_path / "out" / "checkpoint-1").mkdir()
    publish_files(staging, tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {"checkpoint-1", "tokenizer", "tokenizer/vocab.txt", METADATA_NAME}
