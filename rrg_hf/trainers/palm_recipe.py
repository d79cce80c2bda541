"""A PALM run described by one YAML file: which model, which data, and the settings of the three stages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub.errors import StrictDataclassError

from ..errors import ConfigError, RrgError
from .checkpoints import check_output_dir, is_finished, load_palm
from .palm_config import STAGES, PalmTrainingArguments, check_keys

if TYPE_CHECKING:
    from ..modeling.palm import PalmForReportGeneration, PalmProcessor

logger = logging.getLogger(__name__)

MODEL_KEYS = ("path", "backbones", "config", "processor")
BACKBONE_KEYS = ("vision", "text", "decoder")
DATA_KEYS = ("train_dataset", "split", "eval_dataset", "eval_split", "streaming")
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
        skipped = self.overrides.get("skip_stages", self.training.get("skip_stages")) or []
        if isinstance(skipped, str):
            skipped = [part.strip() for part in skipped.split(",")]
        if not isinstance(skipped, (list, tuple)) or any(name not in STAGES for name in skipped):
            raise ConfigError(f"skip_stages must name stages out of {', '.join(STAGES)}; it is {skipped!r}.")
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
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"No recipe file at {file}. Start from one of examples/configs/.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file} is not valid YAML: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold the blocks {', '.join(TOP_KEYS)}; it holds {type(content).__name__}.")
    check_keys(list(content), TOP_KEYS, file.name)
    parts: dict[str, Any] = {}
    for name in TOP_KEYS:
        block = content.get(name)
        if block is not None and not isinstance(block, dict):
            raise ConfigError(f"{file.name}: `{name}` must be a block of settings, not {block!r}.")
        parts[name] = deepcopy(block or {})
    recipe = PalmRecipe(**parts)
    for override in overrides:
        _apply_override(recipe, override)
    check_recipe(recipe)
    return recipe


def _apply_override(recipe: PalmRecipe, text: str) -> None:
    key, separator, raw = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"Override {text!r} is not understood. Write key=value, for instance learning_rate=1e-4.")
    key = key.strip().replace("-", "_")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(f"Override {key}: {raw!r} is not a valid value.") from error
    *where, name = key.split(".")
    if not where:
        (recipe.data if name in DATA_KEYS else recipe.overrides)[name] = value
        return
    check_keys(where[:1], TOP_KEYS, "The recipe")
    block: Any = getattr(recipe, where[0])
    for step in where[1:]:
        block = block.setdefault(step, {})
        if not isinstance(block, dict):
            raise ConfigError(f"Override {key}: `{step}` is not a block of settings.")
    block[name] = value


def check_recipe(recipe: PalmRecipe) -> None:
    """Refuse unknown keys and missing parts, before anything is loaded.

    Raises:
        ConfigError: the first thing that cannot work.
    """
    names = {item.name for item in fields(PalmTrainingArguments) if item.init} - {"stage"}
    check_keys(list(recipe.overrides), [*names, *DATA_KEYS], "The recipe")
    check_keys(list(recipe.training), names, "training")
    check_keys(list(recipe.stages), STAGES, "stages")
    for stage, settings in recipe.stages.items():
        if settings is None:
            recipe.stages[stage] = {}
        elif not isinstance(settings, dict):
            raise ConfigError(f"stages.{stage} must be a block of settings, not {settings!r}.")
        else:
            check_keys(list(settings), names - {"output_dir"}, f"stages.{stage}")
    check_keys(list(recipe.data), DATA_KEYS, "data")
    check_keys(list(recipe.model), MODEL_KEYS, "model")
    _check_types(
        recipe.data, "data", text=("train_dataset", "split", "eval_dataset", "eval_split"), flags=("streaming",)
    )
    _check_types(recipe.model, "model", text=("path", "processor"), blocks=("backbones", "config"))
    if not recipe.data.get("train_dataset"):
        raise ConfigError("data.train_dataset is missing: name the folder of a saved data set, or a Hub data set id.")
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
        check_keys(list(backbones), BACKBONE_KEYS, "model.backbones")
        _check_types(backbones, "model.backbones", text=BACKBONE_KEYS)
        absent = [name for name in BACKBONE_KEYS if not backbones.get(name)]
        if absent:
            raise ConfigError(f"model.backbones lacks {', '.join(absent)}; PALM needs vision, text and decoder.")


def _check_types(
    block: Mapping[str, Any],
    where: str,
    *,
    text: Sequence[str] = (),
    flags: Sequence[str] = (),
    blocks: Sequence[str] = (),
) -> None:
    """Refuse values of the wrong kind; null is left to the caller.

    Raises:
        ConfigError: names the key, the value and the kind it should have.
    """
    for names, kind, wanted in ((text, str, "a text"), (flags, bool, "true or false"), (blocks, dict, "a block")):
        for name in names:
            value = block.get(name)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"{where}.{name} must be {wanted}, not {value!r}.")


def decoder_positions(recipe: PalmRecipe) -> int | None:
    """Positions of the decoder that the recipe's model has or will have, read from configurations alone.

    Returns:
        None where a checkpoint's configuration cannot be read here; loading it will say why.
    """
    from transformers import PreTrainedConfig

    settings = (recipe.model.get("config") or {}).get("decoder_config")
    settings = settings if isinstance(settings, dict) else {}
    source = recipe.model.get("path") or (recipe.model.get("backbones") or {}).get("decoder")
    if source:
        try:
            found, _ = PreTrainedConfig.get_config_dict(source)
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict):
            return None
        decoder = found.get("decoder_config", {}) if recipe.model.get("path") else found
        settings = {**decoder, **settings} if isinstance(decoder, dict) else settings
    positions = settings.get("n_positions", settings.get("max_position_embeddings", 1024))  # GPT2Config's default
    return positions if isinstance(positions, int) else None


def load_start(
    recipe: PalmRecipe, seed: int, *, initialize_prototypes: bool = True
) -> tuple[PalmForReportGeneration, PalmProcessor]:
    """The model and processor that the first stage starts from.

    Args:
        recipe: see `PalmRecipe`.
        seed: for the weights that no checkpoint brings; every process and every resumed run gets the same.
        initialize_prototypes: whether prototypes of a model from backbones start from the encoded pathology names.

    Raises:
        ConfigError: `model.config` holds a setting that cannot work.
        CheckpointError: `model.path` is not a PALM checkpoint.
    """
    from transformers import set_seed

    from ..modeling.palm import PalmConfig, PalmForReportGeneration, PalmProcessor

    settings = deepcopy(recipe.model.get("config") or {})
    processor_path = str(recipe.model.get("processor") or "")
    set_seed(seed)
    if recipe.model.get("path"):
        known = {item.name for item in fields(PalmConfig)}
        check_keys(list(settings), known, "model.config")
        model = load_palm(recipe.model["path"], **settings)
        return model, PalmProcessor.from_pretrained(processor_path or recipe.model["path"])
    try:
        if recipe.model.get("backbones"):
            backbones = recipe.model["backbones"]
            model = PalmForReportGeneration.from_backbones(
                **backbones, initialize_prototypes=initialize_prototypes, **settings
            )
            if processor_path:
                return model, PalmProcessor.from_pretrained(processor_path)
            return model, PalmProcessor.from_backbones(**backbones)
        processor = PalmProcessor.from_pretrained(processor_path)
        return PalmForReportGeneration(PalmConfig(**_with_vocabularies(settings, processor))), processor
    except RrgError:
        raise
    # A value of the wrong type can fail anywhere in the backbones' configurations.
    except (ValueError, TypeError, AttributeError, KeyError, OSError, StrictDataclassError) as error:
        raise ConfigError(f"The model of the recipe cannot be built: {' '.join(str(error).split())[:400]}") from error


def _with_vocabularies(settings: dict[str, Any], processor: Any) -> dict[str, Any]:
    """Vocabulary sizes and special tokens of a model from scratch, which only its tokenizers know."""
    decoder = settings.setdefault("decoder_config", {})
    decoder.setdefault("vocab_size", len(processor.tokenizer))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        decoder.setdefault(name, getattr(processor.tokenizer, name))
    settings.setdefault("text_config", {}).setdefault("vocab_size", len(processor.text_tokenizer))
    return settings


def load_data(recipe: PalmRecipe) -> tuple[Any, Any]:
    """Training and validation rows of a recipe; the latter None where `eval_split` is null.

    Raises:
        DataError: no such data set or split.
    """
    from ..data.store import load_studies

    data = recipe.data

    def load(source: str, split: str) -> Any:
        return load_studies(source, split, streaming=True) if data.get("streaming") else load_studies(source, split)

    train = load(data["train_dataset"], data.get("split") or "train")
    eval_split = data.get("eval_split", "validation")
    return train, None if eval_split is None else load(data.get("eval_dataset") or data["train_dataset"], eval_split)


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
    from ..modeling.palm import PalmProcessor
    from .palm_stages import check_decoder_lengths
    from .palm_trainer import PalmTrainer

    stages = list(recipe.order if stages is None else stages)
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
    if "generate" in waiting:
        check_decoder_lengths(arguments["generate"], decoder_positions(recipe))
    train_dataset, eval_dataset = load_data(recipe) if waiting else (None, None)
    cached = False
    for stage in waiting:
        args = arguments[stage]
        earlier = [name for name in recipe.order if STAGES.index(name) < STAGES.index(stage)]
        finished = [folders[name] for name in earlier if is_finished(folders[name], name)]
        if finished:
            start = str(finished[-1])
            model, processor = load_palm(start, **_free_settings(recipe)), PalmProcessor.from_pretrained(start)
        else:
            start = "the recipe's model"
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
        say(f"{stage}: " + (f"goes on from {Path(checkpoint).name}" if checkpoint else f"starts from {start}"))
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        state = trainer.state
        line = f"{stage}: finished at step {state.global_step}"
        if state.best_metric is not None:
            line += f", best {args.metric_for_best_model} {state.best_metric:.4f} at step {state.best_global_step}"
        say(f"{line}; model in {folders[stage]}")
    return {stage: folders[stage] for stage in stages}


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
