"""`PalmTrainer`: one stage of PALM on `transformers.Trainer`."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from datasets import IterableDataset
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import IterableDatasetShard
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint, rotate_checkpoints

from ..data.collators import DataCollatorForPalm
from ..data.pixel_cache import CachedStudies, cache_pixel_values
from ..errors import CheckpointError, ConfigError
from ..metrics.observation_scores import label_statistics
from ..text.cleaning import CLEANERS, is_missing
from ..text.rules import label_report
from .callbacks import ReportTable, TrainLogCallback
from .checkpoints import (
    METADATA_NAME,
    STAGE_STATE_NAME,
    STAGING_PREFIX,
    explained,
    publish_files,
    publish_folder,
    read_metadata,
    write_json,
)
from .interruption import DeferredInterrupt
from .loss_meter import LossMeter
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
from .preflight import check_optimization, check_output_dir
from .run_metadata import run_metadata, tensors_fingerprint
from .study_data import StudySummary, check_world, prepare_studies, spread_rows

if TYPE_CHECKING:
    from ..modeling.palm import PalmForReportGeneration, PalmProcessor

logger = logging.getLogger(__name__)


class PalmTrainer(Trainer):
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
        if not isinstance(args, PalmTrainingArguments):
            raise ConfigError(
                f"PalmTrainer needs PalmTrainingArguments, which name the stage; it got a {type(args).__name__}."
            )
        stage = args.stage
        check_optimization(args)
        check_output_dir(str(args.output_dir))
        if args.n_gpu > 1:
            logger.warning("Training uses the first of %d GPUs. Start with torchrun to use them all.", args.n_gpu)
            args._n_gpu = 1

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
        self.summaries: dict[str, StudySummary] = {}
        self._section = None if stage == "mem" else args.section
        self._processor = processing_class
        self.args = args
        self._output = Path(str(args.output_dir))
        train_dataset = self._prepare("train_dataset", train_dataset)
        if isinstance(eval_dataset, dict):
            eval_dataset = {key: self._prepare(f"eval_dataset[{key!r}]", part) for key, part in eval_dataset.items()}
        else:
            eval_dataset = self._prepare("eval_dataset", eval_dataset)
        check_world(self.summaries)
        if isinstance(train_dataset, IterableDataset) and args.max_steps < 1:
            raise ConfigError("train_dataset is a stream, whose length is not known: set max_steps.")
        if eval_dataset is None and args.evaluates_by_default:
            args.disable_evaluation()

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
        self._losses = {mode: LossMeter(loss_names(stage, model.config)) for mode in ("train", "eval")}

        # Callbacks
        callbacks = [TrainLogCallback(stage), *(callbacks or [])]
        if args.early_stopping_patience is not None:
            callbacks.append(EarlyStoppingCallback(args.early_stopping_patience, args.early_stopping_threshold))
        self._report_table = ReportTable(args.report_to) if args.log_reports else None

        config_before = dict(vars(model.config))
        super().__init__(
            model=stage_model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        # Trainer switches the cache off in the configuration, which is saved and which generation reads.
        if "use_cache" in config_before:
            model.config.use_cache = config_before["use_cache"]
        elif "use_cache" in vars(model.config):
            del model.config.use_cache
        self._stage_done = False
        self._interrupt = DeferredInterrupt()
        self._waiting_for_epoch_end = False

    # --- data ------------------------------------------------------------------------------------------------------

    def _prepare(self, name: str, dataset: Any) -> Any:
        if dataset is None:
            return None
        dataset, self.summaries[name] = prepare_studies(
            dataset, name=name, section=self._section, cleaning=self.args.cleaning
        )
        if self.args.cache_pixel_values and not isinstance(dataset, CachedStudies):
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

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Losses by name and, in the generate stage, `rules` scores of written reports; see `Trainer.evaluate`."""
        if eval_dataset is not None and not isinstance(eval_dataset, (str, dict)):
            eval_dataset = self._prepare("evaluated dataset", eval_dataset)
            check_world(self.summaries)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    # --- losses ----------------------------------------------------------------------------------------------------

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
            # The loss is this process's share of the mean over all tokens of the accumulated global batch. Undo that,
            # so that what is logged is a mean over tokens however they were spread over batches.
            tokens = inputs["labels"][:, 1:].ne(-100).sum()
            total = loss.detach() * (tokens if num_items_in_batch is None else num_items_in_batch)
            if num_items_in_batch is not None and self.args.average_tokens_across_devices:
                total = total / self.accelerator.num_processes
            meter.add({"gen_loss": total}, tokens)
        else:
            size = torch.tensor(len(inputs["pixel_values"]), device=loss.device)
            meter.add({name: outputs[name].detach() * size for name in meter.names}, size)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        # Trainer computes a validation loss only where it finds labels; mem and align have none.
        inputs = self._prepare_inputs(inputs)
        count = self._get_num_items_in_batch([inputs], self.args.device)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=count)
        return loss.detach().mean(), None, None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = {**logs, **self._losses["train"].pop(self.accelerator)}
        super().log(logs, start_time)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        meter = self._losses["eval"]
        meter.reset()
        # Evaluating must not move the random state of training, or evaluating more often would change the model.
        with torch.random.fork_rng(devices=[]):
            output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
            scores: dict[str, float] = dict(meter.pop(self.accelerator))
            if self.args.stage == "generate" and self.args.eval_generate_samples != 0:
                dataset = dataloader.dataset
                dataset = dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset
                scores |= self._score_reports(dataset)
        if output.metrics is not None:
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in scores.items()})
        return output

    # --- reports written during evaluation ---------------------------------------------------------------------------

    def generate_reports(self, dataset: Any, max_samples: int | None = None) -> list[dict[str, str]]:
        """Write reports for a data set with the generation settings of `args`.

        Args:
            dataset: prepared `Study` rows (what `train_dataset` and `eval_dataset` of this trainer are).
            max_samples: at most so many studies, spread evenly; of a stream, the first ones. None is all.

        Returns:
            In every process, in data set order, mappings with "study_id", "report" and "reference" (the full section,
            never cut).
        """
        rank, world = self.args.process_index, self.args.world_size
        batch_size = self.args.per_device_eval_batch_size
        written: list[tuple[int, dict[str, str]]] = []
        batch: list[tuple[int, Mapping[str, Any]]] = []
        for position, row in spread_rows(dataset, max_samples, rank, world):
            batch.append((position, row))
            if len(batch) == batch_size:
                written += self._write_batch(batch)
                batch = []
        written += self._write_batch(batch) if batch else []
        if world > 1:
            written = gather_object(written)
        return [row for _, row in sorted(written, key=lambda pair: pair[0])]

    @torch.no_grad()
    def _write_batch(self, batch: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[int, dict[str, str]]]:
        rows = [row for _, row in batch]
        collator = self.data_collator
        inputs = self._prepare_inputs({"pixel_values": collator.pixel_values(rows), **collator.indications(rows)})
        was_training = self.palm.training
        self.palm.eval()
        with self.accelerator.autocast():
            ids = self.palm.generate(
                **inputs,
                do_sample=False,
                num_beams=self.args.generation_num_beams,
                max_new_tokens=self.args.generation_max_new_tokens,
                use_cache=True,
            )
        self.palm.train(was_training)
        reports = self._processor.batch_decode(ids, skip_special_tokens=True)
        return [
            (
                position,
                {
                    "study_id": str(row.get("study_id")),
                    "report": report.strip(),
                    "reference": "" if is_missing(row.get(self.args.section)) else row[self.args.section],
                },
            )
            for (position, row), report in zip(batch, reports, strict=True)
        ]

    def _score_reports(self, dataset: Any) -> dict[str, float]:
        start = time.perf_counter()
        rows = self.generate_reports(dataset, self.args.eval_generate_samples)
        clean = CLEANERS[self.args.cleaning]
        references = [label_report(clean(row["reference"])) for row in rows]
        hypotheses = [label_report(clean(row["report"])) for row in rows]
        scores = label_statistics(references, hypotheses).corpus()
        names = ("rules_micro_f1", "rules_micro_precision", "rules_micro_recall", "rules_macro_f1")
        # trackers have a run open while training only
        if self._report_table is not None and self.is_in_train and self.is_world_process_zero():
            self._report_table.send(rows[: self.args.log_reports], self.state.global_step)
        return {
            **{name: float(scores[name]) for name in names},
            # A model that ignores the image writes few distinct reports.
            "distinct_reports": len({row["report"] for row in rows}) / len(rows),
            "generated_reports": float(len(rows)),
            "generation_runtime": time.perf_counter() - start,
        }

    # --- writing checkpoints ---------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write `checkpoint-<step>` under another name and rename it when it is complete."""
        self.store_flos()
        step = self.state.global_step
        run_dir = Path(self._get_output_dir(trial=trial))
        target = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        staging = run_dir / f"{STAGING_PREFIX}{target.name}"
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        earlier = get_last_checkpoint(str(run_dir)) if run_dir.is_dir() else None
        kept = f"{Path(earlier).name} is still there." if earlier else "no earlier checkpoint was written."
        try:
            with explained(target, kept):
                staging.mkdir(parents=True, exist_ok=True)
                self._save(str(staging))
                self._write_stage_state(staging)
                best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
                if self.state.best_global_step and (best == target or best.exists()):
                    self.state.best_model_checkpoint = str(best)
                if not self.args.save_only_model:
                    self._save_optimizer_and_scheduler(str(staging))
                    self._save_scaler(str(staging))
                    self._save_rng_state(str(staging))
                if self.args.should_save:
                    self._export_callback_states()
                    self.state.save_to_json(str(staging / TRAINER_STATE_NAME))
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    publish_folder(staging, target)
        finally:
            if self.args.should_save:
                shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(target))
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=str(run_dir),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=False,
            )

    def _export_callback_states(self) -> None:
        states: Any = self.state.stateful_callbacks
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                states[type(callback).__name__] = callback.state()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """The PALM model, its processor and the run's metadata; what the stage alone needs is not among them."""
        if not self.args.should_save:
            return
        folder = Path(output_dir) if output_dir else self._output
        folder.mkdir(parents=True, exist_ok=True)
        self.palm.save_pretrained(folder)
        self._processor.save_pretrained(folder)
        write_json(folder / METADATA_NAME, run_metadata(self))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the PALM model, its processor and `rrg_training.json`, all or nothing.

        `config.training_stage` is this stage once `train` has run to its end.
        """
        target = Path(output_dir) if output_dir else self._output
        staging = target / f"{STAGING_PREFIX}model"
        if self.args.should_save:
            try:
                with explained(target, "checkpoints of this run are untouched."):
                    shutil.rmtree(staging, ignore_errors=True)
                    self._save(str(staging))
                    if self._stage_done:
                        self._write_state(staging)
                    publish_files(staging, target)
                self.palm.config._name_or_path = str(target)  # the next stage finds this one's metadata there
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _write_state(self, folder: Path) -> None:
        """The run's log history and best score, without the folder names of this machine."""
        best = self.state.best_model_checkpoint
        self.state.best_model_checkpoint = Path(best).name if best else None
        self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
        self.state.best_model_checkpoint = best

    def _stage_state(self) -> dict[str, torch.Tensor]:
        """Weights and buffers of the stage model that are not PALM's: the predictor, the queue. Never the teacher."""
        if self.model is self.palm:
            return {}
        state = self.accelerator.unwrap_model(self.model).state_dict()
        own = {name: value for name, value in state.items() if not name.startswith(("model.", "teacher."))}
        return {name: value.detach().cpu().contiguous() for name, value in own.items()}

    def _write_stage_state(self, folder: Path) -> None:
        state = self._stage_state()
        if self.args.should_save and state:
            save_file(state, folder / STAGE_STATE_NAME, metadata={"format": "pt"})

    # --- resuming ----------------------------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        metadata = read_metadata(folder) or {}
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
        if metadata.get("finished") or not (folder / TRAINER_STATE_NAME).is_file():
            raise CheckpointError(
                f"{folder.name} is not a checkpoint of a run under way, so none can be resumed from it. Resume from a "
                f"{PREFIX_CHECKPOINT_DIR}-<step> folder, or give it as the model to train it further."
            )
        self._load_weights(folder)

    def _load_best_model(self) -> None:
        logger.info("Keeping %s (%s).", self.state.best_model_checkpoint, self.state.best_metric)
        self._load_weights(Path(str(self.state.best_model_checkpoint)))

    def _load_weights(self, folder: Path) -> None:
        loaded = load_palm(folder, dtype=self.palm.dtype)
        self.palm.load_state_dict(loaded.state_dict())
        expected = set(self._stage_state())
        if not expected:
            return
        path = folder / STAGE_STATE_NAME
        state = load_file(path) if path.is_file() else {}
        if set(state) != expected:
            raise CheckpointError(
                f"{folder.name} lacks what stage {self.args.stage!r} needs besides the model ({STAGE_STATE_NAME}). "
                f"Resume from a {PREFIX_CHECKPOINT_DIR}-<step> folder of this stage."
            )
        self.accelerator.unwrap_model(self.model).load_state_dict(state, strict=False)

    # --- training and interruption -----------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train the stage; see `Trainer.train`.

        Ctrl-C finishes the running step, writes a checkpoint from which `resume_from_checkpoint` continues exactly,
        and raises `KeyboardInterrupt`. A second Ctrl-C stops at once without writing.
        """
        if resume_from_checkpoint is True and get_last_checkpoint(str(self._output)) is None:
            raise CheckpointError(
                f"Nothing to resume: {self.args.output_dir} holds no {PREFIX_CHECKPOINT_DIR}-<step> folder. Leave "
                "resume_from_checkpoint out to start from the beginning."
            )
        self._waiting_for_epoch_end = False
        with self._interrupt:
            try:
                output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
                if self._interrupted_anywhere():
                    self._stop_for_interrupt(trial)
            except KeyboardInterrupt as interrupt:
                self.is_in_train = False
                if not self._interrupt.pending and self.args.world_size == 1 and self.state.global_step > 0:
                    # Raised past the handler, for instance by a callback.
                    self._write_interrupted(trial)
                raise KeyboardInterrupt(self._interrupt_message()) from interrupt
        for name, summary in self.summaries.items():
            if summary.rows is None:
                summary.log(name)
        self._stage_done = True
        self.palm.config.training_stage = self.args.stage
        return output

    def _interrupted_anywhere(self) -> bool:
        """Whether any process got a Ctrl-C. All of them must leave at the same step."""
        if self.args.world_size == 1:
            return self._interrupt.pending
        flag = torch.tensor(float(self._interrupt.pending), device=self.args.device)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        step = self.state.global_step
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if step == 0 or not self._interrupted_anywhere():
            return
        # The last step of an epoch comes here twice, the second time for what happens at the epoch's end. A checkpoint
        # of the first time would resume behind it.
        last_of_epoch = float(self.state.epoch or 0.5).is_integer()
        if last_of_epoch and not self._waiting_for_epoch_end:
            self._waiting_for_epoch_end = True
            return
        self._stop_for_interrupt(kwargs.get("trial"))

    def _stop_for_interrupt(self, trial: Any) -> None:
        self._write_interrupted(trial)
        self._interrupt.count = max(self._interrupt.count, 1)  # written; nothing is left for `train` to do
        raise KeyboardInterrupt

    def _checkpoint_of_this_step(self) -> Path:
        return self._output / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

    def _write_interrupted(self, trial: Any) -> None:
        if not self._checkpoint_of_this_step().is_dir():
            self._save_checkpoint(self.model_wrapped, trial)

    def _interrupt_message(self) -> str:
        step, total = self.state.global_step, self.state.max_steps
        last = get_last_checkpoint(str(self._output)) if self._output.is_dir() else None
        left = f"Resume from {Path(last).name}." if last else "No checkpoint was written."
        return f"Stage {self.args.stage} was interrupted at step {step} of {total}. {left}"
