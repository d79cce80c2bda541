"""`ReportTrainingArguments`: what every trainer of this package needs beyond `transformers.TrainingArguments`."""

from __future__ import annotations

import difflib
import logging
import math
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, TypeVar

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..errors import ConfigError
from ..text.cleaning import CLEANERS
from .preflight import check_trackers
from .setting_types import check_keys, convert_setting

logger = logging.getLogger(__name__)

SECTIONS: tuple[str, ...] = ("findings", "impression")

# Trackers that can show a table of reports.
TABLE_TRACKERS: tuple[str, ...] = ("trackio", "wandb")

# The validation score that picks the best checkpoint where reports are written (logged with the prefix `eval_`).
CLINICAL_F1 = "rules_micro_f1"
# What scoring the written reports logs, without the prefix `eval_`.
REPORT_METRICS: tuple[str, ...] = (
    CLINICAL_F1,
    "rules_micro_precision",
    "rules_micro_recall",
    "rules_macro_f1",
    "distinct_reports",
)

# Lowest and highest value that can work, both included.
_LIMITS: dict[str, tuple[float, float]] = {
    "learning_rate": (0, math.inf),
    "vision_learning_rate": (0, math.inf),
    "weight_decay": (0, math.inf),
    "num_train_epochs": (0, math.inf),
    "adam_beta1": (0, 1 - 1e-12),
    "adam_beta2": (0, 1 - 1e-12),
    "adam_epsilon": (0, math.inf),
    "max_grad_norm": (0, math.inf),
    "warmup_steps": (0, math.inf),
    "logging_steps": (0, math.inf),
    "save_steps": (1e-12, math.inf),
    "eval_steps": (1e-12, math.inf),
    "eval_delay": (0, math.inf),
    "early_stopping_threshold": (0, math.inf),
    "early_stopping_patience": (1, math.inf),
    "per_device_train_batch_size": (1, math.inf),
    "per_device_eval_batch_size": (1, math.inf),
    "gradient_accumulation_steps": (1, math.inf),
    "eval_accumulation_steps": (1, math.inf),
    "save_total_limit": (1, math.inf),
    "dataloader_num_workers": (0, math.inf),
    "ddp_timeout": (1, math.inf),
    "seed": (0, 2**32 - 1),
    "data_seed": (0, 2**32 - 1),
    "generation_num_beams": (1, math.inf),
    "generation_max_new_tokens": (1, math.inf),
    "eval_generate_samples": (0, math.inf),
    "log_reports": (0, math.inf),
}


Arguments = TypeVar("Arguments", bound="ReportTrainingArguments")


@dataclass
class ReportTrainingArguments(TrainingArguments):
    """Arguments of a trainer of report generation models.

    Only the parameters added to, or given another default than in, `transformers.TrainingArguments` are listed.

    > Parameters that control the data

    Args:
        section (`str`, *optional*, defaults to `"findings"`):
            Report section to learn and to score: "findings" or "impression".
        cleaning (`str`, *optional*, defaults to `"default"`):
            Name of the report cleaning (`rrg_hf.text.cleaning.CLEANERS`), the same for training and for references.
        use_indication (`bool`, *optional*, defaults to `True`):
            Whether the model reads the indication where a study has one.

        > Parameters that control generation during evaluation

        eval_generate_samples (`int`, *optional*):
            Validation studies to write reports for at each evaluation, spread evenly. None is all, 0 is none.
        generation_num_beams (`int`, *optional*, defaults to `1`):
            Beams for these reports.
        generation_max_new_tokens (`int`, *optional*, defaults to `128`):
            Longest generated report in tokens.
        log_reports (`int`, *optional*, defaults to `0`):
            Generated and reference reports to send to the trackers of `report_to` as a table at each evaluation. 0
            sends numbers only: report text of real patients may be under a data use agreement.

        > Parameters that control the training

        early_stopping_patience (`int`, *optional*):
            Stop after this many evaluations without a better `metric_for_best_model`. None never stops early.
        early_stopping_threshold (`float`, *optional*, defaults to `0.0`):
            Least improvement that counts as better.
        vision_learning_rate (`float`, *optional*):
            Peak learning rate of the vision tower. None is `learning_rate`; 0 freezes the tower.
        eval_strategy (`str`, *optional*):
            When to evaluate. None follows `save_strategy` if there is a validation set, else "no".
        save_strategy (`str`, *optional*, defaults to `"epoch"`):
            When to write a checkpoint.
        save_total_limit (`int`, *optional*, defaults to `2`):
            Checkpoints kept: the newest and, where there is one, the best are always among them.
        load_best_model_at_end (`bool`, *optional*):
            Keep the best checkpoint instead of the last. None is True where reports are written, and with early
            stopping.
        metric_for_best_model (`str`, *optional*):
            What "best" means. None is "rules_micro_f1" where reports are written, else "loss".
        restore_callback_states_from_checkpoint (`bool`, *optional*, defaults to `True`):
            Whether a resumed run keeps counting the early stopping patience where it stopped.
        logging_steps (`float`, *optional*, defaults to `10`):
            Optimizer steps between two lines of the training log.
        hub_private_repo (`bool`, *optional*, defaults to `True`):
            Whether a repository made by `push_to_hub` is private. Models of credentialed data must not be public.
        trackio_static_space_id (`str`, *optional*, defaults to `False`):
            Space that a trackio run is published to at its end. False publishes nothing.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            Must stay False: the collator reads the columns of `Study` rows.
    """

    section: str = field(
        default="findings",
        metadata={
            "help": 'Report section to learn and to score: "findings" or "impression".',
            "choices": SECTIONS,
        },
    )
    cleaning: str = field(
        default="default",
        metadata={
            "help": "Name of the report cleaning (`rrg_hf.text.cleaning.CLEANERS`), the same for training and for "
            "references."
        },
    )
    use_indication: bool = field(
        default=True,
        metadata={"help": "Whether the model reads the indication where a study has one."},
    )
    eval_generate_samples: int | None = field(
        default=None,
        metadata={
            "help": "Validation studies to write reports for at each evaluation, spread evenly. None is all, 0 is "
            "none."
        },
    )
    generation_num_beams: int = field(default=1, metadata={"help": "Beams for these reports."})
    generation_max_new_tokens: int = field(default=128, metadata={"help": "Longest generated report in tokens."})
    log_reports: int = field(
        default=0,
        metadata={
            "help": "Generated and reference reports to send to the trackers of `report_to` as a table at each "
            "evaluation. 0 sends numbers only: report text of real patients may be under a data use agreement."
        },
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after this many evaluations without a better `metric_for_best_model`. None never stops "
            "early."
        },
    )
    early_stopping_threshold: float = field(default=0.0, metadata={"help": "Least improvement that counts as better."})
    vision_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Peak learning rate of the vision tower. None is `learning_rate`; 0 freezes the tower."},
    )
    eval_strategy: str | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": 'When to evaluate. None follows `save_strategy` if there is a validation set, else "no".',
        },
    )
    save_strategy: str = field(default="epoch", metadata={"help": "When to write a checkpoint."})
    save_total_limit: int | None = field(
        default=2,
        metadata={
            "help": "Checkpoints kept: the newest and, where there is one, the best are always among them.",
        },
    )
    load_best_model_at_end: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Keep the best checkpoint instead of the last. None is True where reports are written, and with "
            "early stopping."
        },
    )
    metric_for_best_model: str | None = field(
        default=None,
        metadata={
            "help": 'What "best" means. None is "rules_micro_f1" where reports are written, else "loss".',
        },
    )
    restore_callback_states_from_checkpoint: bool = field(
        default=True,
        metadata={
            "help": "Whether a resumed run keeps counting the early stopping patience where it stopped.",
        },
    )
    logging_steps: float = field(
        default=10, metadata={"help": "Optimizer steps between two lines of the training log."}
    )
    hub_private_repo: bool | None = field(
        default=True,
        metadata={
            "help": "Whether a repository made by `push_to_hub` is private. Models of credentialed data must not be "
            "public."
        },
    )
    # None before Literal: HfArgumentParser looks for it there.
    trackio_static_space_id: str | None | Literal[False] = field(  # noqa: RUF036
        default=False,
        metadata={"help": "Space that a trackio run is published to at its end. False publishes nothing."},
    )
    remove_unused_columns: bool = field(
        default=False,
        metadata={"help": "Must stay False: the collator reads the columns of `Study` rows."},
    )

    def __post_init__(self) -> None:
        given = {item.name: getattr(self, item.name) for item in self.settings()}
        # HfArgumentParser gives None for texts without a default
        given = {name: value for name, value in given.items() if value is not None or name in _LIMITS}
        for name, value in self.converted(given).items():
            setattr(self, name, value)
        self.report_to = self.report_to or "none"
        self._check_own_settings()
        # Whether the Trainer may turn evaluation off again when it gets no validation set.
        self.evaluates_by_default = self.eval_strategy is None
        if self.eval_strategy is None:
            self.eval_strategy = (
                "steps" if str(getattr(self.save_strategy, "value", self.save_strategy)) == "steps" else "epoch"
            )
            if self.eval_strategy == "steps" and self.eval_steps is None:
                self.eval_steps = self.save_steps
        self._resolve_best_checkpoint()
        super().__post_init__()

    # --- what a method says of itself --------------------------------------------------------------------------------

    @property
    def run_name_in_messages(self) -> str:
        """What is trained, as messages call it."""
        return "this run"

    @property
    def generates(self) -> bool:
        """Whether this kind of run learns to write reports, so that an evaluation can score them."""
        return True

    @property
    def writes_reports(self) -> bool:
        """Whether an evaluation writes reports and scores them."""
        return self.generates and self.eval_generate_samples != 0

    @property
    def logged_metrics(self) -> tuple[str, ...]:
        """What an evaluation logs and a best checkpoint can be chosen by, without the prefix `eval_`."""
        return ("loss", *REPORT_METRICS)

    @property
    def foreign_metrics(self) -> tuple[str, ...]:
        """Names that other runs of the same method log and this one does not."""
        return ()

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_own_settings(self) -> None:
        if self.section not in SECTIONS:
            raise ConfigError(f"section is {self.section!r}; choose one of {', '.join(SECTIONS)}.")
        self._check_limits()
        if self.cleaning not in CLEANERS:
            raise ConfigError(f"cleaning is {self.cleaning!r}; there are {', '.join(CLEANERS)}.")
        if self.remove_unused_columns:
            raise ConfigError("remove_unused_columns must stay False: the collator reads the columns of Study rows.")
        if self.label_smoothing_factor:
            raise ConfigError(
                "label_smoothing_factor is not supported: the losses are computed in the model. Set it to 0."
            )
        if self.deepspeed is not None or self.fsdp or self.parallelism_config is not None:
            raise ConfigError(
                "This trainer runs in one process or under DDP (torchrun, accelerate launch); deepspeed, fsdp and "
                "parallelism_config would split what its checkpoints hold. Remove the setting."
            )
        trackers = [self.report_to] if isinstance(self.report_to, str) else list(self.report_to or [])
        check_trackers(trackers)
        if self.log_reports and not {"all", *TABLE_TRACKERS} & set(trackers):
            raise ConfigError(
                f"log_reports sends a table, which needs one of {', '.join(TABLE_TRACKERS)} in report_to; it is "
                f"{self.report_to!r}."
            )

    def _check_limits(self) -> None:
        for name, (low, high) in _LIMITS.items():
            number = getattr(self, name, None)
            if number is None or (math.isfinite(number) and low <= number <= high):
                continue
            if high < math.inf:
                needed = "lie between 0 and 1, without 1" if high < 1 else f"lie between {low} and {high}"
            elif 0 < low < 1:
                needed = "be a finite number above 0"
            else:
                needed = f"be a finite number of at least {low}"
            raise ConfigError(f"{name} is {number}; it must {needed}.")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ConfigError(f"max_steps is {self.max_steps}; use at least 1, or -1 to go by num_train_epochs.")
        if self.max_steps == -1 and self.num_train_epochs == 0:
            raise ConfigError("num_train_epochs is 0, which trains nothing. Give at least 1, or leave the run out.")
        for item in self.settings():
            value, choices = getattr(self, item.name), item.metadata.get("choices")
            if choices and value is not None and value not in choices:
                near = difflib.get_close_matches(str(value), list(choices), n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{item.name} is {value!r}; choose one of {', '.join(choices)}.{hint}")

    def _resolve_best_checkpoint(self) -> None:
        """Fill in load_best_model_at_end and metric_for_best_model where the caller left them open."""
        save = str(getattr(self.save_strategy, "value", self.save_strategy))
        evaluate = str(getattr(self.eval_strategy, "value", self.eval_strategy))
        if self.early_stopping_patience is not None and evaluate == "no":
            raise ConfigError(
                'early_stopping_patience needs evaluations to count: set eval_strategy to "epoch" or "steps".'
            )
        run = self.run_name_in_messages
        if self.load_best_model_at_end is None:
            wanted = self.generates or self.early_stopping_patience is not None
            self.load_best_model_at_end = wanted and "no" not in (save, evaluate)
            if self.load_best_model_at_end and save not in ("best", evaluate):
                raise ConfigError(
                    f"{run[0].upper()}{run[1:]} keeps its best checkpoint, so it must save when it evaluates, but "
                    f"save_strategy is {save!r} and eval_strategy is {evaluate!r}. Set them equal, or set "
                    "load_best_model_at_end to false."
                )
        if self.metric_for_best_model is None and (
            self.load_best_model_at_end or self.early_stopping_patience is not None or save == "best"
        ):
            self.metric_for_best_model = CLINICAL_F1 if self.writes_reports else "loss"
        if (
            self.metric_for_best_model is not None
            and self.metric_for_best_model.removeprefix("eval_").startswith("rules_")
            and not self.writes_reports
        ):
            raise ConfigError(
                f"metric_for_best_model is {self.metric_for_best_model!r}, but "
                + (
                    f"{run} writes no reports to score. Use 'loss'."
                    if not self.generates
                    else "eval_generate_samples is 0, so no report is written. Raise it, or use 'loss'."
                )
            )

        metric = (self.metric_for_best_model or "loss").removeprefix("eval_")
        known = self.logged_metrics
        # a dict of validation sets puts its keys before the names
        if metric in self.foreign_metrics or not any(metric == name or metric.endswith(f"_{name}") for name in known):
            near = difflib.get_close_matches(metric, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"metric_for_best_model is {self.metric_for_best_model!r}, which {run} does not log; it "
                f"logs {', '.join(known)}.{hint}"
            )

    def disable_evaluation(self) -> None:
        """Take back the default of evaluating, for a run without a validation set.

        Raises:
            ConfigError: early stopping was asked for, which watches a validation set.
        """
        if self.early_stopping_patience is not None:
            raise ConfigError("early_stopping_patience needs an eval_dataset to watch; none was given.")
        self.eval_strategy = IntervalStrategy.NO
        self.load_best_model_at_end = False
        self.metric_for_best_model = None
        if self.generates:
            logger.warning("No eval_dataset: the last checkpoint is kept, not the one with the best clinical F1.")

    # --- reading -----------------------------------------------------------------------------------------------------

    @classmethod
    def settings(cls) -> list[Field]:
        """The fields that a caller can set."""
        return [item for item in fields(cls) if item.init]

    @classmethod
    def converted(cls, values: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
        """The values brought to the types of their fields (see `convert_setting`).

        Args:
            values: argument name to value.
            where: what the mapping is called in error messages ("training"); empty for plain names.

        Raises:
            ConfigError: an unknown key (the message names the nearest valid one) or a value of the wrong type.
        """
        check_keys(list(values), [item.name for item in cls.settings()], where or cls.__name__)
        hints = typing.get_type_hints(cls)
        prefix = f"{where}." if where else ""
        return {name: convert_setting(f"{prefix}{name}", value, hints[name]) for name, value in values.items()}

    @classmethod
    def from_mapping(cls: type[Arguments], values: Mapping[str, Any], *, where: str = "training") -> Arguments:
        """Build the arguments from a mapping such as a YAML block.

        Numbers written as text (`1e-5` is text to YAML) are converted.

        Args:
            values: argument name to value.
            where: what the mapping is called in error messages.

        Raises:
            ConfigError: an unknown key (the message names the nearest valid one) or a value that cannot work.
        """
        converted = cls.converted(values, where=where)
        try:
            return cls(**converted)
        # ConfigError is this class's own; the others are what TrainingArguments itself refuses
        except (ConfigError, ValueError, TypeError, ImportError) as error:
            told = " ".join(str(error).split())
            if "use_cpu" in told:  # what TrainingArguments says of 16-bit floats on a machine without a GPU for them
                told += " Set use_cpu to true for a run without a GPU."
            raise ConfigError(f"{where}: {told}") from error
