"""The three stages of PALM: their order, their losses and what each one trains."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigError
from .palm_config import STAGES

if TYPE_CHECKING:
    from ..modeling.palm import PalmConfig, PalmForReportGeneration, PalmProcessor
    from .palm_config import PalmTrainingArguments

logger = logging.getLogger(__name__)


def check_stage_order(stage: str, finished: str | None, skip_stages: Sequence[str] = ()) -> None:
    """Refuse a stage whose turn it is not.

    The stages run in the order mem, align, generate, each from the checkpoint of the one before. A finished stage may
    be trained again on more data.

    Args:
        stage: the stage about to be trained.
        finished: the checkpoint's `config.training_stage`, the last finished stage.
        skip_stages: stages that may be missing, or that may already have run (ablations).

    Raises:
        ConfigError: an earlier stage is missing or a later one has run, and it is not in `skip_stages`.
    """
    reached = STAGES.index(finished) if finished else -1
    wanted = STAGES.index(stage)
    state = f"finished {finished!r}" if finished else "finished no stage"
    missing = [name for name in STAGES[reached + 1 : wanted] if name not in skip_stages]
    if missing:
        raise ConfigError(
            f"Stage {stage!r} cannot start: the checkpoint has {state}, so {_listed(missing)} must come first. "
            f"Train {_listed(missing)} and start from its checkpoint, or name it in skip_stages for an ablation."
        )
    undone = [name for name in STAGES[wanted + 1 : reached + 1] if name not in skip_stages]
    if undone:
        raise ConfigError(
            f"Stage {stage!r} cannot start: the checkpoint has {state}, which comes after it, and training it now "
            f"would undo {_listed(undone)}. Start from an earlier checkpoint, or name {_listed(undone)} in "
            "skip_stages for an ablation."
        )
    if reached == wanted:
        logger.warning("The checkpoint has finished stage %r already; it is trained further.", stage)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))


def loss_names(stage: str, config: PalmConfig) -> tuple[str, ...]:
    """The named losses that a stage logs; each is also an attribute of the stage model's output, but for gen_loss,
    which is the output's loss itself."""
    if stage == "mem":
        return ("mem_loss",)
    if stage == "align":
        return ("contrastive_loss",) if config.alignment == "contrastive" else ("multi_loss", "uni_loss")
    return ("gen_loss",)


def set_trainable(
    palm: PalmForReportGeneration, stage: str, *, use_indication: bool = True, freeze_vision: bool = False
) -> None:
    """Freeze all of a PALM model but what the stage trains.

    - mem: the vision tower (the student of Sec. 3.1); its predictor, which is not part of PALM, trains beside it.
    - align: vision tower, text encoder, both projections and the prototypes (Sec. 3.2 and 3.3). The contrastive
      ablation has no use for prototypes.
    - generate: all that p(T | I, T_Ind) depends on: vision tower, text encoder, both projections, fusion and decoder.
      The prototypes do not enter it and stay as they are. Without indications the text side does not enter either.

    The paper says what each loss depends on and not what is frozen meanwhile; here all that a loss depends on trains.

    Args:
        palm: the model; its `requires_grad` flags are set.
        stage: the stage to be trained.
        use_indication: whether the generate stage reads indications.
        freeze_vision: whether the vision tower stays as it is all the same.
    """
    palm.model.set_trainable(stage)
    if freeze_vision:
        palm.model.vision_model.requires_grad_(False)
    if stage == "generate" and not use_indication:
        palm.model.text_model.requires_grad_(False)
        palm.model.text_projection.requires_grad_(False)


def set_vision_learning_rate(optimizer: Optimizer, palm: PalmForReportGeneration, learning_rate: float) -> None:
    """Give the vision tower's parameters groups of their own, with another peak learning rate.

    Args:
        optimizer: fresh, before a scheduler reads its rates; the other settings of a group stay.
        palm: the model being trained.
        learning_rate: of the tower.
    """
    tower = {id(parameter) for parameter in palm.model.vision_model.parameters()}
    for group in list(optimizer.param_groups):
        inside = [parameter for parameter in group["params"] if id(parameter) in tower]
        if inside:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in tower]
            optimizer.add_param_group({**group, "params": inside, "lr": learning_rate})


def fit_lengths(palm: PalmForReportGeneration, processor: PalmProcessor, args: PalmTrainingArguments) -> None:
    """Keep every text within the position tables of the model, before any compute.

    The processor's own limits are lowered where they exceed the model's (and saved so with it); a limit that the
    caller chose is refused instead.

    Raises:
        ConfigError: `max_report_length` or `generation_max_new_tokens` does not fit the decoder.
    """
    decoder, encoder = palm.config.decoder_config.n_positions, palm.config.text_config.max_position_embeddings
    for name, limit in (
        ("report_max_length", decoder),
        ("text_max_length", encoder),
        ("indication_max_length", encoder),
    ):
        if getattr(processor, name) > limit:
            logger.warning("The processor's %s is lowered to %d, the positions the model has.", name, limit)
            setattr(processor, name, limit)
    if args.stage != "generate":
        return
    check_decoder_lengths(args, decoder)


def check_decoder_lengths(args: PalmTrainingArguments, positions: int) -> None:
    """Refuse report lengths that the decoder has no room for.

    Args:
        args: of the generate stage.
        positions: of the decoder.

    Raises:
        ConfigError: `max_report_length` or `generation_max_new_tokens` does not fit.
    """
    chosen = {"max_report_length": args.max_report_length or 0}
    if args.eval_generate_samples != 0:
        chosen["generation_max_new_tokens"] = args.generation_max_new_tokens + 1  # BOS takes one position
    for name, length in chosen.items():
        if length > positions:
            raise ConfigError(f"{name} needs {length} positions, but the decoder has {positions}. Lower {name}.")


def build_stage_model(palm: PalmForReportGeneration, stage: str) -> nn.Module:
    """The module whose forward gives the stage's loss. It shares its PALM weights with `palm`."""
    from ..modeling.palm import PalmForAlignment, PalmForMaskedEvidenceModeling

    if stage == "mem":
        return PalmForMaskedEvidenceModeling.from_palm(palm)
    if stage == "align":
        return PalmForAlignment.from_palm(palm)
    return palm
