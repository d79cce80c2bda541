"""A LEAD run described by one YAML file: which backbone, which of LEAD's parts, which data, and the training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..metrics.artifacts import require_prepared
from .checkpoints import is_finished, read_metadata
from .lead_config import LeadTrainingArguments
from .lead_loading import lead_config, load_lead, load_lead_processor
from .palm_loading import UNUSABLE, one_line, read_config_json
from .preflight import check_optimization, check_output_dir
from .recipe_file import DATA_KEYS, apply_override, check_arguments, check_block, check_data, load_data, read_blocks
from .setting_types import check_keys

logger = logging.getLogger(__name__)

MODEL_KEYS: dict[str, Any] = {
    "path": str,
    "revision": str | None,
    "dtype": str,
    "attn_implementation": str | None,
    "load_in_4bit": bool,
    "lead": dict | None,
    "processor": dict | None,
}
# Fields of `LeadConfig`, which checks what the values mean.
LEAD_KEYS: dict[str, Any] = {
    "expert_names": list,
    "expert_hidden_size": int,
    "projection": str,
    "projection_rank": int | None,
    "fusion": str,
    "gate_type": str,
    "gate_rank": int | None,
    "token_interaction": bool,
    "expert_loss_weight": float,
    "expert_prompting": bool,
    "expert_threshold": float,
}
PROCESSOR_KEYS: dict[str, Any] = {"image_size": int | None, "prompt": str | None, "system_prompt": str | None}
DTYPES = ("float32", "bfloat16", "float16", "auto")
BLOCKS = ("model", "data", "training")


@dataclass
class LeadRecipe:
    """The parts of a recipe file, checked for unknown keys.

    Args:
        model: `path` of a plain backbone or a LEAD checkpoint (folder or Hub id), `revision`, `dtype` ("float32"),
            `attn_implementation`, `load_in_4bit`; `lead` holds fields of `LeadConfig`, `processor` the processor's
            `image_size`, `prompt` and `system_prompt`.
        data: `train_dataset` (a saved data set or Hub id), `split` ("train"), `eval_dataset` (the same by default),
            `eval_split` ("validation"; null for none), `streaming` (false).
        training: fields of `LeadTrainingArguments`.
    """

    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> LeadTrainingArguments:
        """The training arguments.

        Raises:
            ConfigError: a setting that cannot work.
        """
        return LeadTrainingArguments.from_mapping({"output_dir": "lead_output", **self.training})


def load_lead_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> LeadRecipe:
    """Read a recipe file and apply overrides.

    Args:
        path: the YAML file.
        overrides: "key=value". A plain key is a training argument (or a key of `data`); "model.path",
            "model.lead.fusion" and "data.split" name one place.

    Raises:
        ConfigError: no such file, no valid YAML, or an unknown key (the message names the nearest valid one).
    """
    recipe = LeadRecipe(**read_blocks(path, BLOCKS))
    blocks = {name: getattr(recipe, name) for name in BLOCKS}
    for override in overrides:
        apply_override(blocks, recipe.training, override)
    check_lead_recipe(recipe)
    return recipe


def check_lead_recipe(recipe: LeadRecipe) -> None:
    """Refuse unknown keys, values of the wrong type and missing parts, before anything is loaded.

    Raises:
        ConfigError: the first thing that cannot work.
    """
    names = [item.name for item in LeadTrainingArguments.settings()]
    check_keys(list(recipe.training), [*names, *DATA_KEYS], "training")
    check_arguments(LeadTrainingArguments, recipe.training, names, "training")
    if recipe.training.get("output_dir", "lead_output") in (None, ""):
        raise ConfigError("output_dir is empty (an unset variable?). Name a folder.")
    check_data(recipe.data)
    check_block(recipe.model, MODEL_KEYS, "model")
    if not recipe.model.get("path"):
        raise ConfigError(
            "model.path is missing: the folder or Hub id of a plain backbone (such as Qwen/Qwen3-VL-2B-Instruct) or "
            "of a LEAD checkpoint."
        )
    dtype = recipe.model.get("dtype", "float32")
    if dtype not in DTYPES:
        raise ConfigError(f"model.dtype is {dtype!r}; choose one of {', '.join(DTYPES)}.")
    for name, kinds in (("lead", LEAD_KEYS), ("processor", PROCESSOR_KEYS)):
        check_block(recipe.model.get(name) or {}, kinds, f"model.{name}")


def load_lead_start(recipe: LeadRecipe, args: LeadTrainingArguments) -> tuple[Any, Any]:
    """Model and processor that training starts from.

    Raises:
        ConfigError, CheckpointError: see `load_lead` and `load_lead_processor`.
    """
    from transformers import set_seed

    model = recipe.model
    kwargs: dict[str, Any] = {}
    if model.get("attn_implementation"):
        kwargs["attn_implementation"] = model["attn_implementation"]
    if model.get("load_in_4bit"):
        kwargs["quantization_config"] = four_bit(args)
    set_seed(args.seed)  # LEAD's fresh parts start the same in every process and every resumed run
    processor = load_lead_processor(model["path"], revision=model.get("revision"), **(model.get("processor") or {}))
    loaded = load_lead(
        model["path"],
        model.get("lead"),
        revision=model.get("revision"),
        dtype=model.get("dtype", "float32"),
        **kwargs,
    )
    return loaded, processor


def four_bit(args: LeadTrainingArguments) -> Any:
    """The quantization of a frozen language model: NF4, with what trains left whole.

    Raises:
        ConfigError: bitsandbytes is missing, or the mode trains what would be quantized.
    """
    import importlib.util

    from transformers import BitsAndBytesConfig

    if not args.uses_lora:
        raise ConfigError(
            f"load_in_4bit does not go with training_mode {args.training_mode!r}: use 'llm' or 'hybrid', which train "
            "LoRA beside the quantized weights."
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("load_in_4bit needs bitsandbytes, which is not installed. Run: pip install bitsandbytes")
    whole = ["lm_head", "lead_experts", "lead_fusion", "visual", "vision_tower", "multi_modal_projector"]
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype="bfloat16",
        llm_int8_skip_modules=whole,
    )


def check_same_model(there: Path, folder: Path, recipe: LeadRecipe, args: LeadTrainingArguments) -> None:
    """Refuse to take the run in a folder for one of another row: other settings of `lead`, or another training mode.

    Args:
        there: the checkpoint that would be left as it is or gone on from.
        folder: the output folder, for the message.
        recipe: what was asked for.
        args: its training arguments.

    Raises:
        ConfigError: names each setting that differs.
    """
    from ..modeling.lead import LeadConfig

    asked = recipe.model.get("lead") or {}
    try:
        wanted = {name: LeadConfig(**asked).to_dict()[name] for name in asked}
    except UNUSABLE as error:
        raise ConfigError(f"These settings of model.lead cannot work: {one_line(error)}") from error
    held = read_config_json(there).get("lead_config") or {}
    hyperparameters = (read_metadata(there) or {}).get("hyperparameters") or {}  # those that are not the default
    mode = hyperparameters.get("training_mode", LeadTrainingArguments.training_mode)
    pairs = {f"model.lead.{name}": (held.get(name), value) for name, value in wanted.items() if name in held}
    pairs["training_mode"] = (mode, args.training_mode)
    other = [f"{name} {old!r}, not {new!r}" for name, (old, new) in pairs.items() if old != new]
    if other:
        raise ConfigError(
            f"{folder} holds a run of another model ({'; '.join(other)}). Choose another training.output_dir, or "
            "delete that folder."
        )


def run_lead_recipe(recipe: LeadRecipe, *, say: Callable[[str], None] = logger.info) -> Path:
    """Train by a recipe. A finished run is left as it is; an interrupted one goes on from its last checkpoint.

    Args:
        recipe: see `LeadRecipe`.
        say: called with one line of progress at a time, in the main process.

    Returns:
        The folder of the trained model.

    Raises:
        RrgError: see `LeadTrainer`. Settings are checked before weights and data are read.
        KeyboardInterrupt: after a checkpoint has been written.
    """
    from transformers import PrinterCallback
    from transformers.trainer_utils import get_last_checkpoint

    from .lead_trainer import LeadTrainer

    check_lead_recipe(recipe)
    args = recipe.arguments()
    folder = Path(str(args.output_dir))
    checkpoint = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    finished = is_finished(folder, LeadTrainer.method)
    if finished or checkpoint:
        check_same_model(folder if finished else Path(str(checkpoint)), folder, recipe, args)
    if finished:
        say(f"finished earlier in {folder}; delete that folder to train it again.")
        return folder
    if recipe.data.get("streaming") and args.max_steps < 1:
        raise ConfigError("data.streaming is true, so nobody knows the length of the data: set max_steps.")
    if recipe.model.get("load_in_4bit"):
        four_bit(args)
    check_output_dir(folder)
    check_optimization(args)
    config = lead_config(recipe.model["path"], recipe.model.get("lead"), revision=recipe.model.get("revision"))
    if args.label_source == "chexbert" and config.lead_config.expert_loss_weight > 0:
        require_prepared("chexbert", args.label_model)
    train_dataset, eval_dataset = load_data(recipe.data)
    model, processor = load_lead_start(recipe, args)
    trainer = LeadTrainer(
        model, args, train_dataset=train_dataset, eval_dataset=eval_dataset, processing_class=processor
    )
    if args.disable_tqdm:
        trainer.remove_callback(PrinterCallback)  # it would print every line of train_log.jsonl instead
    # PEFT keeps the originals of the modules that train whole; they are no part of the model
    named = trainer.report_model.named_parameters()
    weights = [weight for name, weight in named if ".original_module." not in name]
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    say(f"training_mode {args.training_mode}: {trained:,} of {sum(w.numel() for w in weights):,} parameters train")
    say(f"goes on from {Path(checkpoint).name}" if checkpoint else f"starts from {recipe.model['path']}")
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    state = trainer.state
    line = f"finished at step {state.global_step}"
    if state.best_metric is not None:
        line += f", best {args.metric_for_best_model} {state.best_metric:.4f} at step {state.best_global_step}"
    say(f"{line}; model in {folder}")
    return folder
