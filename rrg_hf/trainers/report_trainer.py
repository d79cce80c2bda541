"""`ReportTrainer`: what the trainers of this package share on top of `transformers.Trainer`."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import IterableDataset
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import IterableDatasetShard
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint, rotate_checkpoints

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
from .preflight import check_optimization, check_output_dir
from .report_config import ReportTrainingArguments
from .run_metadata import run_metadata
from .study_data import StudySummary, check_world, prepare_studies, spread_rows

logger = logging.getLogger(__name__)


class ReportTrainer(Trainer):
    """Base of the trainers: `Study` rows in, named losses, reports scored during evaluation, whole checkpoints out.

    A subclass checks its model, processor and settings, calls `check_run` and `prepare_datasets`, then this
    `__init__`, and says how its model writes reports (`write_texts`) and how its weights are saved and read back
    (`_save_weights`, `_load_weights`).

    Args:
        model: the module whose forward gives the loss.
        report_model: the model that is saved; often `model` itself.
        args: holds all settings.
        loss_names: the named losses of a batch, logged besides `loss`.
        processing_class: the model's processor, saved with it.
        data_collator, train_dataset, eval_dataset, callbacks, optimizers: as in `Trainer`.

    Attributes:
        method: written to `rrg_training.json` ("palm", "lead").
        report_model: the model that is saved.
        summaries: what was used and left out of each data set.
    """

    method: str
    args: ReportTrainingArguments

    def __init__(
        self,
        model: nn.Module,
        report_model: Any,
        args: ReportTrainingArguments,
        *,
        loss_names: Sequence[str],
        processing_class: Any,
        data_collator: Any,
        train_dataset: Any,
        eval_dataset: Any,
        callbacks: list[TrainerCallback] | None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None],
    ) -> None:
        self.report_model = report_model
        self._processor = processing_class
        self._losses = {mode: LossMeter(loss_names) for mode in ("train", "eval")}
        callbacks = [TrainLogCallback(self.run_stage), *(callbacks or [])]
        if args.early_stopping_patience is not None:
            callbacks.append(EarlyStoppingCallback(args.early_stopping_patience, args.early_stopping_threshold))
        self._report_table = ReportTable(args.report_to) if args.log_reports else None
        configs = [report_model.config, report_model.config.get_text_config(decoder=True)]
        before = [dict(vars(config)) for config in configs]
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        # Trainer switches the cache off in the configuration, which is saved and which generation reads.
        for config, earlier in zip(configs, before, strict=True):
            if "use_cache" in earlier:
                config.use_cache = earlier["use_cache"]
            elif "use_cache" in vars(config):
                del config.use_cache
        self._finished = False
        self._interrupt = DeferredInterrupt()
        self._waiting_for_epoch_end = False

    # --- what a method says of itself --------------------------------------------------------------------------------

    @property
    def run_stage(self) -> str:
        """Name of this run in its log and metadata."""
        return self.method

    def write_texts(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Reports of a batch of rows, with the generation settings of `args`. Called without gradients.

        The random state and training mode may be changed; the caller restores them.
        """
        raise TypeError(f"{type(self).__name__} does not say how its model writes reports.")

    def _save_weights(self, folder: Path) -> None:
        """Weights and configuration of a checkpoint."""
        self.report_model.save_pretrained(folder)

    def _save_final(self, folder: Path) -> None:
        """Everything that `save_model` publishes."""
        self._save(str(folder))

    def _load_weights(self, folder: Path) -> None:
        """Read back what `_save_weights` and `_write_run_state` wrote."""
        raise TypeError(f"{type(self).__name__} does not say how its weights are read.")

    def _run_state(self) -> dict[str, torch.Tensor]:
        """Tensors that only a resumed run needs, beside the model's own."""
        return {}

    def _more_metadata(self) -> dict[str, Any]:
        """Entries of `rrg_training.json` that this method adds."""
        return {}

    def _check_resumable(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another kind of run. The base refuses none."""

    def _published(self, folder: Path) -> None:
        """Called when `save_model` has written its folder."""

    def _mark_finished(self) -> None:
        """Called when training has run to its end."""

    # --- preparation -------------------------------------------------------------------------------------------------

    def check_run(self, args: Any, expected: type[ReportTrainingArguments]) -> None:
        """Refuse arguments of another trainer and settings that cannot work, before a model is touched.

        Raises:
            ConfigError: see the message.
        """
        if not isinstance(args, expected):
            raise ConfigError(
                f"{type(self).__name__} needs {expected.__name__}, which name all its settings; it got a "
                f"{type(args).__name__}."
            )
        check_optimization(args)
        check_output_dir(str(args.output_dir))
        if args.n_gpu > 1:
            logger.warning("Training uses the first of %d GPUs. Start with torchrun to use them all.", args.n_gpu)
            args._n_gpu = 1
        self.args = args
        self._output = Path(str(args.output_dir))

    def prepare_datasets(self, train_dataset: Any, eval_dataset: Any, section: str | None) -> tuple[Any, Any]:
        """Check both data sets and leave out rows that cannot be learnt from, counted in `summaries`.

        Args:
            train_dataset: `Study` rows.
            eval_dataset: the same, a dict of them, or None.
            section: the report section that is needed, or None where only images are.

        Raises:
            ConfigError, DataError: see `prepare_studies`.
        """
        self.summaries: dict[str, StudySummary] = {}
        self._section = section
        train_dataset = self._prepare("train_dataset", train_dataset)
        if isinstance(eval_dataset, dict):
            eval_dataset = {key: self._prepare(f"eval_dataset[{key!r}]", part) for key, part in eval_dataset.items()}
        else:
            eval_dataset = self._prepare("eval_dataset", eval_dataset)
        check_world(self.summaries)
        if isinstance(train_dataset, IterableDataset) and self.args.max_steps < 1:
            raise ConfigError("train_dataset is a stream, whose length is not known: set max_steps.")
        if eval_dataset is None and self.args.evaluates_by_default:
            self.args.disable_evaluation()
        return train_dataset, eval_dataset

    def _prepare(self, name: str, dataset: Any) -> Any:
        if dataset is None:
            return None
        dataset, self.summaries[name] = prepare_studies(
            dataset, name=name, section=self._section, cleaning=self.args.cleaning
        )
        return dataset

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Losses by name and, where reports are written, their `rules` scores; see `Trainer.evaluate`."""
        if eval_dataset is not None and not isinstance(eval_dataset, (str, dict)):
            eval_dataset = self._prepare("evaluated dataset", eval_dataset)
            check_world(self.summaries)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    # --- losses ------------------------------------------------------------------------------------------------------

    def _token_total(
        self,
        loss: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
        *,
        scaled: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of a token loss over this batch, its tokens), so that what is logged is a mean over tokens.

        The loss is this process's share of the mean over all tokens of the accumulated global batch; `scaled` where it
        is the one that Trainer has multiplied by the number of processes.
        """
        tokens = labels[:, 1:].ne(-100).sum()
        total = loss.detach() * (tokens if num_items_in_batch is None else num_items_in_batch)
        if scaled and num_items_in_batch is not None and self.args.average_tokens_across_devices:
            total = total / self.accelerator.num_processes
        return total, tokens

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        # Trainer computes a validation loss only where it finds labels, which not every stage has.
        inputs = self._prepare_inputs(inputs)
        count = self._get_num_items_in_batch([inputs], self.args.device)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss: Any = self.compute_loss(model, inputs, num_items_in_batch=count)
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
            if self.args.writes_reports:
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
        was_training = self.report_model.training
        self.report_model.eval()
        try:
            with self.accelerator.autocast():
                reports = self.write_texts([row for _, row in batch])
        finally:
            self.report_model.train(was_training)
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
                self._write_run_state(staging)
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
        """The model, its processor and the run's metadata; what only this kind of run needs is not among them."""
        if not self.args.should_save:
            return
        folder = Path(output_dir) if output_dir else self._output
        folder.mkdir(parents=True, exist_ok=True)
        self._save_weights(folder)
        self._processor.save_pretrained(folder)
        write_json(folder / METADATA_NAME, run_metadata(self))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its processor and `rrg_training.json`, all or nothing."""
        target = Path(output_dir) if output_dir else self._output
        staging = target / f"{STAGING_PREFIX}model"
        if self.args.should_save:
            try:
                with explained(target, "checkpoints of this run are untouched."):
                    shutil.rmtree(staging, ignore_errors=True)
                    self._save_final(staging)
                    if self._finished:
                        self._write_state(staging)
                    publish_files(staging, target)
                self._published(target)
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

    def _write_run_state(self, folder: Path) -> None:
        state = self._run_state()
        if self.args.should_save and state:
            save_file(state, folder / STAGE_STATE_NAME, metadata={"format": "pt"})

    def _read_run_state(self, folder: Path) -> dict[str, torch.Tensor]:
        """What `_write_run_state` wrote.

        Raises:
            CheckpointError: tensors are missing.
        """
        expected = set(self._run_state())
        path = folder / STAGE_STATE_NAME
        state = load_file(path) if expected and path.is_file() else {}
        if set(state) != expected:
            raise CheckpointError(
                f"{folder.name} lacks what {self.args.run_name_in_messages} needs besides the model "
                f"({STAGE_STATE_NAME}). Resume from a {PREFIX_CHECKPOINT_DIR}-<step> folder of the same run."
            )
        return state

    # --- resuming ----------------------------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        metadata = read_metadata(folder) or {}
        if metadata.get("method") not in (None, self.method):
            raise CheckpointError(
                f"{folder.name} was written by {metadata['method']!r}, so a run of {self.method!r} cannot be resumed "
                "from it."
            )
        self._check_resumable(folder, metadata)
        if metadata.get("finished") or not (folder / TRAINER_STATE_NAME).is_file():
            raise CheckpointError(
                f"{folder.name} is not a checkpoint of a run under way, so none can be resumed from it. Resume from a "
                f"{PREFIX_CHECKPOINT_DIR}-<step> folder, or give it as the model to train it further."
            )
        self._load_weights(folder)

    def _load_best_model(self) -> None:
        best, name = self.state.best_metric, self.args.metric_for_best_model
        logger.info("Keeping the best checkpoint, %s (%s %.4g).", self.state.best_model_checkpoint, name, best)
        self._load_weights(Path(str(self.state.best_model_checkpoint)))

    # --- training and interruption -----------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train; see `Trainer.train`.

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
        self._finished = True
        self._mark_finished()
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
        run = self.args.run_name_in_messages
        return f"{run[0].upper()}{run[1:]} was interrupted at step {step} of {total}. {left}"
