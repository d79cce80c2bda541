"""What the recipe files of all methods share: reading YAML, overrides, data blocks, checks of names and types."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .report_config import ReportTrainingArguments
from .setting_types import check_keys, convert_setting

# The keys of the block `data` and the types of their values.
DATA_KEYS: dict[str, Any] = {"train_dataset": str | None, "split": str | None, "eval_dataset": str | None,
                             "eval_split": str | None, "streaming": bool | None}  # fmt: skip

# Training arguments that would do nothing in a recipe, and why.
_WITHOUT_EFFECT = {
    "resume_from_checkpoint": "an interrupted stage goes on by itself from the last checkpoint in its output_dir",
    "do_train": "a recipe always trains",
    "do_eval": "set eval_strategy, or data.eval_split to null",
    "do_predict": "write reports with `rrg generate`",
}


def read_blocks(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The blocks of a recipe file; absent ones are empty.

    Args:
        path: the YAML file.
        names: of the blocks that mean something.

    Raises:
        ConfigError: no such file, no valid YAML, an unknown block or one that is none.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"No recipe file at {file}. Start from one of examples/configs/.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file} is not valid YAML: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold the blocks {', '.join(names)}; it holds {type(content).__name__}.")
    check_keys(list(content), names, file.name)
    parts: dict[str, Any] = {}
    for name in names:
        block = content.get(name)
        if block is not None and not isinstance(block, dict):
            raise ConfigError(f"{file.name}: `{name}` must be a block of settings, not {block!r}.")
        parts[name] = deepcopy(block or {})
    return parts


def apply_override(blocks: Mapping[str, dict[str, Any]], plain: dict[str, Any], text: str) -> None:
    """Put one "key=value" where it belongs.

    Args:
        blocks: the recipe's blocks by name.
        plain: where a key without a block goes, unless it is one of `data`.
        text: "key=value"; the key may name a place ("model.path", "training.seed").

    Raises:
        ConfigError: it cannot be read, or names no place.
    """
    key, separator, raw = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"Override {text!r} is not understood. Write key=value, for instance learning_rate=1e-4.")
    key = key.strip().replace("-", "_")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(f"Override {key}: {raw!r} is not a valid value.") from error
    *where, name = key.split(".")
    if not where and name in blocks:
        raise ConfigError(f"Override {key}: `{name}` is a block. Name a setting in it, such as data.split=train.")
    if not where:
        (blocks["data"] if name in DATA_KEYS else plain)[name] = value
        return
    check_keys(where[:1], list(blocks), "The recipe")
    block: Any = blocks[where[0]]
    for step in where[1:]:
        block = block.setdefault(step, {})
        if not isinstance(block, dict):
            raise ConfigError(f"Override {key}: `{step}` is not a block of settings.")
    block[name] = value


def check_arguments(
    arguments: type[ReportTrainingArguments], block: dict[str, Any], names: Sequence[str], where: str
) -> None:
    """Refuse unknown training arguments, those without effect and values of the wrong type; convert the others in
    place.

    Args:
        arguments: the class that they belong to.
        block: argument name to value.
        names: those that may be set here.
        where: what the block is called in messages; empty for overrides, where keys of `data` are allowed too.
    """
    check_keys(list(block), [*names, *(() if where else DATA_KEYS)], where or "The recipe")
    for name, reason in _WITHOUT_EFFECT.items():
        if block.get(name):
            raise ConfigError(f"{where}{'.' if where else ''}{name} has no effect in a recipe: {reason}. Remove it.")
    block.update(arguments.converted(block, where=where))


def check_block(block: dict[str, Any], kinds: Mapping[str, Any], where: str) -> None:
    """Refuse unknown keys and values of the wrong type; convert the others in place."""
    check_keys(list(block), list(kinds), where)
    block.update({name: convert_setting(f"{where}.{name}", value, kinds[name]) for name, value in block.items()})


def check_data(data: dict[str, Any]) -> None:
    """Check the block `data`.

    Raises:
        ConfigError: no training data, an unknown key or a value of the wrong type.
    """
    check_block(data, DATA_KEYS, "data")
    if not data.get("train_dataset"):
        raise ConfigError("data.train_dataset is missing: name the folder of a saved data set, or a Hub data set id.")


def load_data(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """Training and validation rows of a block `data`; the latter None where `eval_split` is null.

    Raises:
        DataError: no such data set or split.
    """
    from ..data.store import load_studies

    def load(source: str, split: str) -> Any:
        return load_studies(source, split, streaming=True) if data.get("streaming") else load_studies(source, split)

    train = load(data["train_dataset"], data.get("split") or "train")
    eval_split = data.get("eval_split", "validation")
    return train, None if eval_split is None else load(data.get("eval_dataset") or data["train_dataset"], eval_split)
