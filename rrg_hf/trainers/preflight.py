"""Settings tried out before a model or any data is loaded: trackers, optimizer, schedule, the folder to write to."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .palm_loading import one_line

if TYPE_CHECKING:
    from transformers import TrainingArguments


def check_trackers(trackers: Collection[str]) -> None:
    """Refuse trackers that do not exist or are not installed, before any compute.

    Raises:
        ConfigError: the first one that cannot work.
    """
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    for name in trackers:
        if name in ("none", "all"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            near = difflib.get_close_matches(str(name), list(INTEGRATION_TO_CALLBACK), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " Use none, trackio, wandb or tensorboard."
            raise ConfigError(f"report_to names {name!r}, which is no tracker that transformers knows.{hint}")
        if name not in get_available_reporting_integrations():
            raise ConfigError(f"report_to names {name!r}, which is not installed. Run: pip install {name}")


def check_optimization(args: TrainingArguments) -> None:
    """Build the optimizer and the learning rate schedule of a run, on one number.

    Raises:
        ConfigError: a package is missing, or settings that they refuse.
    """
    import torch
    from accelerate.utils import DynamoBackend
    from transformers import Trainer, get_scheduler

    try:
        toy: Any = torch.nn.Linear(1, 1)
        optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(args, toy)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"optim {_value(args.optim)} cannot be used: {one_line(error)}") from error
    if settings.keys() & {"params", "optimizer_dict", "model"}:  # optimizers that look for layers by name
        return
    try:
        optimizer = optimizer_class([torch.zeros(1, requires_grad=True)], **settings)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise ConfigError(f"optim {_value(args.optim)} refuses its settings: {one_line(error)}") from error
    try:
        get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=1,
            num_training_steps=10,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,  # type: ignore[arg-type]
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"lr_scheduler_type {_value(args.lr_scheduler_type)} with lr_scheduler_kwargs "
            f"{args.lr_scheduler_kwargs!r} cannot be used: {one_line(error)}"
        ) from error
    backend = args.torch_compile_backend
    if backend and backend.upper() not in DynamoBackend.__members__:
        names = [name.lower() for name in DynamoBackend.__members__]
        near = difflib.get_close_matches(backend.lower(), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"torch_compile_backend is {backend!r}; there are {', '.join(names)}.{hint}")


def _value(setting: object) -> str:
    return repr(getattr(setting, "value", setting))


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
        with tempfile.TemporaryDirectory(dir=existing, prefix="tmp-"):
            pass
    except OSError as error:
        raise ConfigError(
            f"output_dir is {path}, but {existing} cannot be written to ({error.strerror}). Choose another folder."
        ) from error
