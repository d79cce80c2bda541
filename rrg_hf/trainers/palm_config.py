"""`PalmTrainingArguments`: what one stage of PALM training needs beyond `transformers.TrainingArguments`."""

from __future__ import annotations

import difflib
import logging
import math
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..errors import ConfigError
from ..text.cleaning import CLEANERS
from .preflight import check_trackers
from .setting_types import check_keys, convert_setting

logger = logging.getLogger(__name__)

# In the order in which they run; each starts from the checkpoint of the one before.
STAGES: tuple[str, ...] = ("mem", "align", "generate")

# Paper, "Implementation Details": 1e-5 for encoder fine-tuning (mem) and alignment, 5e-5 for report generation.
STAGE_LEARNING_RATES: dict[str, float] = {"mem": 1e-5, "align": 1e-5, "generate": 5e-5}

SECTIONS: tuple[str, ...] = ("findings", "impression")

# Trackers that can show a table of reports.
TABLE_TRACKERS: tuple[str, ...] = ("trackio", "wandb")

# The validation score that picks the best checkpoint of the generate stage (logged with the prefix `eval_`).
CLINICAL_F1 = "rules_micro_f1"

# What each stage logs at an evaluation and a best checkpoint can be chosen by, without the prefix `eval_`.
STAGE_METRICS: dict[str, tuple[str, ...]] = {
    "mem": ("loss", "mem_loss"),
    "align": ("loss", "multi_loss", "uni_loss", "contrastive_loss"),
    "generate": (
        "loss",
        "gen_loss",
        CLINICAL_F1,
        "rules_micro_precision",
        "rules_micro_recall",
        "rules_macro_f1",
        "distinct_reports",
    ),
}

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


@dataclass
class PalmTrainingArguments(TrainingArguments):
    """Arguments of one stage of PALM training.

    Only the parameters added to, or given another default than in, `transformers.TrainingArguments` are listed.

    > Parameters that control the stage

    Args:
        stage (`str`, *optional*, defaults to `"mem"`):
            Stage to train: "mem" (masked evidence modelling), "align" (pathology-aware alignment) or "generate".
        skip_stages (`list[str]`, *optional*, defaults to `[]`):
            Stages that may be missing or out of order (ablations). Without them the order is mem, align, generate.

        > Parameters that control the data

        section (`str`, *optional*, defaults to `"findings"`):
            Report section to learn and to score: "findings" or "impression". Not stated in the paper.
        cleaning (`str`, *optional*, defaults to `"default"`):
            Name of the report cleaning (`rrg_hf.text.cleaning.CLEANERS`), the same for training and for references.
        use_indication (`bool`, *optional*, defaults to `True`):
            Whether the generate stage reads the indication where a study has one (paper, Eq. 14).
        max_report_length (`int`, *optional*):
            Longest report in decoder tokens; longer ones are cut in training only. None is the processor's
            `report_max_length`. Not stated in the paper.
        initialize_prototypes (`bool`, *optional*, defaults to `True`):
            Whether align, on a checkpoint that has not been aligned, starts the prototypes from the encoded pathology
            names (paper, Sec. 3.3). False keeps the checkpoint's.
        cache_pixel_values (`bool`, *optional*, defaults to `False`):
            Whether to run the image processor once and keep its output in memory as float16. For small data sets.

        > Parameters that control generation during evaluation (stage "generate")

        eval_generate_samples (`int`, *optional*):
            Validation studies to write reports for at each evaluation, spread evenly. None is all, 0 is none.
        generation_num_beams (`int`, *optional*, defaults to `1`):
            Beams for these reports. Not stated in the paper.
        generation_max_new_tokens (`int`, *optional*, defaults to `128`):
            Longest generated report in tokens. Not stated in the paper.
        log_reports (`int`, *optional*, defaults to `0`):
            Generated and reference reports to send to the trackers of `report_to` as a table at each evaluation. 0
            sends numbers only: report text of real patients may be under a data use agreement.

        > Parameters that control the training

        early_stopping_patience (`int`, *optional*):
            Stop after this many evaluations without a better `metric_for_best_model`. None never stops early.
        early_stopping_threshold (`float`, *optional*, defaults to `0.0`):
            Least improvement that counts as better.
        learning_rate (`float`, *optional*):
            Peak learning rate. None is the paper's: 1e-5 for mem and align, 5e-5 for generate.
        vision_learning_rate (`float`, *optional*):
            Peak learning rate of the vision tower. None is `learning_rate`; 0 freezes the tower (align and generate).
            Not stated in the paper.
        per_device_train_batch_size (`int`, *optional*, defaults to `8`):
            Batch size per device (the paper's 8). The balance constraint of align holds over all devices' batches.
        eval_strategy (`str`, *optional*):
            When to evaluate. None follows `save_strategy` if there is a validation set, else "no".
        save_strategy (`str`, *optional*, defaults to `"epoch"`):
            When to write a checkpoint.
        save_total_limit (`int`, *optional*, defaults to `2`):
            Checkpoints kept: the newest and, where there is one, the best are always among them.
        load_best_model_at_end (`bool`, *optional*):
            Keep the best checkpoint instead of the last. None is True for generate and with early stopping.
        metric_for_best_model (`str`, *optional*):
            What "best" means. None is "rules_micro_f1" for generate and "loss" for mem and align.
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

    stage: str = field(
        default="mem",
        metadata={
            "help": 'Stage to train: "mem" (masked evidence modelling), "align" (pathology-aware alignment) or '
            '"generate".',
            "choices": STAGES,
        },
    )
    skip_stages: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Stages that may be missing or out of order (ablations). Without them the order is mem, align, "
            "generate."
        },
    )
    section: str = field(
        default="findings",
        metadata={
            "help": 'Report section to learn and to score: "findings" or "impression". Not stated in the paper.',
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
        metadata={"help": "Whether the generate stage reads the indication where a study has one (paper, Eq. 14)."},
    )
    max_report_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest report in decoder tokens; longer ones are cut in training only. None is the processor's "
            "`report_max_length`. Not stated in the paper."
        },
    )
    initialize_prototypes: bool = field(
        default=True,
        metadata={
            "help": "Whether align, on a checkpoint that has not been aligned, starts the prototypes from the encoded "
            "pathology names (paper, Sec. 3.3). False keeps the checkpoint's."
        },
    )
    cache_pixel_values: bool = field(
        default=False,
        metadata={
            "help": "Whether to run the image processor once and keep its output in memory as float16. For small data "
            "sets."
        },
    )
    eval_generate_samples: int | None = field(
        default=None,
        metadata={
            "help": "Validation studies to write reports for at each evaluation, spread evenly. None is all, 0 is "
            "none."
        },
    )
    generation_num_beams: int = field(
        default=1, metadata={"help": "Beams for these reports. Not stated in the paper."}
    )
    generation_max_new_tokens: int = field(
        default=128, metadata={"help": "Longest generated report in tokens. Not stated in the paper."}
    )
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
    learning_rate: float | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Peak learning rate. None is the paper's: 1e-5 for mem and align, 5e-5 for generate."},
    )
    vision_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate of the vision tower. None is `learning_rate`; 0 freezes the tower (align and "
            "generate). Not stated in the paper."
        },
    )
    per_device_train_batch_size: int = field(
        default=8,
        metadata={
            "help": "Batch size per device (the paper's 8). The balance constraint of align holds over all devices' "
            "batches."
        },
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
            "help": "Keep the best checkpoint instead of the last. None is True for generate and with early stopping."
        },
    )
    metric_for_best_model: str | None = field(
        default=None,
        metadata={
            "help": 'What "best" means. None is "rules_micro_f1" for generate and "loss" for mem and align.',
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
        given = {item.name: getattr(self, item.name) for item in _settings()}
        # HfArgumentParser gives None for texts without a default
        given = {name: value for name, value in given.items() if value is not None or name in _LIMITS}
        for name, value in self.converted(given).items():
            setattr(self, name, value)
        self.report_to = self.report_to or "none"
        self._check_own_settings()
        if self.learning_rate is None:
            self.learning_rate = STAGE_LEARNING_RATES[self.stage]
        # Whether the Trainer may turn evaluation off again when it gets no validation set.
        self.evaluates_by_default = self.eval_strategy is None
        if self.eval_strategy is None:
            self.eval_strategy = (
                "steps" if str(getattr(self.save_strategy, "value", self.save_strategy)) == "steps" else "epoch"
            )
            if self.eval_strategy == "steps" and self.eval_steps is None:
                self.eval_steps = self.save_steps
        self._resolve_best_checkpoint()
        if self.stage == "generate" and self.ddp_find_unused_parameters is None:
            # the text encoder has no part in a batch without an indication
            self.ddp_find_unused_parameters = self.use_indication
        super().__post_init__()

    def _check_own_settings(self) -> None:
        if self.stage not in STAGES:
            near = difflib.get_close_matches(str(self.stage), STAGES, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"PALM has no stage {self.stage!r}; its stages are {', '.join(STAGES)}.{hint}")
        if isinstance(self.skip_stages, str):
            self.skip_stages = [part.strip() for part in self.skip_stages.split(",") if part.strip()]
        wrong = [name for name in self.skip_stages if name not in STAGES]
        if wrong:
            raise ConfigError(f"skip_stages holds {wrong}; the stages are {', '.join(STAGES)}.")
        if self.stage in self.skip_stages:
            raise ConfigError(
                f"Stage {self.stage!r} is to be trained and named in skip_stages; remove one of the two."
            )
        if self.section not in SECTIONS:
            raise ConfigError(f"section is {self.section!r}; PALM learns one of {', '.join(SECTIONS)}.")
        self._check_limits()
        if self.cleaning not in CLEANERS:
            raise ConfigError(f"cleaning is {self.cleaning!r}; there are {', '.join(CLEANERS)}.")
        if self.vision_learning_rate == 0 and self.stage == "mem":
            raise ConfigError(
                "vision_learning_rate 0 would freeze the vision tower, which is all that stage 'mem' is for. Leave "
                "the stage out (skip_stages), or raise the rate."
            )
        if self.remove_unused_columns:
            raise ConfigError("remove_unused_columns must stay False: the collator reads the columns of Study rows.")
        if self.label_smoothing_factor:
            raise ConfigError(
                "label_smoothing_factor is not supported: the losses of PALM are computed in the model. Set it to 0."
            )
        if self.deepspeed is not None or self.fsdp or self.parallelism_config is not None:
            raise ConfigError(
                "PalmTrainer runs in one process or under DDP (torchrun, accelerate launch); deepspeed, fsdp and "
                "parallelism_config would split the shared encoders of its stages. Remove the setting."
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
            number = getattr(self, name)
            if number is None or (math.isfinite(number) and low <= number <= high):
                continue
            if high < math.inf:
                needed = "lie between 0 and 1, without 1" if high < 1 else f"lie between {low} and {high}"
            elif 0 < low < 1:
                needed = "be a finite number above 0"
            else:
                needed = f"be a finite number of at least {low}"
            raise ConfigError(f"{name} is {number}; it must {needed}.")
        if self.max_report_length is not None and self.max_report_length < 3:
            raise ConfigError(
                f"max_report_length is {self.max_report_length}; a report needs at least 3 tokens (start, one, end)."
            )
        if self.max_steps != -1 and self.max_steps < 1:
            raise ConfigError(f"max_steps is {self.max_steps}; use at least 1, or -1 to go by num_train_epochs.")
        if self.max_steps == -1 and self.num_train_epochs == 0:
            raise ConfigError("num_train_epochs is 0, which trains nothing. Leave the stage out with skip_stages.")
        for item in _settings():
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
        if self.load_best_model_at_end is None:
            wanted = self.stage == "generate" or self.early_stopping_patience is not None
            self.load_best_model_at_end = wanted and "no" not in (save, evaluate)
            if self.load_best_model_at_end and save not in ("best", evaluate):
                raise ConfigError(
                    f"Stage {self.stage} keeps its best checkpoint, so it must save when it evaluates, but "
                    f"save_strategy is {save!r} and eval_strategy is {evaluate!r}. Set them equal, or set "
                    "load_best_model_at_end to false."
                )
        if self.metric_for_best_model is None and (
            self.load_best_model_at_end or self.early_stopping_patience is not None or save == "best"
        ):
            generates = self.stage == "generate" and self.eval_generate_samples != 0
            self.metric_for_best_model = CLINICAL_F1 if generates else "loss"
        if (
            self.metric_for_best_model is not None
            and self.metric_for_best_model.removeprefix("eval_").startswith("rules_")
            and (self.stage != "generate" or self.eval_generate_samples == 0)
        ):
            raise ConfigError(
                f"metric_for_best_model is {self.metric_for_best_model!r}, but "
                + (
                    f"stage {self.stage} writes no reports to score. Use 'loss'."
                    if self.stage != "generate"
                    else "eval_generate_samples is 0, so no report is written. Raise it, or use 'loss'."
                )
            )

        metric = (self.metric_for_best_model or "loss").removeprefix("eval_")
        known = STAGE_METRICS[self.stage]
        elsewhere = {name for names in STAGE_METRICS.values() for name in names} - set(known)
        # a dict of validation sets puts its keys before the names
        if metric in elsewhere or not any(metric == name or metric.endswith(f"_{name}") for name in known):
            near = difflib.get_close_matches(metric, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"metric_for_best_model is {self.metric_for_best_model!r}, which stage {self.stage} does not log; it "
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
        if self.stage == "generate":
            logger.warning("No eval_dataset: the last checkpoint is kept, not the one with the best clinical F1.")

    @classmethod
    def converted(cls, values: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
        """The values brought to the types of their fields (see `convert_setting`).

        Args:
            values: argument name to value.
            where: what the mapping is called in error messages ("training"); empty for plain names.

        Raises:
            ConfigError: an unknown key (the message names the nearest valid one) or a value of the wrong type.
        """
        check_keys(list(values), [item.name for item in _settings()], where or cls.__name__)
        hints = typing.get_type_hints(cls)
        prefix = f"{where}." if where else ""
        return {name: convert_setting(f"{prefix}{name}", value, hints[name]) for name, value in values.items()}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "training") -> PalmTrainingArguments:
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
            raise ConfigError(f"{where}: {' '.join(str(error).split())}") from error


def _settings() -> list[Field]:
    return [item for item in fields(PalmTrainingArguments) if item.init]
