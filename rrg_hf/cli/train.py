"""`rrg train`: training by a recipe file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import typer

Result = TypeVar("Result")

app = typer.Typer(help="Train a model by a recipe file (YAML).", no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train a model by a recipe file (YAML)."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Several processes: torchrun --nproc_per_node 2 -m rrg_hf.cli train palm CONFIG.yaml",
)
def palm(
    context: typer.Context,
    config: Path = typer.Argument(..., help="Recipe file; see examples/configs/palm.yaml."),
    stage: str | None = typer.Option(
        None, "--stage", help="Train this stage only: mem, align or generate. Default: all, in this order."
    ),
) -> None:
    """Train PALM: masked evidence modelling, pathology-aware alignment, report generation.

    Settings of the recipe can be overridden: `learning_rate=1e-4`, `--num-train-epochs 5`,
    `stages.mem.learning_rate=1e-4`, `data.split=train`, `model.path=out/mem`. Finished stages are skipped and
    interrupted ones resumed, so that the same command completes a run. Ctrl-C writes a checkpoint first.
    """
    from ..trainers.palm_config import STAGES
    from ..trainers.palm_recipe import load_recipe, run_recipe
    from ..trainers.setting_types import check_keys

    say = _start_logging()
    recipe = load_recipe(config, overrides_from(context.args))
    stages = None
    if stage is not None:
        check_keys([stage], STAGES, "PALM's list of stages")
        stages = [stage]

    folders = _interruptible(lambda: run_recipe(recipe, stages, say=say))
    say(f"Model saved to {list(folders.values())[-1]}")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Several processes: torchrun --nproc_per_node 2 -m rrg_hf.cli train lead CONFIG.yaml",
)
def lead(
    context: typer.Context,
    config: Path = typer.Argument(..., help="Recipe file; see examples/configs/lead/."),
) -> None:
    """Train LEAD: pathology experts gated into every decoder layer of Qwen3-VL, InternVL or Ministral 3.

    Settings of the recipe can be overridden: `learning_rate=1e-4`, `--training-mode llm`, `model.lead.fusion=add`,
    `data.split=train`. A finished run is left as it is and an interrupted one resumed, so that the same command
    completes it. Ctrl-C writes a checkpoint first.
    """
    from ..trainers.lead_recipe import load_lead_recipe, run_lead_recipe

    say = _start_logging()
    recipe = load_lead_recipe(config, overrides_from(context.args))
    folder = _interruptible(lambda: run_lead_recipe(recipe, say=say))
    say(f"Model saved to {folder}")


def _is_main_process() -> bool:
    import os

    return int(os.environ.get("RANK", "0")) == 0


def _start_logging() -> Callable[[str], None]:
    """Logs to stderr, of the main process in full; returns what prints a line of progress there."""
    import logging

    main_process = _is_main_process()
    logging.basicConfig(
        level=logging.INFO if main_process else logging.ERROR, format="%(levelname)s %(name)s: %(message)s"
    )
    for name in ("httpx", "datasets", "filelock"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("huggingface_hub").propagate = False  # prints itself; passed on, every line comes twice

    def say(line: str) -> None:
        if main_process:
            typer.echo(line)

    return say


def _interruptible(run: Callable[[], Result]) -> Result:
    """What a training run returns; Ctrl-C ends the command with what the trainer says of its checkpoint."""
    try:
        return run()
    except KeyboardInterrupt as interrupt:
        if _is_main_process():
            typer.echo(str(interrupt) or "Interrupted.", err=True)
            typer.echo("Run the same command again to go on.", err=True)
        raise typer.Exit(130) from None


def overrides_from(arguments: Sequence[str]) -> list[str]:
    """Overrides as "key=value", from `key=value`, `--key value`, `--key=value` and the switch `--key`.

    Raises:
        ConfigError: a word that belongs to nothing.
    """
    from ..errors import ConfigError

    overrides: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            if "=" not in word:
                raise ConfigError(f"{word!r} is not understood. Write an override as key=value or --key value.")
            overrides.append(word)
            continue
        key, separator, value = word[2:].partition("=")
        if not separator:
            next_is_value = words and not words[0].startswith("--") and "=" not in words[0]
            value = words.pop(0) if next_is_value else "true"
        overrides.append(f"{key.replace('-', '_')}={value}")
    return overrides
