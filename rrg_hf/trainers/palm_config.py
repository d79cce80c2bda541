"""`PalmTrainingArguments`: what one stage of PALM training needs beyond `ReportTrainingArguments`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from ..errors import ConfigError
from .report_config import REPORT_METRICS, ReportTrainingArguments

# In the order in which they run; each starts from the checkpoint of the one before.
STAGES: tuple[str, ...] = ("mem", "align", "generate")

# Paper, "Implementation Details": 1e-5 for encoder fine-tuning (mem) and alignment, 5e-5 for report generation.
STAGE_LEARNING_RATES: dict[str, float] = {"mem": 1e-5, "align": 1e-5, "generate": 5e-5}

# What each stage logs at an evaluation and a best checkpoint can be chosen by, without the prefix `eval_`.
STAGE_METRICS: dict[str, tuple[str, ...]] = {
    "mem": ("loss", "mem_loss"),
    "align": ("loss", "multi_loss", "uni_loss", "contrastive_loss"),
    "generate": ("loss", "gen_loss", *REPORT_METRICS),
}


@dataclass
class PalmTrainingArguments(ReportTrainingArguments):
    """Arguments of one stage of PALM training.

    Only the parameters added to, or given another default than in, `ReportTrainingArguments` are listed. The paper
    states the learning rates and the batch size; `section`, beams and lengths are this project's choice.

    > Parameters that control the stage

    Args:
        stage (`str`, *optional*, defaults to `"mem"`):
            Stage to train: "mem" (masked evidence modelling), "align" (pathology-aware alignment) or "generate".
        skip_stages (`list[str]`, *optional*, defaults to `[]`):
            Stages that may be missing or out of order (ablations). Without them the order is mem, align, generate.

        > Parameters that control the data

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

        > Parameters that control the training

        learning_rate (`float`, *optional*):
            Peak learning rate. None is the paper's: 1e-5 for mem and align, 5e-5 for generate.
        vision_learning_rate (`float`, *optional*):
            Peak learning rate of the vision tower. None is `learning_rate`; 0 freezes the tower (align and generate).
            Not stated in the paper.
        per_device_train_batch_size (`int`, *optional*, defaults to `8`):
            Batch size per device (the paper's 8). The balance constraint of align holds over all devices' batches.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generates and self.ddp_find_unused_parameters is None:
            # the text encoder has no part in a batch without an indication
            self.ddp_find_unused_parameters = self.use_indication

    @property
    def run_name_in_messages(self) -> str:
        return f"stage {self.stage}"

    @property
    def generates(self) -> bool:
        return self.stage == "generate"

    @property
    def logged_metrics(self) -> tuple[str, ...]:
        return STAGE_METRICS[self.stage]

    @property
    def foreign_metrics(self) -> tuple[str, ...]:
        return tuple({name for names in STAGE_METRICS.values() for name in names} - set(self.logged_metrics))

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
        super()._check_own_settings()
        if self.max_report_length is not None and self.max_report_length < 3:
            raise ConfigError(
                f"max_report_length is {self.max_report_length}; a report needs at least 3 tokens (start, one, end)."
            )
        if self.vision_learning_rate == 0 and self.stage == "mem":
            raise ConfigError(
                "vision_learning_rate 0 would freeze the vision tower, which is all that stage 'mem' is for. Leave "
                "the stage out (skip_stages), or raise the rate."
            )
        if self.learning_rate is None:
            self.learning_rate = STAGE_LEARNING_RATES[self.stage]
