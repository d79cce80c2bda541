"""LEAD: pathology experts gated into every decoder layer of Qwen3-VL, InternVL and Mistral 3."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Before any module of this folder: their imports would load it half-way, and its registration hook needs them whole.
import transformers.models.auto.configuration_auto  # noqa: F401

if TYPE_CHECKING:
    from .adapter_lead import load_adapter
    from .configuration_lead import LeadConfig, LeadInternVLConfig, LeadMistral3Config, LeadQwen3VLConfig
    from .modeling_lead import (
        LeadInternVLForCausalLM,
        LeadInternVLModel,
        LeadMistral3ForCausalLM,
        LeadMistral3Model,
        LeadQwen3VLForCausalLM,
        LeadQwen3VLModel,
    )
    from .outputs_lead import LeadCausalLMOutput, LeadModelOutput
    from .processing_lead import LeadInternVLProcessor, LeadMistral3Processor, LeadQwen3VLProcessor

# public name -> the module that defines it
_PUBLIC = {
    "load_adapter": "adapter_lead",
    "LeadCausalLMOutput": "outputs_lead",
    "LeadConfig": "configuration_lead",
    "LeadInternVLConfig": "configuration_lead",
    "LeadInternVLForCausalLM": "modeling_lead",
    "LeadInternVLModel": "modeling_lead",
    "LeadInternVLProcessor": "processing_lead",
    "LeadMistral3Config": "configuration_lead",
    "LeadMistral3ForCausalLM": "modeling_lead",
    "LeadMistral3Model": "modeling_lead",
    "LeadMistral3Processor": "processing_lead",
    "LeadModelOutput": "outputs_lead",
    "LeadQwen3VLConfig": "configuration_lead",
    "LeadQwen3VLForCausalLM": "modeling_lead",
    "LeadQwen3VLModel": "modeling_lead",
    "LeadQwen3VLProcessor": "processing_lead",
}

__all__ = [
    "LeadCausalLMOutput",
    "LeadConfig",
    "LeadInternVLConfig",
    "LeadInternVLForCausalLM",
    "LeadInternVLModel",
    "LeadInternVLProcessor",
    "LeadMistral3Config",
    "LeadMistral3ForCausalLM",
    "LeadMistral3Model",
    "LeadMistral3Processor",
    "LeadModelOutput",
    "LeadQwen3VLConfig",
    "LeadQwen3VLForCausalLM",
    "LeadQwen3VLModel",
    "LeadQwen3VLProcessor",
    "load_adapter",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("transformers.models.auto.modeling_auto")  # for the reason above
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value
