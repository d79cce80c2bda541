"""What trains in each of LEAD's training modes, and how it is stored: requires_grad flags, LoRA, merged weights."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import CheckpointError, ConfigError
from .lead_config import VISION_MODES, LeadTrainingArguments

if TYPE_CHECKING:
    from peft import PeftModel

logger = logging.getLogger(__name__)

ATTENTION_LINEARS = r"model\.language_model\.layers\.\d+\.self_attn\.\w+_proj"
_ADAPTER = "default"
_PEFT_MISSING = "LoRA needs peft, which is not installed. Run: pip install 'rrg_hf[lead]'"


def experts_learn(model: Any) -> bool:
    """Whether the experts have anything to learn from: their own loss, or a place in the decoder."""
    lead = model.config.lead_config
    return lead.fusion != "none" or lead.expert_loss_weight > 0


def trained_modules(model: Any, mode: str) -> list[str]:
    """Names of the modules that train whole in a mode: LEAD's parts, visual tower, connector.

    Args:
        model: a LEAD model.
        mode: one of `TRAINING_MODES` but "full".
    """
    inner = model.model
    names = []
    if experts_learn(model):
        names += [name for name in ("lead_experts", "lead_fusion") if getattr(inner, name, None) is not None]
    if mode in VISION_MODES:
        names.append(inner.image_tower)  # Qwen3-VL's mergers lie in it
        if hasattr(inner, "multi_modal_projector"):
            names.append("multi_modal_projector")
    return names


def set_trainable(model: Any, args: LeadTrainingArguments) -> None:
    """Set the requires_grad flags for a mode without LoRA.

    Raises:
        ConfigError: nothing would train.
    """
    if args.training_mode == "full":
        model.requires_grad_(True)
        if not experts_learn(model):
            model.model.lead_experts.requires_grad_(False)
        return
    model.requires_grad_(False)
    names = trained_modules(model, args.training_mode)
    if not names:
        raise ConfigError(
            f"training_mode {args.training_mode!r} trains LEAD's parts only, and this model (fusion 'none', "
            "expert_loss_weight 0) has none that learn. Use 'vision', 'llm' or 'hybrid'."
        )
    for name in names:
        getattr(model.model, name).requires_grad_(True)


def lora_targets(model: Any, pattern: str | None) -> list[str]:
    """Names of the linears that get LoRA.

    Args:
        model: a LEAD model.
        pattern: regular expression of whole module names; None is every attention linear of the language model.

    Raises:
        ConfigError: the pattern is none, matches nothing, or matches something outside the language model or that is
            no linear.
    """
    try:
        expression = re.compile(ATTENTION_LINEARS if pattern is None else pattern)
    except re.error as error:
        raise ConfigError(f"lora_target_modules {pattern!r} is no regular expression: {error}") from error
    found = {name: module for name, module in model.named_modules() if expression.fullmatch(name)}
    if not found:
        some = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        inside = [name for name in some if name.startswith("model.language_model.")][:3]
        raise ConfigError(
            f"lora_target_modules {expression.pattern!r} matches no module, so nothing would be adapted. Names look "
            f"like {inside}."
        )
    outside = [name for name in found if not name.startswith("model.language_model.layers.")]
    if outside:
        raise ConfigError(
            f"lora_target_modules {expression.pattern!r} matches {len(outside)} modules outside the language model's "
            f"layers, first {outside[:2]}. LEAD adapts the language model only; write 'model\\.language_model\\.' "
            "in front."
        )
    other = [name for name, module in found.items() if not isinstance(module, nn.Linear)]
    if other:
        raise ConfigError(
            f"lora_target_modules {expression.pattern!r} matches modules that are no linears, first {other[:2]}."
        )
    return list(found)


def add_lora(model: Any, args: LeadTrainingArguments) -> PeftModel:
    """LoRA on the language model, and the other parts that train as modules saved whole with the adapter.

    Raises:
        ConfigError: peft is missing, or see `lora_targets`.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError(_PEFT_MISSING) from error
    targets = lora_targets(model, args.lora_target_modules)
    wrapped = get_peft_model(
        model,
        LoraConfig(
            r=args.lora_r,
            lora_alpha=args.lora_alpha,
            lora_dropout=args.lora_dropout,
            target_modules=args.lora_target_modules or ATTENTION_LINEARS,
            modules_to_save=trained_modules(model, args.training_mode) or None,
            base_model_name_or_path=model.config._name_or_path or None,
        ),
    )
    adapted = {
        name.removeprefix("base_model.model.").rpartition(".lora_A.")[0]
        for name, _ in wrapped.named_parameters()
        if ".lora_A." in name
    }
    if adapted != set(targets):
        raise ConfigError(
            f"LoRA was to adapt {len(targets)} linears and adapted {len(adapted)}: {sorted(adapted)[:3]}."
        )
    return wrapped


def use_float32(model: nn.Module) -> None:
    """Keep what trains in float32, whatever the frozen weights are: small updates vanish in 16 bits."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """The weights of the model that an adapter makes of its base, by the base's names. The adapter stays as it is.

    Args:
        model: a PEFT model around a LEAD model.
    """
    base = model.get_base_model()
    merged: dict[str, torch.Tensor] = {}
    deltas = {
        name: module.get_delta_weight(_ADAPTER) for name, module in base.named_modules() if hasattr(module, "lora_A")
    }
    for name, value in base.state_dict().items():
        if ".lora_" in name or ".original_module." in name:
            continue
        plain = name.replace(f".modules_to_save.{_ADAPTER}", "")
        if ".base_layer." in plain:
            owner = plain.partition(".base_layer.")[0]
            plain = plain.replace(".base_layer.", ".")
            if plain.endswith(".weight"):
                value = (value.float() + deltas[owner].float()).to(value.dtype)
        merged[plain] = value.detach()
    return merged


def load_adapter_weights(model: Any, folder: Any) -> None:
    """Read a saved adapter into the model that is being trained, all of it.

    Raises:
        CheckpointError: the file is missing, or its tensors are not this model's.
    """
    from pathlib import Path

    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / "adapter_model.safetensors"
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path.parent.name} has no readable adapter ({error}).") from error
    expected = {
        name: value.shape for name, value in get_peft_model_state_dict(model, save_embedding_layers=False).items()
    }
    found = {name: value.shape for name, value in state.items()}
    if found != expected:
        wrong = sorted(found.items() ^ expected.items())
        raise CheckpointError(
            f"The adapter in {path.parent.name} is not this run's: {len(wrong)} tensors are missing, unexpected or of "
            f"another shape, first {wrong[0][0]}. Use the settings that it was trained with."
        )
    set_peft_model_state_dict(model, state)
