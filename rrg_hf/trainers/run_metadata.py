"""What `rrg_training.json` records of a run: enough to repeat it, and never text, images, paths or tokens."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

from torch import nn

from .report_config import ReportTrainingArguments

if TYPE_CHECKING:
    from .report_trainer import ReportTrainer

_PACKAGES = ("rrg_hf", "torch", "transformers", "accelerate", "datasets", "tokenizers", "POT", "numpy")
# Hyper-parameters are recorded by value; anything that may name a person, a machine or a secret is not.
_PRIVATE = ("dir", "token", "path", "hub_", "run_name", "project", "trackio_", "deepspeed", "local_rank", "config",
            "resume_from")  # fmt: skip
# These do not change what is learnt.
_INCIDENTAL = ("disable_tqdm", "report_to", "log_", "logging_", "debug", "do_", "use_cpu", "dataloader_", "save_")


def run_metadata(trainer: ReportTrainer) -> dict[str, Any]:
    """The content of `rrg_training.json` for the trainer's present state."""
    state, model = trainer.state, trainer.report_model
    metadata: dict[str, Any] = {
        "method": trainer.method,
        "stage": trainer.run_stage,
        "finished": trainer._finished,
        "global_step": state.global_step,
        "epoch": state.epoch,
        "best_metric": state.best_metric,
        "metric_for_best_model": trainer.args.metric_for_best_model,
        "best_global_step": state.best_global_step,
        "last_evaluation": _last_evaluation(state.log_history),
        "datasets": {name: dataclasses.asdict(summary) for name, summary in trainer.summaries.items()},
        "phantom": any("phantom" in summary.sources for summary in trainer.summaries.values()),
        "seed": trainer.args.seed,
        "world_size": trainer.args.world_size,
        "hyperparameters": hyperparameters(trainer.args),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "trained_parameters": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        "versions": versions(),
    }
    return metadata | trainer._more_metadata()


def hyperparameters(args: ReportTrainingArguments) -> dict[str, Any]:
    """Settings that differ from their default, and always the ones every paper reports."""
    always = {
        "stage",
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "optim",
        "section",
    }
    chosen: dict[str, Any] = {}
    for item in dataclasses.fields(args):
        if not item.init or any(part in item.name for part in _PRIVATE) or item.name.startswith(_INCIDENTAL):
            continue
        value = getattr(args, item.name)
        value = getattr(value, "value", value)
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        default = getattr(default, "value", default)
        changed = value != default and not (value is False and default is None)
        if item.name in always or (changed and isinstance(value, (bool, int, float, str, list, type(None)))):
            chosen[item.name] = value
    return chosen


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _last_evaluation(history: list[dict[str, Any]]) -> dict[str, float] | None:
    lines = [line for line in history if any(name.startswith("eval_") for name in line)]
    return lines[-1] if lines else None


def tensors_fingerprint(module: nn.Module) -> str:
    """SHA-256 over a module's weights, to tell whether two runs have the same teacher."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()
