"""`PalmTrainingArguments`: what one stage of PALM training needs beyond `transformers.TrainingArguments`."""

from __future__ import annotations

import difflib
import logging
import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..errors import ConfigError

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


def check_keys(given: Collection[str], allowed: Collection[str], where: str) -> None:
    """Refuse unknown settings, naming the nearest valid one.

    Args:
        given: the keys found.
        allowed: the keys that mean something there.
        where: what the keys belong to, for the message ("training", "stages.mem").

    Raises:
        ConfigError: a key of `given` is not in `allowed`.
    """
    unknown = [key for key in given if key not in allowed]
    if not unknown:
        return
    hints = []
    for key in unknown:
        near = difflib.get_close_matches(str(key), list(allowed), n=1, cutoff=0.5)
        hints.append(f"{key!r} (did you mean {near[0]!r}?)" if near else repr(key))
    known = f" It knows {sorted(allowed)}." if len(allowed) <= 12 else ""
    raise ConfigError(f"{where} has no setting {', '.join(hints)}.{known} Correct the spelling or remove it.")


def _convert(name: str, value: Any, hint: Any, where: str) -> Any:
    """YAML reads `1e-5` as text, `8.0` as a float and `no` as false: bring values to the type the field declares."""
    if value is False and name.endswith("_strategy"):
        return "no"  # which YAML reads as false
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    if value is None or any(isinstance(value, option) for option in options if isinstance(option, type)):
        # bool is an int to isinstance; a `true` for a number field is a slip
        if isinstance(value, bool) and bool not in options and (int in options or float in options):
            raise ConfigError(f"{where}.{name} wants a number, not {value!r}.")
        return value
    try:
        if float in options and isinstance(value, (int, str)) and not isinstance(value, bool):
            return float(value)
        if int in options and isinstance(value, (float, str)) and float(value).is_integer():
            return int(float(value))
    except ValueError:
        pass
    numeric = [option for option in options if option in (int, float)]
    if options in ((int,), (float,), (bool,)) or (numeric and str not in options):
        wanted = numeric[0] if numeric else options[0]
        raise ConfigError(f"{where}.{name} wants a value of type {wanted.__name__}, not {value!r}.")
    if list[str] in options:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, (list, tuple)):
            return [str(part) for part in value]
        raise ConfigError(f"{where}.{name} wants a list of texts, not {value!r}.")
    if str in options and not isinstance(value, (str, dict, list)):
        raise ConfigError(f"{where}.{name} wants a text, not {value!r}.")
    return value


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
        if self.max_report_length is not None and self.max_report_length < 3:
            raise ConfigError(
                f"max_report_length is {self.max_report_length}; a report needs at least 3 tokens (start, one, end)."
            )
        for name in ("learning_rate", "vision_learning_rate", "weight_decay", "num_train_epochs"):
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise ConfigError(f"{name} is {number}; it must be a finite number and cannot be negative.")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed is {self.seed}; it must lie between 0 and 2**32 - 1.")
        if self.vision_learning_rate == 0 and self.stage == "mem":
            raise ConfigError(
                "vision_learning_rate 0 would freeze the vision tower, which is all that stage 'mem' is for. Leave "
                "the stage out (skip_stages), or raise the rate."
            )
        for name in ("generation_num_beams", "generation_max_new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("eval_generate_samples", "log_reports"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it cannot be negative.")
        if self.early_stopping_patience is not None and self.early_stopping_patience < 1:
            raise ConfigError(
                f"early_stopping_patience is {self.early_stopping_patience}; use at least 1, or leave it out."
            )
        if self.remove_unused_columns:
            raise ConfigError("remove_unused_columns must stay False: the collator reads the columns of Study rows.")
        if self.label_smoothing_factor:
            raise ConfigError(
                "label_smoothing_factor is not supported: the losses of PALM are computed in the model. Set it to 0."
            )
        if self.deepspeed is not None or self.fsdp:
            raise ConfigError(
                "PalmTrainer runs in one process or under DDP (torchrun, accelerate launch); deepspeed and fsdp would "
                "split the shared encoders of its stages. Remove the setting."
            )
        trackers = [self.report_to] if isinstance(self.report_to, str) else list(self.report_to or [])
        check_trackers(trackers)
        if self.log_reports and not {"all", *TABLE_TRACKERS} & set(trackers):
            raise ConfigError(
                f"log_reports sends a table, which needs one of {', '.join(TABLE_TRACKERS)} in report_to; it is "
                f"{self.report_to!r}."
            )

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
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "training") -> PalmTrainingArguments:
        """Build the arguments from a mapping such as a YAML block.

        Numbers written as text (`1e-5` is text to YAML) are converted.

        Args:
            values: argument name to value.
            where: what the mapping is called in error messages.

        Raises:
            ConfigError: an unknown key (the message names the nearest valid one) or a value of the wrong type.
        """
        names = {item.name for item in fields(cls) if item.init}
        check_keys(list(values), names, where)
        hints = typing.get_type_hints(cls)
        converted = {name: _convert(name, value, hints[name], where) for name, value in values.items()}
        try:
            return cls(**converted)
        except ConfigError:
            raise
        except (ValueError, TypeError, ImportError) as error:  # what TrainingArguments itself refuses
            raise ConfigError(f"{where}: {' '.join(str(error).split())}") from error
