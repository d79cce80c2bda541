"""Checkpoint folders: opening one as a PALM model, and writing one so that a half-written folder is never seen."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from ..errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from ..modeling.palm import PalmForReportGeneration

logger = logging.getLogger(__name__)

# What a folder was trained from and with: stage, data fingerprints, seed, versions. Never patient text, never a path.
METADATA_NAME = "rrg_training.json"
# Weights that only a resumed run needs (the MEM predictor, the alignment queue), beside the PALM model's own.
STAGE_STATE_NAME = "stage_state.safetensors"
# Prefix of a folder that is being written. `transformers` looks for `checkpoint-<step>` only, so it never sees one.
STAGING_PREFIX = "tmp-"


def load_palm(path: str | os.PathLike[str], **kwargs: Any) -> PalmForReportGeneration:
    """Load a PALM checkpoint folder or Hub id, refusing other architectures before any weight is read.

    Args:
        path: folder written by `save_pretrained`, or a Hub id.
        **kwargs: passed to `PalmForReportGeneration.from_pretrained` (configuration values may be overridden).

    Raises:
        CheckpointError: no folder or no config there, a checkpoint of another architecture, or damaged weights.
    """
    from transformers import PreTrainedConfig

    from ..modeling.palm import PalmConfig, PalmForReportGeneration

    name = os.fspath(path)
    try:
        config, _ = PreTrainedConfig.get_config_dict(name)
    except (OSError, ValueError, AttributeError, TypeError) as error:  # a config.json may hold any JSON
        raise CheckpointError(
            f"No model could be found at {name!r}. Give a folder with config.json and model.safetensors, or a Hub id."
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"config.json of {name} holds a {type(config).__name__}, not a configuration.")
    model_type = config.get("model_type")
    if model_type != "palm":
        kind = repr(model_type) if model_type else "an architecture that its config.json does not name"
        raise CheckpointError(
            f"{name} is a checkpoint of {kind}, not of PALM. A vision, text or decoder checkpoint enters through "
            "PalmForReportGeneration.from_backbones (`model: backbones:` in a YAML file)."
        )
    overrides = {key: kwargs.pop(key) for key in list(kwargs) if key in {item.name for item in fields(PalmConfig)}}
    loaded: Any
    try:
        if overrides:  # built anew, since from_pretrained would set them without looking at them
            kwargs["config"] = PalmConfig.from_dict({**config, **overrides})
            kwargs["config"]._name_or_path = name
        loaded = PalmForReportGeneration.from_pretrained(name, output_loading_info=True, **kwargs)
    # A setting of the wrong type or size can fail anywhere in the configuration.
    except (
        OSError, RuntimeError, SafetensorError, ValueError, TypeError, AttributeError, KeyError, StrictDataclassError
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"The PALM checkpoint {name} cannot be loaded: {reason}") from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise CheckpointError(
            f"The weights of {name} are incomplete: {len(missing)} are missing, first {missing[:3]}. Copy or save the "
            "checkpoint again."
        )
    return model


def read_metadata(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The training metadata of a checkpoint folder, or None where there is none.

    Raises:
        CheckpointError: the file is not valid JSON.
    """
    path = Path(folder) / METADATA_NAME
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}). Delete it to go on without it.") from error


def is_finished(folder: str | os.PathLike[str], stage: str) -> bool:
    """Whether the folder holds the final model of this stage, as opposed to nothing or checkpoints on the way."""
    metadata = read_metadata(folder)
    return bool(metadata and metadata.get("stage") == stage and metadata.get("finished"))


def check_output_dir(folder: str | os.PathLike[str]) -> None:
    """Make sure that a run can write its results, before it computes any.

    Raises:
        ConfigError: the folder, or one above it, is a file or cannot be written to.
    """
    path = Path(folder)
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise ConfigError(f"output_dir is {path}, but {existing} is a file. Choose another folder.")
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=STAGING_PREFIX):
            pass
    except OSError as error:
        raise ConfigError(
            f"output_dir is {path}, but {existing} cannot be written to ({error.strerror}). Choose another folder."
        ) from error


@contextmanager
def explained(target: Path, kept: str) -> Iterator[None]:
    """Turn whatever a failed write raises into one `CheckpointError` that says what is left on disk.

    Args:
        target: the folder that was to be written.
        kept: what the user still has, for the message.
    """
    try:
        yield
    except CheckpointError:
        raise
    # torch.save and safetensors wrap "No space left on device" in errors of their own.
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{target.name} could not be written to {target.parent} ({reason}). Nothing half-written is left there; "
            f"{kept} Free some space (or lower save_total_limit), then resume."
        ) from error


def publish_folder(staging: Path, target: Path) -> None:
    """Give a completely written folder its name, replacing an older one of that name."""
    if target.exists():
        shutil.rmtree(target)
    staging.replace(target)


def publish_files(staging: Path, target: Path, *, last: str = METADATA_NAME) -> None:
    """Move completely written files into an existing folder, the file that marks it finished last."""
    target.mkdir(parents=True, exist_ok=True)
    files = sorted((path for path in staging.rglob("*") if path.is_file()), key=lambda path: path.name == last)
    for path in files:
        destination = target / path.relative_to(staging)
        destination.parent.mkdir(parents=True, exist_ok=True)
        path.replace(destination)
    shutil.rmtree(staging, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that readers see the old file or the new one, never a part."""
    temporary = path.with_name(f"{STAGING_PREFIX}{path.name}")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)
