"""Opening a PALM checkpoint: its configuration, its weights and its processor, with what is wrong said first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from ..errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from ..modeling.palm import PalmConfig, PalmForReportGeneration, PalmProcessor

# A setting of the wrong type or size, or a damaged file, can fail anywhere in a configuration or a tokenizer.
UNUSABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, StrictDataclassError)
_SMALLEST_VOCABULARY = 10  # more than special tokens alone
_HUB_KWARGS = ("revision", "cache_dir", "token", "local_files_only", "subfolder")


def read_config_json(path: str | os.PathLike[str], **hub_kwargs: Any) -> dict[str, Any]:
    """What config.json of a checkpoint holds; nothing else is read.

    Args:
        path: folder or Hub id.
        **hub_kwargs: download options such as `revision`.

    Raises:
        CheckpointError: no such folder or repository, one without config.json, no connection, or a file that holds
            something else. The message says which.
    """
    from transformers import PreTrainedConfig

    name = os.fspath(path)
    what_to_do = "Give a folder with config.json and model.safetensors, or a Hub id."
    folder = Path(name)
    if folder.is_dir() and not (folder / (hub_kwargs.get("subfolder") or "") / "config.json").is_file():
        raise CheckpointError(f"No model could be found at {name!r}: the folder has no config.json. {what_to_do}")
    try:
        found, _ = PreTrainedConfig.get_config_dict(name, **hub_kwargs)
    except (OSError, ValueError, AttributeError, TypeError) as error:  # a config.json may hold any JSON
        reason = one_line(error).removesuffix(".")
        raise CheckpointError(f"No model could be found at {name!r} ({reason}). {what_to_do}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json of {name} holds a {type(found).__name__}, not a configuration.")
    return found


def read_palm_config(
    path: str | os.PathLike[str], *, hub_kwargs: Mapping[str, Any] | None = None, **settings: Any
) -> PalmConfig:
    """The configuration of a PALM checkpoint, without its weights.

    Args:
        path: folder written by `save_pretrained`, or a Hub id.
        hub_kwargs: download options such as `revision`.
        **settings: fields of `PalmConfig` to change; a block (`decoder_config`) changes the keys that it names.

    Raises:
        CheckpointError: no folder or no config there, a checkpoint of another architecture, or a damaged config.json.
        ConfigError: a setting that cannot work, or one that weights of other shapes would be needed for.
    """
    from ..modeling.palm import PalmConfig

    name = os.fspath(path)
    found = read_config_json(path, **(hub_kwargs or {}))
    model_type = found.get("model_type")
    if model_type != "palm":
        kind = repr(model_type) if model_type else "an architecture that its config.json does not name"
        raise CheckpointError(
            f"{name} is a checkpoint of {kind}, not of PALM. A vision, text or decoder checkpoint enters through "
            "PalmForReportGeneration.from_backbones (`model: backbones:` in a YAML file)."
        )
    try:
        config = PalmConfig.from_dict(found)
    except UNUSABLE as error:
        raise CheckpointError(f"The PALM checkpoint {name} cannot be loaded: {one_line(error)}") from error
    if not settings:
        return config
    blocks = {key: {**found.get(key, {}), **value} for key, value in settings.items() if isinstance(value, dict)}
    try:
        changed = PalmConfig.from_dict({**found, **settings, **blocks})
        other = sorted(_weight_shapes(changed).items() ^ _weight_shapes(config).items())
    except UNUSABLE as error:
        raise ConfigError(f"These settings cannot work for {name}: {one_line(error)}") from error
    if other:
        raise ConfigError(
            f"{', '.join(sorted(settings))}: a checkpoint keeps its shapes, but these settings need other weights "
            f"than {name} holds (first {other[0][0]}). Remove what changes a size, or build a new model."
        )
    return changed


def load_palm(path: str | os.PathLike[str], **kwargs: Any) -> PalmForReportGeneration:
    """Load a PALM checkpoint folder or Hub id, refusing other architectures before any weight is read.

    Args:
        path: folder written by `save_pretrained`, or a Hub id.
        **kwargs: passed to `PalmForReportGeneration.from_pretrained`; fields of `PalmConfig` are changed first (see
            `read_palm_config`).

    Raises:
        CheckpointError: no folder or no config there, a checkpoint of another architecture, or damaged weights.
        ConfigError: see `read_palm_config`.
    """
    from ..modeling.palm import PalmConfig, PalmForReportGeneration

    name = os.fspath(path)
    known = {item.name for item in fields(PalmConfig)}
    settings = {key: kwargs.pop(key) for key in list(kwargs) if key in known}
    hub_kwargs = {key: kwargs[key] for key in _HUB_KWARGS if key in kwargs}
    config = read_palm_config(name, hub_kwargs=hub_kwargs, **settings)
    config._name_or_path = name
    loaded: Any
    try:
        loaded = PalmForReportGeneration.from_pretrained(name, config=config, output_loading_info=True, **kwargs)
    except (RuntimeError, SafetensorError, *UNUSABLE) as error:
        raise CheckpointError(f"The PALM checkpoint {name} cannot be loaded: {one_line(error)}") from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise CheckpointError(
            f"The weights of {name} are incomplete: {len(missing)} are missing, first {missing[:3]}. Copy or save the "
            "checkpoint again."
        )
    return model


def load_processor(path: str | os.PathLike[str]) -> PalmProcessor:
    """Load the processor of a PALM checkpoint.

    Raises:
        CheckpointError: no processor there, or damaged files.
    """
    from ..modeling.palm import PalmProcessor

    name = os.fspath(path)
    try:
        processor = PalmProcessor.from_pretrained(name)
        sizes = [len(processor.tokenizer), len(processor.text_tokenizer)]
    except UNUSABLE as error:
        raise CheckpointError(
            f"No PalmProcessor could be loaded from {name!r} ({one_line(error)}). Give the folder of a checkpoint, "
            "with all its files."
        ) from error
    if min(sizes) < _SMALLEST_VOCABULARY:  # without its files, transformers makes an empty tokenizer
        raise CheckpointError(f"The tokenizers of {name} are empty. Copy all files of the checkpoint.")
    return processor


def check_vocabularies(config: PalmConfig, processor: PalmProcessor) -> None:
    """Refuse a processor whose tokens are not the model's, before an index fails far inside.

    Raises:
        ConfigError: names the size or the special token that differs.
    """
    decoder, text = config.decoder_config, config.text_config
    for what, tokens, rows in (
        ("decoder", len(processor.tokenizer), decoder.vocab_size),
        ("text encoder", len(processor.text_tokenizer), text.vocab_size),
    ):
        if tokens > rows:
            raise ConfigError(
                f"The processor's tokenizer for the {what} has {tokens} tokens, but the model knows {rows}. Use the "
                "processor that was saved with the model."
            )
    for name in ("bos_token_id", "eos_token_id"):
        theirs, ours = getattr(processor.tokenizer, name), getattr(config, name)
        if ours is not None and theirs not in (ours if isinstance(ours, list) else [ours]):
            raise ConfigError(
                f"{name} is {ours} in the model's configuration and {theirs} in the processor's tokenizer. Use the "
                f"processor that was saved with the model, or set {name} to {theirs}."
            )


def _weight_shapes(config: PalmConfig) -> dict[str, tuple[int, ...]]:
    import torch

    from ..modeling.palm import PalmForReportGeneration

    with torch.device("meta"):
        model = PalmForReportGeneration(config)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def one_line(error: Exception) -> str:
    """What an error says, for a message of ours."""
    return " ".join(str(error).split())[:300] or type(error).__name__
