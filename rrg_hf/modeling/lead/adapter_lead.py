"""Loading a LEAD model from the adapter that its training saved: LoRA, and the modules that were trained whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig
from transformers.utils import (
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
    logging,
)

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: str | os.PathLike[str], *, revision: str | None = None) -> bool:
    """Whether a folder or Hub repository holds an adapter and not whole weights.

    Args:
        folder: local folder or Hub id.
        revision: Hub branch, tag or commit.
    """
    path = Path(folder)
    if path.is_dir():
        return (path / ADAPTER_CONFIG).is_file() and not any(path.glob("model*.safetensors"))
    if _find(folder, ADAPTER_CONFIG, revision) is None:
        return False
    return not any(_find(folder, name, revision) for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME))


def load_adapter(
    folder: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    merge: bool = True,
    revision: str | None = None,
    **kwargs: Any,
) -> Any:
    """The LEAD model of an adapter folder.

    Args:
        folder: adapter folder or Hub id, with its `config.json` (the LEAD model's).
        base: the model that the adapter was trained on, a plain backbone or a LEAD checkpoint; by default the one that
            `adapter_config.json` names.
        merge: return the plain LEAD model with the adapter's weights in it; else the `PeftModel` around it.
        revision: Hub branch, tag or commit of the adapter.
        **kwargs: passed to the model's `from_pretrained` (`dtype`, `device_map`, ...).

    Returns:
        The model, in evaluation mode.

    Raises:
        ImportError: peft is missing.
        OSError: a file is missing.
        ValueError: no LEAD configuration, no base, or an adapter whose tensors are not this model's.
    """
    try:
        from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    except ImportError as error:
        raise ImportError("A LEAD adapter needs peft, which is not installed. Run: pip install peft") from error
    from safetensors.torch import load_file

    from .modeling_lead import LeadInternVLForCausalLM, LeadMistral3ForCausalLM, LeadQwen3VLForCausalLM

    classes = {
        model_class.config_class.model_type: model_class
        for model_class in (LeadInternVLForCausalLM, LeadMistral3ForCausalLM, LeadQwen3VLForCausalLM)
    }
    name = os.fspath(folder)
    config = AutoConfig.from_pretrained(name, revision=revision)
    model_class: Any = classes.get(config.model_type)
    if model_class is None:
        raise ValueError(f"{name} holds an adapter of {config.model_type!r}, not of a LEAD model.")
    adapter = PeftConfig.from_pretrained(name, revision=revision)
    base = base or adapter.base_model_name_or_path
    if not base:
        raise ValueError(f"{name} does not say which model it was trained on. Name it: load_adapter(..., base=...).")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # a plain base lacks LEAD's parts, which are in the adapter; no reason to warn
    try:
        model, loading = model_class.from_pretrained(
            os.fspath(base), config=config, output_loading_info=True, **kwargs
        )
    finally:
        logging.set_verbosity(verbosity)
    incomplete = sorted(key for key in loading["missing_keys"] if "lead_" not in key)
    if incomplete:  # transformers fills them with random numbers
        raise ValueError(
            f"The weights of the base {os.fspath(base)} are incomplete: {len(incomplete)} are missing, first "
            f"{incomplete[:3]}."
        )
    if _find(name, GENERATION_CONFIG_NAME, revision) is not None:  # how its training decoded, not its base's
        model.generation_config = GenerationConfig.from_pretrained(name, revision=revision or "main")
    adapter.inference_mode = merge
    wrapped: Any = get_peft_model(model, adapter)
    state = load_file(_file(name, ADAPTER_WEIGHTS, revision))
    own = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    wrong = sorted(
        {key: tuple(value.shape) for key, value in state.items()}.items()
        ^ {key: tuple(value.shape) for key, value in own.items()}.items()
    )
    if wrong:
        raise ValueError(
            f"The adapter {name} does not fit the model it is loaded into: {len(wrong)} tensors are missing, "
            f"unexpected or of another shape, first {wrong[0][0]}. Was it trained on another base?"
        )
    set_peft_model_state_dict(wrapped, state)
    return (wrapped.merge_and_unload() if merge else wrapped).eval()


def adapter_base(folder: str | os.PathLike[str], *, revision: str | None = None) -> str | None:
    """The base model that an adapter's folder or Hub repository names.

    Raises:
        OSError, ValueError: there is no such file, or it is damaged.
    """
    content = json.loads(Path(_file(folder, ADAPTER_CONFIG, revision)).read_text(encoding="utf-8"))
    return content.get("base_model_name_or_path")


def _file(name: str | os.PathLike[str], file: str, revision: str | None) -> str:
    """The local copy of a folder's or repository's file."""
    found = cached_file(os.fspath(name), file, revision=revision)  # raises an OSError where there is none
    return str(found)


def _find(name: str | os.PathLike[str], file: str, revision: str | None) -> str | None:
    """The local copy of a folder's or repository's file, None if it has none."""
    return cached_file(
        os.fspath(name),
        file,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


__all__ = ["adapter_base", "is_adapter", "load_adapter"]
