"""Loading LEAD models and processors for training: from a plain backbone or a LEAD checkpoint, strictly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from safetensors import SafetensorError

from ..errors import CheckpointError, ConfigError
from ..modeling.lead.adapter_lead import is_adapter
from .palm_loading import UNUSABLE, one_line, read_config_json
from .setting_types import check_keys

# model_type of a plain backbone or of its LEAD model -> name in the classes
_FAMILIES = {
    "qwen3_vl": "Qwen3VL",
    "internvl": "InternVL",
    "mistral3": "Mistral3",
}


def lead_family(path: str | os.PathLike[str], *, revision: str | None = None) -> tuple[str, bool]:
    """("Qwen3VL" | "InternVL" | "Mistral3", whether it is a LEAD checkpoint), from config.json alone.

    Raises:
        CheckpointError: no checkpoint there, or one of another architecture.
    """
    kind = str(read_config_json(path, revision=revision).get("model_type", "an unnamed architecture"))
    family = _FAMILIES.get(kind.removeprefix("lead_"))
    if family is None:
        raise CheckpointError(
            f"{os.fspath(path)} is a checkpoint of {kind!r}. LEAD stands on {', '.join(sorted(_FAMILIES))} "
            "backbones (Qwen3-VL, InternVL in its -hf form, Mistral 3 and Ministral 3)."
        )
    return family, kind.startswith("lead_")


def lead_config(
    path: str | os.PathLike[str], settings: Mapping[str, Any] | None = None, *, revision: str | None = None
) -> Any:
    """The configuration that a model will start with; no weight is read.

    Args:
        path: folder or Hub id of a plain backbone or of a LEAD checkpoint.
        settings: fields of `LeadConfig` to change.
        revision: Hub branch, tag or commit.

    Raises:
        CheckpointError: see `lead_family`.
        ConfigError: a setting that does not exist or cannot work.
    """
    from ..modeling import lead

    family, _ = lead_family(path, revision=revision)
    known = [item.name for item in fields(lead.LeadConfig) if item.name in lead.LeadConfig.__annotations__]
    check_keys(list(settings or {}), known, "model.lead")
    config_class = getattr(lead, f"Lead{family}Config")
    try:
        config = config_class.from_pretrained(os.fspath(path), revision=revision)
        if settings:
            block = {**config.lead_config.to_dict(), **settings}
            block.pop("model_type", None)
            config.lead_config = lead.LeadConfig(**block)
    except UNUSABLE as error:
        raise ConfigError(f"These settings cannot work for {os.fspath(path)}: {one_line(error)}") from error
    return config


def load_lead(
    path: str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    *,
    revision: str | None = None,
    dtype: Any = "float32",
    **kwargs: Any,
) -> Any:
    """A LEAD model from a plain backbone, whose LEAD parts start fresh, or from a LEAD checkpoint.

    Args:
        path: folder or Hub id.
        settings: fields of `LeadConfig` to change. A LEAD checkpoint keeps its shapes.
        revision: Hub branch, tag or commit.
        dtype: of the weights; "float32", "bfloat16", "float16" or "auto".
        **kwargs: passed to `from_pretrained` (`attn_implementation`, `device_map`, `quantization_config`, ...).

    Raises:
        CheckpointError: no checkpoint there, another architecture, or weights that are damaged or incomplete.
        ConfigError: a setting that cannot work.
    """
    from ..modeling import lead

    name = os.fspath(path)
    if is_adapter(name, revision=revision):
        raise CheckpointError(
            f"{name} is an adapter. Training starts from whole models: give the merged one, which a finished run has "
            "in its output folder (with merge_adapter, the default)."
        )
    config = lead_config(path, settings, revision=revision)
    family, is_lead = lead_family(path, revision=revision)
    model_class = getattr(lead, f"Lead{family}ForCausalLM")
    loaded: Any
    try:
        loaded = model_class.from_pretrained(
            name, config=config, revision=revision, dtype=dtype, output_loading_info=True, **kwargs
        )
    except (RuntimeError, SafetensorError, ImportError, *UNUSABLE) as error:
        raise CheckpointError(f"The checkpoint {name} cannot be loaded: {one_line(error)}") from error
    model, info = loaded
    left = sorted(info["unexpected_keys"]) if is_lead else []
    if left:
        raise CheckpointError(
            f"{name} has {len(left)} trained weights that these settings of `lead` have no place for, first "
            f"{left[:3]}. A LEAD checkpoint keeps its shapes: leave its settings, or start from the plain backbone."
        )
    missing = sorted(info["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise CheckpointError(
            f"The weights of {name} are incomplete: {len(missing)} are missing, first {missing[:3]}."
            + (" The settings of `lead` may ask for parts that it was not trained with." if is_lead else "")
        )
    return model


def load_lead_processor(path: str | os.PathLike[str], *, revision: str | None = None, **settings: Any) -> Any:
    """The LEAD processor of a plain backbone or of a LEAD checkpoint.

    Args:
        path: folder or Hub id.
        revision: Hub branch, tag or commit.
        **settings: of the processor (`image_size`, `prompt`, `system_prompt`).

    Raises:
        CheckpointError: no processor there, or damaged files.
    """
    from ..modeling import lead

    family, _ = lead_family(path, revision=revision)
    processor_class = getattr(lead, f"Lead{family}Processor")
    try:
        return processor_class.from_pretrained(os.fspath(path), revision=revision, **settings)
    except (ImportError, *UNUSABLE) as error:
        raise CheckpointError(
            f"No processor could be loaded from {os.fspath(path)!r} ({one_line(error)}). Give the folder of a "
            "checkpoint, with all its files."
        ) from error
