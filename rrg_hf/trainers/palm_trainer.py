"""`PalmTrainer`: one stage of PALM on `transformers.Trainer`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import IterableDataset
from torch import nn
from transformers import TrainerCallback, set_seed

from ..data.collators import DataCollatorForPalm
from ..data.pixel_cache import CachedStudies, cache_pixel_values
from ..errors import CheckpointError, ConfigError
from .checkpoints import read_metadata
from .palm_config import PalmTrainingArguments
from .palm_loading import check_vocabularies, load_palm, load_processor
from .palm_stages import (
    build_stage_model,
    check_stage_order,
    fit_lengths,
    loss_names,
    set_trainable,
    set_vision_learning_rate,
)
from .report_trainer import ReportTrainer
from .run_metadata import tensors_fingerprint

if TYPE_CHECKING:
    from ..modeling.palm import PalmForReportGeneration, PalmProcessor


class PalmTrainer(ReportTrainer):
    """Trains one stage of PALM; three trainers, each from the last one's checkpoint, train PALM.

    Stage "mem" logs `mem_loss`; "align" `multi_loss` and `uni_loss` (or `contrastive_loss`); "generate" `gen_loss`,
    also with the prefix `eval_`. During evaluation the generate stage writes reports and scores them against the
    full references by the `rules` labels of the 14 observations: `eval_rules_micro_f1` picks the best checkpoint.

    What trains in each stage is said in `rrg_hf.trainers.palm_stages.set_trainable`. Every folder it writes
    is a `PalmForReportGeneration` checkpoint with its processor; `config.training_stage` of the final one is this
    stage.

    Args:
        model (`PalmForReportGeneration` or `str`): the model to train, or a folder or Hub id of one. Its
            `config.training_stage` must be the stage before (see `skip_stages`).
        args (`PalmTrainingArguments`): names the stage and holds all settings.
        train_dataset (`datasets.Dataset`, `IterableDataset` or `CachedStudies`): `Study` rows. Rows without an image,
            or without the section (but for mem), are left out, counted and logged. A stream needs `max_steps`.
        eval_dataset (the same, or a dict of them, *optional*): validation rows.
        processing_class (`PalmProcessor`): image processor and both tokenizers. Loaded beside `model` when that is a
            path.
        data_collator (*optional*): `DataCollatorForPalm` by default.
        callbacks, optimizers (*optional*): as in `Trainer`.

    Attributes:
        palm: the PALM model; shares its weights with `model`, which gives the stage's loss.

    Raises:
        ConfigError: a stage out of order, or settings that cannot work together.
        CheckpointError: a model of another architecture.
        DataError: no row to learn from, or phantom and real studies mixed.

    Example:

    ```python
    >>> from rrg_hf import PalmForReportGeneration, PalmProcessor, PalmTrainer, PalmTrainingArguments

    >>> args = PalmTrainingArguments("out/mem", stage="mem", num_train_epochs=10)
    >>> trainer = PalmTrainer(model, args, train_dataset=studies, processing_class=processor)
    >>> trainer.train()
    >>> trainer.save_model()  # a PalmForReportGeneration folder, from which stage "align" starts
    ```
    """

    _tag_names = ("rrg_hf", "palm")
    method = "palm"
    args: PalmTrainingArguments
    data_collator: DataCollatorForPalm

    def __init__(
        self,
        model: PalmForReportGeneration | str | os.PathLike[str],
        args: PalmTrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PalmProcessor | None = None,
        data_collator: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
    ) -> None:
        from ..modeling.palm import PalmForReportGeneration, PalmProcessor

        # Args
        self.check_run(args, PalmTrainingArguments)
        stage = args.stage

        # Model
        if isinstance(model, (str, os.PathLike)):
            if processing_class is None:
                processing_class = load_processor(model)
            model = load_palm(model)
        if not isinstance(model, PalmForReportGeneration):
            raise CheckpointError(
                f"PalmTrainer trains a PalmForReportGeneration; it got a {type(model).__name__}. Load a PALM "
                "checkpoint, or build one with PalmForReportGeneration.from_backbones."
            )
        check_stage_order(stage, model.config.training_stage, args.skip_stages)

        # Processing class
        if not isinstance(processing_class, PalmProcessor):
            raise ConfigError(
                f"processing_class must be the PalmProcessor of the model; it is {type(processing_class).__name__}."
            )
        check_vocabularies(model.config, processing_class)
        fit_lengths(model, processing_class, args)

        # Dataset
        self._processor = processing_class
        train_dataset, eval_dataset = self.prepare_datasets(
            train_dataset, eval_dataset, None if stage == "mem" else args.section
        )

        # Data collator
        if data_collator is None:
            data_collator = DataCollatorForPalm(
                processing_class,
                stage=stage,
                section=args.section,
                cleaning=args.cleaning,
                use_indication=args.use_indication,
                max_length=args.max_report_length,
            )

        # Stage model
        self.palm = model
        self._previous = read_metadata(model.config._name_or_path) if model.config._name_or_path else None
        if stage == "align" and args.initialize_prototypes and model.config.training_stage in (None, "mem"):
            names = list(model.config.prototype_names or ())[: model.config.num_prototypes]
            if names:  # without names all prototypes keep their random start
                model.model.initialize_prototypes(processing_class, names)
        set_seed(args.seed)  # the parts that only this stage has start the same in every process
        stage_model = build_stage_model(model, stage)
        freeze_vision = args.vision_learning_rate == 0
        set_trainable(model, stage, use_indication=args.use_indication, freeze_vision=freeze_vision)
        self._teacher = tensors_fingerprint(stage_model.get_submodule("teacher")) if stage == "mem" else None
        super().__init__(
            stage_model,
            model,
            args,
            loss_names=loss_names(stage, model.config),
            processing_class=processing_class,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            callbacks=callbacks,
            optimizers=optimizers,
        )

    @property
    def run_stage(self) -> str:
        return self.args.stage

    # --- data ------------------------------------------------------------------------------------------------------

    def _prepare(self, name: str, dataset: Any) -> Any:
        dataset = super()._prepare(name, dataset)
        if dataset is not None and self.args.cache_pixel_values and not isinstance(dataset, CachedStudies):
            if isinstance(dataset, IterableDataset):
                raise ConfigError(f"cache_pixel_values keeps a whole data set in memory, but {name} is a stream.")
            dataset = cache_pixel_values(dataset, self._processor)
        return dataset

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        fresh = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if fresh and self.args.vision_learning_rate:
            set_vision_learning_rate(optimizer, self.palm, self.args.vision_learning_rate)
        return optimizer

    # --- losses and reports ------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        meter = self._losses["train" if model.training else "eval"]
        if self.args.stage == "generate":
            total, tokens = self._token_total(loss, inputs["labels"], num_items_in_batch)
            meter.add({"gen_loss": total}, tokens)
        else:
            size = torch.tensor(len(inputs["pixel_values"]), device=loss.device)
            meter.add({name: outputs[name].detach() * size for name in meter.names}, size)
        return (loss, outputs) if return_outputs else loss

    def write_texts(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        collator = self.data_collator
        inputs = self._prepare_inputs({"pixel_values": collator.pixel_values(rows), **collator.indications(rows)})
        ids = self.palm.generate(
            **inputs,
            do_sample=False,
            num_beams=self.args.generation_num_beams,
            max_new_tokens=self.args.generation_max_new_tokens,
            use_cache=True,
        )
        return self._processor.batch_decode(ids, skip_special_tokens=True)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _published(self, folder: Path) -> None:
        self.palm.config._name_or_path = str(folder)  # the next stage finds this one's metadata there

    def _mark_finished(self) -> None:
        self.palm.config.training_stage = self.args.stage

    def _more_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"previous_stage": self._previous}
        if self._teacher is not None:
            metadata["teacher"] = self._teacher
        return metadata

    def _run_state(self) -> dict[str, torch.Tensor]:
        """Weights and buffers of the stage model that are not PALM's: the predictor, the queue. Never the teacher."""
        if self.model is self.palm:
            return {}
        state = self.accelerator.unwrap_model(self.model).state_dict()
        own = {name: value for name, value in state.items() if not name.startswith(("model.", "teacher."))}
        return {name: value.detach().cpu().contiguous() for name, value in own.items()}

    def _check_resumable(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        if metadata.get("stage") not in (None, self.args.stage):
            raise CheckpointError(
                f"{folder.name} was written by stage {metadata['stage']!r}, so stage {self.args.stage!r} cannot be "
                "resumed from it. Resume from a checkpoint of the same stage, or start from the finished stage's "
                "folder."
            )
        if self._teacher is not None and metadata.get("teacher", self._teacher) != self._teacher:
            raise CheckpointError(
                f"{folder.name} learnt from another teacher than the vision tower of the model given now. A resumed "
                "mem stage must start from the same model as before; give that one and the checkpoint as "
                "resume_from_checkpoint."
            )

    def _load_weights(self, folder: Path) -> None:
        loaded = load_palm(folder, dtype=self.palm.dtype)
        self.palm.load_state_dict(loaded.state_dict())
        state = self._read_run_state(folder)
        if state:
            self.accelerator.unwrap_model(self.model).load_state_dict(state, strict=False)
