"""A PALM run described by one YAML file: which model, which data, and the settings of the three stages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .checkpoints import is_finished
from .palm_config import STAGES, PalmTrainingArguments
from .palm_loading import UNUSABLE, check_vocabularies, load_palm, load_processor, one_line, read_palm_config
from .preflight import check_optimization, check_output_dir
from .recipe_file import DATA_KEYS, apply_override, check_arguments, check_block, check_data, load_data, read_blocks
from .setting_types import check_keys, convert_setting

if TYPE_CHECKING:
    from ..modeling.palm import PalmConfig, PalmForReportGeneration, PalmProcessor

logger = logging.getLogger(__name__)

# The keys of the blocks and the types of their values.
MODEL_KEYS: dict[str, Any] = {"path": str | None, "backbones": dict | None, "config": dict | None,
                              "processor": str | None}  # fmt: skip
BACKBONE_KEYS: dict[str, Any] = {"vision": str, "text": str, "decoder": str}
TOP_KEYS = ("model", "data", "training", "stages")


@dataclass
class PalmRecipe:
    """The parts of a recipe file, checked for unknown keys.

    Args:
        model: `path` of a PALM checkpoint, or `backbones` {vision, text, decoder}, or neither and a `processor`
            folder, which makes a random model; `config` holds fields of `PalmConfig` for any of the three.
        data: `train_dataset` (a saved data set or Hub id), `split` ("train"), `eval_dataset` (the same by default),
            `eval_split` ("validation"; null for none), `streaming` (false).
        training: fields of `PalmTrainingArguments` for every stage. `output_dir` gets one folder per stage.
        stages: the same for one stage; they win over `training`.
        overrides: the same for every stage; they win over both.
    """

    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def output_dir(self) -> Path:
        return Path(self.overrides.get("output_dir") or self.training.get("output_dir") or "palm_output")

    @property
    def order(self) -> list[str]:
        """The stages this recipe trains: all but those in `skip_stages`."""
        given = self.overrides.get("skip_stages", self.training.get("skip_stages")) or []
        skipped = convert_setting("skip_stages", given, list[str])
        if any(name not in STAGES for name in skipped):
            raise ConfigError(f"skip_stages must name stages out of {', '.join(STAGES)}; it is {given!r}.")
        return [stage for stage in STAGES if stage not in skipped]

    def arguments(self, stage: str) -> PalmTrainingArguments:
        """The training arguments of one stage, its folder under `output_dir`.

        Raises:
            ConfigError: a setting that cannot work.
        """
        values = {**self.training, **self.stages.get(stage, {}), **self.overrides}
        values |= {"stage": stage, "output_dir": str(self.output_dir / stage)}
        return PalmTrainingArguments.from_mapping(values, where=f"stages.{stage}")


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> PalmRecipe:
    """Read a recipe file and apply overrides.

    Args:
        path: the YAML file.
        overrides: "key=value". A plain key is a training argument of every stage (or a key of `data`); "model.path",
            "data.split", "training.seed" and "stages.mem.learning_rate" name one place.

    Raises:
        ConfigError: no such file, no valid YAML, or an unknown key (the message names the nearest valid one).
    """
    recipe = PalmRecipe(**read_blocks(path, TOP_KEYS))
    blocks = {name: getattr(recipe, name) for name in TOP_KEYS}
    for override in overrides:
        apply_override(blocks, recipe.overrides, override)
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: PalmRecipe) -> None:
    """Refuse unknown keys, values of the wrong type and missing parts, before anything is loaded.

    Numbers written as text are converted in place.

    Raises:
        ConfigError: the first thing that cannot work.
    """
    for item in fields(PalmRecipe):
        if not isinstance(getattr(recipe, item.name), dict):
            raise ConfigError(f"{item.name} must be a block of settings, not {getattr(recipe, item.name)!r}.")
    check_keys(list(recipe.stages), STAGES, "stages")
    for stage, settings in recipe.stages.items():
        if settings is not None and not isinstance(settings, dict):
            raise ConfigError(f"stages.{stage} must be a block of settings, not {settings!r}.")
        recipe.stages[stage] = settings or {}
    names = [item.name for item in fields(PalmTrainingArguments) if item.init and item.name != "stage"]
    check_keys(list(recipe.overrides), [*names, *DATA_KEYS], "The recipe")
    check_arguments(PalmTrainingArguments, recipe.overrides, names, "")
    check_arguments(PalmTrainingArguments, recipe.training, names, "training")
    for stage, settings in recipe.stages.items():
        check_arguments(
            PalmTrainingArguments, settings, [name for name in names if name not in _OF_ALL_STAGES], f"stages.{stage}"
        )
    for block in (recipe.overrides, recipe.training):
        if block.get("output_dir", "palm_output") in (None, ""):
            raise ConfigError("output_dir is empty (an unset variable?). Name a folder.")
    check_data(recipe.data)
    check_block(recipe.model, MODEL_KEYS, "model")
    if not recipe.order:
        raise ConfigError("skip_stages leaves no stage to train.")
    sources = [name for name in ("path", "backbones") if recipe.model.get(name)]
    if len(sources) == 2:
        raise ConfigError("model has both `path` and `backbones`. A checkpoint brings its backbones: remove one.")
    if not sources and not recipe.model.get("processor"):
        raise ConfigError(
            "model needs `path` (a PALM checkpoint), `backbones` (vision, text, decoder), or, for a model from "
            "scratch, `config` and `processor` (the folder of a PalmProcessor)."
        )
    backbones = recipe.model.get("backbones")
    if backbones:
        absent = [name for name in BACKBONE_KEYS if not backbones.get(name)]
        check_keys(list(backbones), BACKBONE_KEYS, "model.backbones")
        if absent:
            raise ConfigError(f"model.backbones lacks {', '.join(absent)}; PALM needs vision, text and decoder.")
        check_block(backbones, BACKBONE_KEYS, "model.backbones")
    if "training_stage" in (recipe.model.get("config") or {}):
        raise ConfigError(
            "model.config.training_stage cannot be set: a checkpoint says itself which stage it finished. To leave "
            "stages out use skip_stages."
        )


# One folder and one order for the whole recipe.
_OF_ALL_STAGES = ("output_dir", "skip_stages")


def planned_config(recipe: PalmRecipe) -> PalmConfig:
    """The configuration that the recipe's model will start with, from configurations alone: no weight is read.

    Raises:
        ConfigError: a key or value of `model.config` that cannot work; names and says why.
        CheckpointError: `model.path` or `model.processor` is no checkpoint of that kind.
    """
    from ..modeling.palm import PalmConfig
    from ..modeling.palm.convert_palm import read_backbone_configs

    settings = deepcopy(recipe.model.get("config") or {})
    check_keys(list(settings), [item.name for item in fields(PalmConfig)], "model.config")
    processor = load_processor(recipe.model["processor"]) if recipe.model.get("processor") else None
    if recipe.model.get("path"):
        try:
            config = read_palm_config(recipe.model["path"], **settings)
        except ConfigError as error:
            raise ConfigError(f"model.config: {error}") from error
        processor = processor or load_processor(recipe.model["path"])
    else:
        try:
            if recipe.model.get("backbones"):
                parts: dict[str, Any] = read_backbone_configs(**recipe.model["backbones"])
                clashing = sorted(parts.keys() & settings.keys())
                if clashing:
                    raise ConfigError(
                        f"model.config.{clashing[0]} cannot be set: model.backbones brings it. Remove it."
                    )
                config = PalmConfig(**parts, **settings)
            else:
                config = PalmConfig(**_with_vocabularies(settings, processor))
        except UNUSABLE as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"The model of the recipe cannot be built: {one_line(error)}") from error
    if processor is not None:
        check_vocabularies(config, processor)
    return config


def load_start(
    recipe: PalmRecipe, seed: int, *, initialize_prototypes: bool = True
) -> tuple[PalmForReportGeneration, PalmProcessor]:
    """The model and processor that the first stage starts from.

    Args:
        recipe: see `PalmRecipe`.
        seed: for the weights that no checkpoint brings; every process and every resumed run gets the same.
        initialize_prototypes: whether prototypes of a model from backbones start from the encoded pathology names.

    Raises:
        ConfigError: `model.config` holds a setting that cannot work, or the backbones cannot be read.
        CheckpointError: `model.path` is not a PALM checkpoint, or `model.processor` not the folder of a processor.
    """
    from transformers import set_seed

    from ..modeling.palm import PalmConfig, PalmForReportGeneration, PalmProcessor

    settings = deepcopy(recipe.model.get("config") or {})
    given = recipe.model.get("processor")
    set_seed(seed)
    if recipe.model.get("path"):
        check_keys(list(settings), [item.name for item in fields(PalmConfig)], "model.config")
        return load_palm(recipe.model["path"], **settings), load_processor(given or recipe.model["path"])
    processor: Any = load_processor(given) if given else None
    try:
        if recipe.model.get("backbones"):
            backbones = recipe.model["backbones"]
            model = PalmForReportGeneration.from_backbones(
                **backbones, initialize_prototypes=initialize_prototypes, **settings
            )
            return model, processor or PalmProcessor.from_backbones(**backbones)
        return PalmForReportGeneration(PalmConfig(**_with_vocabularies(settings, processor))), processor
    # A value of the wrong type can fail anywhere in the backbones' configurations.
    except UNUSABLE as error:
        raise ConfigError(f"The model of the recipe cannot be built: {one_line(error)}") from error


def _with_vocabularies(settings: dict[str, Any], processor: Any) -> dict[str, Any]:
    """Vocabulary sizes and special tokens of a model from scratch, which only its tokenizers know."""
    for name in ("decoder_config", "text_config"):
        if not isinstance(settings.setdefault(name, {}), dict):
            raise ConfigError(f"model.config.{name} must be a block of settings, not {settings[name]!r}.")
    decoder = settings["decoder_config"]
    decoder.setdefault("vocab_size", len(processor.tokenizer))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        decoder.setdefault(name, getattr(processor.tokenizer, name))
    settings["text_config"].setdefault("vocab_size", len(processor.text_tokenizer))
    return settings


def run_recipe(
    recipe: PalmRecipe, stages: Sequence[str] | None = None, *, say: Callable[[str], None] = logger.info
) -> dict[str, Path]:
    """Train the stages of a recipe in order, each from the one before.

    A stage whose folder holds a finished model is left as it is; one that was interrupted goes on from its last
    checkpoint. So the same call, made again, completes a run.

    Args:
        recipe: see `PalmRecipe`.
        stages: only these; all of `recipe.order` by default.
        say: called with one line of progress at a time, in the main process.

    Returns:
        Stage to the folder of its finished model, for the stages asked for.

    Raises:
        RrgError: see `PalmTrainer`. Settings of every stage are checked before the first one starts.
        KeyboardInterrupt: after a checkpoint has been written.
    """
    from transformers import PrinterCallback
    from transformers.trainer_utils import get_last_checkpoint

    from ..data.pixel_cache import cache_pixel_values
    from .palm_trainer import PalmTrainer

    check_recipe(recipe)
    stages = list(recipe.order if stages is None else stages)
    check_keys(stages, STAGES, "PALM's list of stages")
    arguments = {stage: recipe.arguments(stage) for stage in stages}
    folders = {stage: recipe.output_dir / stage for stage in STAGES}
    waiting = [stage for stage in stages if not is_finished(folders[stage], stage)]
    for index, stage in enumerate(stages):
        if stage in waiting:
            continue
        stale = [name for name in stages[:index] if name in waiting]
        if stale:
            raise ConfigError(
                f"{folders[stage]} holds a finished stage, but {', '.join(stale)}, from which it starts, is "
                "not finished there. Delete that folder to train both, or choose another output_dir."
            )
        say(f"{stage}: finished earlier in {folders[stage]}; delete that folder to train it again.")
    check_output_dir(recipe.output_dir)
    if waiting:
        _check_plan(recipe, [arguments[stage] for stage in waiting], _start_folder(recipe, waiting[0]))
    train_dataset, eval_dataset = load_data(recipe.data) if waiting else (None, None)
    cached = False
    for stage in waiting:
        args = arguments[stage]
        start = _start_folder(recipe, stage)
        if start:
            model, processor = load_palm(start, **_free_settings(recipe)), load_processor(start)
        else:
            model, processor = load_start(recipe, args.seed, initialize_prototypes=args.initialize_prototypes)
        if args.cache_pixel_values and not cached:
            train_dataset = cache_pixel_values(train_dataset, processor)
            eval_dataset = None if eval_dataset is None else cache_pixel_values(eval_dataset, processor)
            cached = True
        trainer = PalmTrainer(
            model, args, train_dataset=train_dataset, eval_dataset=eval_dataset, processing_class=processor
        )
        if args.disable_tqdm:
            trainer.remove_callback(PrinterCallback)  # it would print every line of train_log.jsonl instead
        checkpoint = get_last_checkpoint(str(folders[stage])) if folders[stage].is_dir() else None
        source = f"goes on from {Path(checkpoint).name}" if checkpoint else f"starts from {start or _RECIPE_MODEL}"
        say(f"{stage}: {source}")
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        state = trainer.state
        line = f"{stage}: finished at step {state.global_step}"
        if state.best_metric is not None:
            line += f", best {args.metric_for_best_model} {state.best_metric:.4f} at step {state.best_global_step}"
        say(f"{line}; model in {folders[stage]}")
    return {stage: folders[stage] for stage in stages}


_RECIPE_MODEL = "the recipe's model"


def _start_folder(recipe: PalmRecipe, stage: str) -> Path | None:
    """The finished stage of this run that a stage starts from; None for the recipe's own model."""
    earlier = [name for name in recipe.order if STAGES.index(name) < STAGES.index(stage)]
    finished = [recipe.output_dir / name for name in earlier if is_finished(recipe.output_dir / name, name)]
    return finished[-1] if finished else None


def _check_plan(recipe: PalmRecipe, plan: Sequence[PalmTrainingArguments], start: Path | None) -> None:
    """What can be known to fail before models and data are loaded.

    Args:
        recipe: the run.
        plan: arguments of the stages to train.
        start: folder that the first of them starts from; None for the recipe's own model.

    Raises:
        RrgError: the first thing that cannot work.
    """
    from .palm_stages import check_decoder_lengths

    streaming = recipe.data.get("streaming")
    for args in plan:
        if streaming and args.max_steps < 1:
            raise ConfigError(
                f"data.streaming is true, so nobody knows the length of the data: set max_steps for {args.stage}."
            )
        if streaming and args.cache_pixel_values:
            raise ConfigError("cache_pixel_values keeps a whole data set in memory, but data.streaming is true.")
        check_optimization(args)
    config = read_palm_config(start, **_free_settings(recipe)) if start else planned_config(recipe)
    for args in plan:
        if args.stage == "generate":
            check_decoder_lengths(args, config.decoder_config.n_positions)


def _free_settings(recipe: PalmRecipe) -> Mapping[str, Any]:
    """What `model.config` may still change once a checkpoint has its shapes."""
    free = {
        "alignment",
        "alignment_temperature",
        "sinkhorn_epsilon",
        "sinkhorn_max_iterations",
        "alignment_queue_size",
        "gather_embeddings",
        "mem_mask_ratio",
        "mem_mask_strategy",
        "fusion_dropout",
    }
    return {name: value for name, value in (recipe.model.get("config") or {}).items() if name in free}
