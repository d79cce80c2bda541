"""What all recipe files share: blocks, overrides, data; the methods' recipes test their own keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.trainers import LeadTrainingArguments
from rrg_hf.trainers.recipe_file import apply_override, check_arguments, check_data, load_data, read_blocks

NAMES = ("model", "data", "training")


def write(folder: Path, text: str) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(text)
    return file


def test_absent_blocks_are_empty(tmp_path: Path) -> None:
    blocks = read_blocks(write(tmp_path, "model: {path: x}\ntraining:\n"), NAMES)
    assert blocks == {"model": {"path": "x"}, "data": {}, "training": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "is not valid YAML"),
        ("- a\n- b", "must hold the blocks model, data, training; it holds list"),
        ("modle: {}", r"has no setting 'modle' \(did you mean 'model'\?\)"),
        ("model: 3", "`model` must be a block of settings, not 3"),
    ],
)
def test_files_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_blocks(write(tmp_path, text), NAMES)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No recipe file at"):
        read_blocks(tmp_path / "absent.yaml", NAMES)


def test_overrides_go_where_they_belong() -> None:
    blocks: dict[str, dict[str, Any]] = {"model": {}, "data": {"split": "train"}, "training": {}}
    for text in ("seed=7", "--split=test", "model.lead.fusion=add", "training.learning-rate=1e-4", "model.path=null"):
        apply_override(blocks, blocks["training"], text.removeprefix("--"))
    assert blocks == {
        "model": {"lead": {"fusion": "add"}, "path": None},
        "data": {"split": "test"},
        "training": {"seed": 7, "learning_rate": "1e-4"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "Write key=value"),
        ("=3", "Write key=value"),
        ("data=x", "`data` is a block"),
        ("seed=[", "is not a valid value"),
        ("data.split.name=x", "`split` is not a block"),
        ("modle.path=x", "did you mean 'model'"),
    ],
)
def test_overrides_that_mean_nothing(text: str, message: str) -> None:
    blocks: dict[str, dict[str, Any]] = {"model": {}, "data": {"split": "train"}, "training": {}}
    with pytest.raises(ConfigError, match=message):
        apply_override(blocks, blocks["training"], text)


def test_arguments_are_converted_and_those_without_effect_refused() -> None:
    names = [item.name for item in LeadTrainingArguments.settings()]
    block: dict[str, Any] = {"learning_rate": "1e-4", "lora_r": 8.0}
    check_arguments(LeadTrainingArguments, block, names, "training")
    assert block == {"learning_rate": 1e-4, "lora_r": 8}
    with pytest.raises(ConfigError, match="resume_from_checkpoint has no effect in a recipe"):
        check_arguments(LeadTrainingArguments, {"resume_from_checkpoint": "x"}, names, "training")


def test_data(studies_dir: Path) -> None:
    with pytest.raises(ConfigError, match="train_dataset is missing"):
        check_data({"split": "train"})
    with pytest.raises(ConfigError, match=r"data\.streaming must be true or false"):
        check_data({"train_dataset": "x", "streaming": "perhaps"})
    train, validation = load_data({"train_dataset": str(studies_dir)})
    assert (len(train), len(validation)) == (12, 5)
    train, validation = load_data({"train_dataset": str(studies_dir), "split": "validation", "eval_split": None})
    assert len(train) == 5 and validation is None
    stream, _ = load_data({"train_dataset": str(studies_dir), "streaming": True})
    assert not hasattr(stream, "__len__")
