"""`LeadTrainingArguments`: what training LEAD needs beyond `ReportTrainingArguments`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..errors import ConfigError
from ..metrics.study_labels import LABEL_SOURCES, check_label_source
from ..observations import UNCERTAINTY_POLICIES
from .report_config import REPORT_METRICS, ReportTrainingArguments

# Paper, Fig. 3; "full" is this project's, for small models from scratch.
TRAINING_MODES: tuple[str, ...] = ("frozen", "vision", "llm", "hybrid", "full")
# Modes that adapt the language model by LoRA.
LORA_MODES: tuple[str, ...] = ("llm", "hybrid")
# Modes that train the visual tower and the connector.
VISION_MODES: tuple[str, ...] = ("vision", "hybrid", "full")


@dataclass
class LeadTrainingArguments(ReportTrainingArguments):
    """Arguments of LEAD training.

    Only the parameters added to, or given another default than in, `ReportTrainingArguments` are listed. Defaults are
    the paper's (Sec. III-C) where it states them.

    > Parameters that control what trains

    Args:
        training_mode (`str`, *optional*, defaults to `"hybrid"`):
            What trains besides LEAD's own parts (paper, Fig. 3): "frozen" nothing, "vision" the visual tower and the
            connector, "llm" LoRA on the language model, "hybrid" both. "full" trains every parameter, for small
            models from scratch; it is not in the paper.
        lora_r (`int`, *optional*, defaults to `64`):
            Rank of LoRA (paper).
        lora_alpha (`int`, *optional*, defaults to `128`):
            Scale of LoRA (paper).
        lora_dropout (`float`, *optional*, defaults to `0.0`):
            Dropout of LoRA. Not stated in the paper.
        lora_target_modules (`str`, *optional*):
            Regular expression of module names that get LoRA. None is every attention linear of the language model
            (paper). A pattern that matches nothing, or anything outside the language model, is refused.
        merge_adapter (`bool`, *optional*, defaults to `True`):
            Whether `save_model` writes the merged model, with the adapter in its folder `adapter`. False writes the
            adapter alone.

        > Parameters that control the data

        label_source (`str`, *optional*, defaults to `"rules"`):
            Where the experts' labels come from: "rules" or "chexbert" read the section; "study" takes the data set's
            own `labels`. The paper takes CheXbert's.
        uncertainty_policy (`str`, *optional*, defaults to `"uncertain_ignored"`):
            How an uncertain label becomes a target; a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`. Not stated
            in the paper.
        label_model (`str`, *optional*):
            Folder or Hub id of the CheXbert network. None is the prepared one.
        label_cache_dir (`str`, *optional*):
            Folder that keeps the labels read, by the hash of the report. None keeps none.
        max_length (`int`, *optional*):
            Most tokens of prompt and report together; longer reports are cut and counted. None cuts nothing.

        > Parameters that control generation during evaluation

        generation_num_beams (`int`, *optional*, defaults to `2`):
            Beams for these reports, and for those of the saved model (paper).
        generation_repetition_penalty (`float`, *optional*, defaults to `1.05`):
            Repetition penalty for these reports, and for those of the saved model (paper).
        generation_length_penalty (`float`, *optional*, defaults to `1.0`):
            Length penalty for these reports, and for those of the saved model (paper).

        > Parameters that control the training

        learning_rate (`float`, *optional*, defaults to `1e-4`):
            Peak learning rate (paper).
        weight_decay (`float`, *optional*, defaults to `0.01`):
            Weight decay (paper).
        lr_scheduler_type (`str`, *optional*, defaults to `"cosine"`):
            Learning rate schedule (paper).
        warmup_steps (`float`, *optional*, defaults to `0.03`):
            Share of all steps, or number of steps, of the linear warm-up (paper: 3 %).
        num_train_epochs (`float`, *optional*, defaults to `6.0`):
            Epochs (paper).
        per_device_train_batch_size (`int`, *optional*, defaults to `5`):
            Batch size per device (paper).
        gradient_accumulation_steps (`int`, *optional*, defaults to `6`):
            Batches per optimizer step (paper).
    """

    training_mode: str = field(
        default="hybrid",
        metadata={
            "help": 'What trains besides LEAD\'s own parts (paper, Fig. 3): "frozen" nothing, "vision" the visual '
            'tower and the connector, "llm" LoRA on the language model, "hybrid" both. "full" trains every '
            "parameter, for small models from scratch; it is not in the paper.",
            "choices": TRAINING_MODES,
        },
    )
    lora_r: int = field(default=64, metadata={"help": "Rank of LoRA (paper)."})
    lora_alpha: int = field(default=128, metadata={"help": "Scale of LoRA (paper)."})
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout of LoRA. Not stated in the paper."})
    lora_target_modules: str | None = field(
        default=None,
        metadata={
            "help": "Regular expression of module names that get LoRA. None is every attention linear of the language "
            "model (paper). A pattern that matches nothing, or anything outside the language model, is refused."
        },
    )
    merge_adapter: bool = field(
        default=True,
        metadata={
            "help": "Whether `save_model` writes the merged model, with the adapter in its folder `adapter`. False "
            "writes the adapter alone."
        },
    )
    label_source: str = field(
        default="rules",
        metadata={
            "help": 'Where the experts\' labels come from: "rules" or "chexbert" read the section; "study" takes the '
            "data set's own `labels`. The paper takes CheXbert's.",
            "choices": LABEL_SOURCES,
        },
    )
    uncertainty_policy: str = field(
        default="uncertain_ignored",
        metadata={
            "help": "How an uncertain label becomes a target; a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`. "
            "Not stated in the paper.",
            "choices": tuple(UNCERTAINTY_POLICIES),
        },
    )
    label_model: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub id of the CheXbert network. None is the prepared one."},
    )
    label_cache_dir: str | None = field(
        default=None,
        metadata={"help": "Folder that keeps the labels read, by the hash of the report. None keeps none."},
    )
    max_length: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of prompt and report together; longer reports are cut and counted. None cuts nothing."
        },
    )
    generation_num_beams: int = field(
        default=2, metadata={"help": "Beams for these reports, and for those of the saved model (paper)."}
    )
    generation_repetition_penalty: float = field(
        default=1.05,
        metadata={"help": "Repetition penalty for these reports, and for those of the saved model (paper)."},
    )
    generation_length_penalty: float = field(
        default=1.0, metadata={"help": "Length penalty for these reports, and for those of the saved model (paper)."}
    )
    learning_rate: float = field(default=1e-4, metadata={"help": "Peak learning rate (paper)."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay (paper)."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Learning rate schedule (paper)."})
    warmup_steps: float = field(
        default=0.03,
        metadata={"help": "Share of all steps, or number of steps, of the linear warm-up (paper: 3 %)."},
    )
    num_train_epochs: float = field(default=6.0, metadata={"help": "Epochs (paper)."})
    per_device_train_batch_size: int = field(default=5, metadata={"help": "Batch size per device (paper)."})
    gradient_accumulation_steps: int = field(default=6, metadata={"help": "Batches per optimizer step (paper)."})

    @property
    def run_name_in_messages(self) -> str:
        return "LEAD training"

    @property
    def uses_lora(self) -> bool:
        return self.training_mode in LORA_MODES

    @property
    def logged_metrics(self) -> tuple[str, ...]:
        return ("loss", "language_loss", "expert_loss", *REPORT_METRICS)

    def _check_own_settings(self) -> None:
        super()._check_own_settings()
        for name in ("lora_r", "lora_alpha"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.lora_dropout < 1:
            raise ConfigError(f"lora_dropout is {self.lora_dropout}; it must lie between 0 and 1, without 1.")
        if not self.uses_lora and self.lora_target_modules is not None:
            raise ConfigError(
                f"lora_target_modules is set, but training_mode {self.training_mode!r} has no LoRA. Use 'llm' or "
                "'hybrid', or remove it."
            )
        for name in ("generation_repetition_penalty", "generation_length_penalty"):
            number = getattr(self, name)
            lowest = 0 if name == "generation_repetition_penalty" else -math.inf
            if not math.isfinite(number) or number <= lowest:
                raise ConfigError(f"{name} is {number}; it must be a finite number{' above 0' if not lowest else ''}.")
        if self.max_length is not None and self.max_length < 2:
            raise ConfigError(f"max_length is {self.max_length}; prompt and report need more tokens than that.")
        if self.vision_learning_rate is not None and self.training_mode not in VISION_MODES:
            raise ConfigError(
                f"vision_learning_rate is set, but training_mode {self.training_mode!r} leaves the visual tower as it "
                "is. Use 'vision', 'hybrid' or 'full', or remove it."
            )
        if self.vision_learning_rate == 0:
            raise ConfigError("vision_learning_rate is 0. To leave the visual tower as it is use training_mode 'llm'.")
        check_label_source(self.label_source, policy=self.uncertainty_policy, model=self.label_model)
