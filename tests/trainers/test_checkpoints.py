"""Checkpoint folders: other architectures refused, nothing half-written visible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

from rrg_hf.errors import CheckpointError
from rrg_hf.trainers.checkpoints import (
    METADATA_NAME,
    explained,
    is_finished,
    load_palm,
    publish_files,
    publish_folder,
    read_metadata,
    write_json,
)


def test_palm_loads(palm_dir: Path) -> None:
    assert load_palm(palm_dir).config.model_type == "palm"
    assert load_palm(palm_dir, alignment="contrastive").config.alignment == "contrastive"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoint of 'bert', not of PALM.*from_backbones"):
        load_palm(tmp_path)


def test_missing_and_damaged_checkpoints(tmp_path: Path, palm_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="No model could be found"):
        load_palm(tmp_path / "nowhere")
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((palm_dir / name).read_text())
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_palm(tmp_path)


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


def test_weights_that_lack_tensors_are_refused(tmp_path: Path, palm_dir: Path) -> None:
    """transformers would fill them with random numbers and only warn."""
    from safetensors.torch import load_file, save_file

    for file in palm_dir.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    weights = load_file(palm_dir / "model.safetensors")
    lost = sorted(name for name in weights if ".decoder.h." in name)[:3]
    kept = {name: weight for name, weight in weights.items() if name not in lost}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="3 are missing"):
        load_palm(tmp_path)
