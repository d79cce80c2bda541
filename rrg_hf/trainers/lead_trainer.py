"""`LeadTrainer`: LEAD on a vision language backbone, with or without LoRA, on `transformers.Trainer`."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from torch import nn
from transformers import TrainerCallback, set_seed

from ..data.lead_collator import SAMPLES, DataCollatorForLead
from ..errors import CheckpointError, ConfigError
from ..metrics.study_labels import add_expert_labels, label_reader
from .checkpoints import read_metadata
from .lead_adaptation import add_lora, load_adapter_weights, merged_state, set_trainable, use_float32
from .lead_config import LeadTrainingArguments
from .lead_loading import load_lead, load_lead_processor
from .report_trainer import ReportTrainer

logger = logging.getLogger(__name__)

ADAPTER_FOLDER = "adapter"
_TARGETS = ("expert_labels", "num_known_labels")


class LeadTrainer(ReportTrainer):
    """Trains a LEAD model: language loss on the report, and the experts' cross-entropy on known labels.

    Logs `language_loss` and `expert_loss`, also with the prefix `eval_`. During evaluation it writes reports and
    scores them against the full references by the `rules` labels: `eval_rules_micro_f1` picks the best checkpoint.

    What trains is `args.training_mode`. With LoRA ("llm", "hybrid") a checkpoint on the way is an adapter folder, and
    `save_model` writes the merged model with the adapter beside it (`adapter/`), so that `from_pretrained` and
    `rrg generate` read it like any other. The baselines of the paper's Tables II and VI are configurations of the
    model: see `LeadConfig`'s `fusion`, `projection`, `expert_loss_weight` and `expert_prompting`.

    Args:
        model (a LEAD model or `str`): the model to train, or the folder or Hub id of one or of a plain backbone.
        args (`LeadTrainingArguments`): holds all settings.
        train_dataset (`datasets.Dataset` or `IterableDataset`): `Study` rows. Rows without an image or the section are
            left out, counted and logged. A stream needs `max_steps`.
        eval_dataset (the same, or a dict of them, *optional*): validation rows.
        processing_class (a LEAD processor): loaded beside `model` when that is a path.
        data_collator (*optional*): `DataCollatorForLead` by default.
        callbacks, optimizers (*optional*): as in `Trainer`.

    Attributes:
        lead: the LEAD model itself, inside the adapter if there is one.

    Raises:
        ConfigError: settings that cannot work.
        CheckpointError: a model of another architecture.
        DataError: no row to learn from, or phantom and real studies mixed.

    Example:

    ```python
    >>> from rrg_hf import LeadQwen3VLForCausalLM, LeadQwen3VLProcessor, LeadTrainer, LeadTrainingArguments

    >>> model = LeadQwen3VLForCausalLM.from_pretrained("Qwen/Qwen3-VL-2B-Instruct", dtype="bfloat16")
    >>> processor = LeadQwen3VLProcessor.from_pretrained("Qwen/Qwen3-VL-2B-Instruct")
    >>> args = LeadTrainingArguments("out", bf16=True)
    >>> trainer = LeadTrainer(model, args, train_dataset=studies, processing_class=processor)
    >>> trainer.train()
    >>> trainer.save_model()
    ```
    """

    _tag_names = ("rrg_hf", "lead")
    method = "lead"
    args: LeadTrainingArguments
    data_collator: DataCollatorForLead

    def __init__(
        self,
        model: Any,
        args: LeadTrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        data_collator: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
    ) -> None:
        from ..modeling.lead.modeling_lead import LeadForCausalLMMixin
        from ..modeling.lead.processing_lead import LeadProcessorMixin

        # Args
        self.check_run(args, LeadTrainingArguments)
        set_seed(args.seed)  # LEAD's fresh parts and LoRA start the same in every process

        # Model
        if isinstance(model, (str, os.PathLike)):
            if processing_class is None:
                processing_class = load_lead_processor(model)
            model = load_lead(model)
        if not isinstance(model, LeadForCausalLMMixin):
            raise CheckpointError(
                f"LeadTrainer trains a LEAD model; it got a {type(model).__name__}. Load a plain backbone or a LEAD "
                "checkpoint with LeadQwen3VLForCausalLM, LeadInternVLForCausalLM or LeadMistral3ForCausalLM."
            )
        lead_model: Any = model
        if lead_model.dtype in (torch.bfloat16, torch.float16) and not (args.bf16 or args.fp16):
            raise ConfigError(
                f"The model is in {lead_model.dtype}, but neither bf16 nor fp16 is set: what trains is kept in "
                "float32 and needs mixed precision beside frozen 16-bit weights. Set bf16=True, or load with "
                "dtype='float32' (model.dtype in a recipe)."
            )
        if getattr(lead_model, "is_quantized", False) and not args.uses_lora:
            raise ConfigError(
                f"training_mode {args.training_mode!r} cannot train a quantized model. Use 'llm' or 'hybrid', which "
                "train LoRA beside the quantized weights."
            )
        if getattr(lead_model, "is_quantized", False) and args.merge_adapter:
            raise ConfigError(
                "merge_adapter needs whole weights, but the model is quantized. Set merge_adapter=False; "
                "rrg_hf.modeling.lead.load_adapter merges the adapter into the whole backbone afterwards."
            )

        # Processing class
        if not isinstance(processing_class, LeadProcessorMixin):
            raise ConfigError(
                f"processing_class must be the LEAD processor of the model; it is {type(processing_class).__name__}."
            )
        size = lead_model.config.get_text_config().vocab_size
        if len(processing_class.tokenizer) > size:
            raise ConfigError(
                f"The processor's tokenizer has {len(processing_class.tokenizer)} tokens, but the model knows {size}. "
                "Use the processor of the same checkpoint."
            )
        try:
            end = processing_class.end_token_id
        except ValueError as error:
            raise ConfigError(str(error)) from error

        # Dataset
        self.lead = lead_model
        self._experts_learn = lead_model.config.lead_config.expert_loss_weight > 0
        self._label_reader = (
            label_reader(args.label_source, model=args.label_model, cache_dir=args.label_cache_dir)
            if self._experts_learn
            else None
        )
        train_dataset, eval_dataset = self.prepare_datasets(train_dataset, eval_dataset, args.section)

        # Data collator
        self._prompting = lead_model.config.lead_config.expert_prompting
        if data_collator is None:
            data_collator = DataCollatorForLead(
                processing_class,
                section=args.section,
                cleaning=args.cleaning,
                use_indication=args.use_indication,
                max_length=args.max_length,
                keep_samples=self._prompting,
            )
        if self._prompting and isinstance(train_dataset, IterableDataset) and args.world_size > 1:
            raise ConfigError(
                "expert_prompting does not go with a stream that several processes read. Use a data set on disk."
            )

        if isinstance(train_dataset, IterableDataset):
            # Accelerate would cut every tensor of a stream's batch to its number of rows, but the first dimension of
            # pixel values is patches. Each process reads the stream itself and takes its part of the rows.
            accelerator: Any = args.accelerator_config
            accelerator.dispatch_batches = False

        set_generation_defaults(lead_model, args, end, processing_class.tokenizer.pad_token_id)

        # What trains
        report_model: Any = lead_model
        if args.uses_lora:
            report_model = add_lora(lead_model, args)
        else:
            set_trainable(lead_model, args)
        use_float32(report_model)
        if args.gradient_checkpointing and args.uses_lora:
            # re-entrant checkpoints pass no gradient to LoRA unless what enters the first layer asks for one
            lead_model.enable_input_require_grads()

        super().__init__(
            report_model,
            report_model,
            args,
            loss_names=("language_loss", "expert_loss") if self._experts_learn else ("language_loss",),
            processing_class=processing_class,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = True  # PEFT's wrapper hides the model's signature

    # --- data --------------------------------------------------------------------------------------------------------

    def _prepare(self, name: str, dataset: Any) -> Any:
        if dataset is not None and self._experts_learn:
            dataset = add_expert_labels(
                dataset,
                self.lead.config.lead_config.expert_names,
                reader=self._label_reader,
                section=self.args.section,
                policy=self.args.uncertainty_policy,
            )
        return super()._prepare(name, dataset)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        fresh = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if fresh and self.args.vision_learning_rate:
            tower = {id(weight) for weight in getattr(self.lead.model, self.lead.model.image_tower).parameters()}
            for group in list(optimizer.param_groups):
                inside = [weight for weight in group["params"] if id(weight) in tower]
                if inside:
                    group["params"] = [weight for weight in group["params"] if id(weight) not in tower]
                    optimizer.add_param_group({**group, "params": inside, "lr": self.args.vision_learning_rate})
        return optimizer

    # --- losses ------------------------------------------------------------------------------------------------------

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | int | None:
        """Also counts the known labels of all batches of a step, so that the expert loss is a mean over them."""
        count = super()._get_num_items_in_batch(batch_samples, device)
        if batch_samples and "expert_labels" in batch_samples[0]:
            known = sum((batch["expert_labels"] >= 0).sum() for batch in batch_samples)
            if self.args.average_tokens_across_devices and self.args.world_size > 1:
                known = self.accelerator.gather(known.to(device)).sum()
            for batch in batch_samples:
                batch["num_known_labels"] = known
        return count

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        inputs = dict(inputs)
        samples = inputs.pop(SAMPLES, None)
        if samples is not None:
            inputs = self._with_predicted_observations(inputs, samples)
        mode = "train" if model.training else "eval"
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        total, tokens = self._token_total(outputs["language_loss"], inputs["labels"], num_items_in_batch, scaled=False)
        totals, weights = {"language_loss": total}, {"language_loss": tokens}
        if outputs.get("expert_loss") is not None:
            known = (inputs["expert_labels"] >= 0).sum()
            totals["expert_loss"] = outputs["expert_loss"].detach() * inputs["num_known_labels"]
            weights["expert_loss"] = known
        self._losses[mode].add(totals, weights)
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def _with_predicted_observations(
        self, inputs: dict[str, Any], samples: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The batch again, with what the experts predict now written into its prompts."""
        extra: dict[str, Any] = {name: inputs[name] for name in _TARGETS if name in inputs}
        encoded = self.data_collator.encode(samples, self._predicted_observations(inputs))
        return {**self._prepare_inputs(encoded), **extra}

    @torch.no_grad()
    def _predicted_observations(self, inputs: Mapping[str, Any]) -> list[list[str] | None]:
        was_training = self.report_model.training
        self.report_model.eval()
        with self.accelerator.autocast():
            probabilities = self.lead.predict_experts(
                **{name: value for name, value in inputs.items() if name not in ("labels", *_TARGETS)}
            )
        self.report_model.train(was_training)
        return self.lead.predicted_observations(probabilities)

    # --- reports -----------------------------------------------------------------------------------------------------

    def write_texts(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        collator = self.data_collator
        samples = [collator.sample(row, with_report=False) for row in rows]
        inputs = self._prepare_inputs(collator.encode(samples))
        if self._prompting:
            inputs = self._prepare_inputs(collator.encode(samples, self._predicted_observations(inputs)))
        sequences = self.report_model.generate(
            **inputs, max_new_tokens=self.args.generation_max_new_tokens, use_cache=True
        )
        return self._processor.decode_reports(sequences, inputs)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save_weights(self, folder: Path) -> None:
        if not self.args.uses_lora:
            self.lead.save_pretrained(folder)
            return
        self.report_model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty card; ours is written by `rrg card`
        config = self.lead.config
        config.architectures = [type(self.lead).__name__]
        config.save_pretrained(folder)
        self.lead.generation_config.save_pretrained(folder)

    def _save_final(self, folder: Path) -> None:
        if not (self.args.uses_lora and self.args.merge_adapter):
            super()._save_final(folder)
            return
        super()._save_final(folder / ADAPTER_FOLDER)
        self.lead.save_pretrained(folder, state_dict=merged_state(self.report_model))
        self._processor.save_pretrained(folder)
        shutil.copyfile(folder / ADAPTER_FOLDER / "rrg_training.json", folder / "rrg_training.json")

    def _more_metadata(self) -> dict[str, Any]:
        lead = self.lead.config.lead_config
        names = ("fusion", "projection", "expert_loss_weight", "expert_prompting", "gate_type", "gate_rank")
        return {
            "backbone": self.lead.config.backbone_model_type,
            "lead": {name: getattr(lead, name) for name in names},
            "adapter": self.args.uses_lora,
            "truncated_reports": self._processor.truncated_reports,
            "previous_stage": self._previous,
        }

    @property
    def _previous(self) -> dict[str, Any] | None:
        """Metadata of the LEAD checkpoint that this run started from, if it was one."""
        name = self.lead.config._name_or_path
        return read_metadata(name) if name and Path(name).is_dir() else None

    def _check_resumable(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        mode = (metadata.get("hyperparameters") or {}).get("training_mode", "hybrid")
        if metadata and mode != self.args.training_mode:
            raise CheckpointError(
                f"{folder.name} was written with training_mode {mode!r}; this run has {self.args.training_mode!r}. "
                "Resume with the same one."
            )

    def _load_weights(self, folder: Path) -> None:
        if self.args.uses_lora:
            load_adapter_weights(self.report_model, folder)
            return
        loaded = load_lead(folder, dtype=self.lead.dtype)
        self.lead.load_state_dict(loaded.state_dict())


def set_generation_defaults(model: Any, args: LeadTrainingArguments, end: int, pad: int | None) -> None:
    """What the saved model does by default: the paper's deterministic beams (Sec. III-C).

    Args:
        model: a LEAD model; its `generation_config` is changed.
        args: beams and penalties.
        end: the token that ends a turn in the chat template.
        pad: the tokenizer's padding token.
    """
    generation = model.generation_config
    generation.do_sample = False
    for name in ("temperature", "top_p", "top_k"):  # Qwen's files have them; they mean nothing to beams
        setattr(generation, name, None)
    generation.num_beams = args.generation_num_beams
    generation.repetition_penalty = args.generation_repetition_penalty
    generation.length_penalty = args.generation_length_penalty
    ends = generation.eos_token_id
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    generation.eos_token_id = sorted({end, *ends})
    if generation.pad_token_id is None:
        generation.pad_token_id = pad
