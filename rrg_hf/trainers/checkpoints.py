"""Checkpoint folders: written so that a half-written one is never seen, with the metadata of their training."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import CheckpointError

logger = logging.getLogger(__name__)

# What a folder was trained from and with: stage, data fingerprints, seed, versions. Never patient text, never a path.
METADATA_NAME = "rrg_training.json"
# Weights that only a resumed run needs (the MEM predictor, the alignment queue), beside the PALM model's own.
STAGE_STATE_NAME = "stage_state.safetensors"
# Prefix of a folder that is being written. `transformers` looks for `checkpoint-<step>` only, so it never sees one.
STAGING_PREFIX = "tmp-"


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
