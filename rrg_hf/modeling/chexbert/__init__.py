"""CheXbert: configuration, network, and the converter of the published checkpoint."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Before any module of this folder: their imports would load it half-way, and its registration hook needs them whole.
import transformers.models.auto.configuration_auto  # noqa: F401

if TYPE_CHECKING:
    from .configuration_chexbert import CheXbertConfig
    from .convert_chexbert import convert_chexbert
    from .modeling_chexbert import CheXbertForReportLabeling, CheXbertOutput

# public name -> the module that defines it; loaded on first use
_PUBLIC = {
    "CheXbertConfig": "configuration_chexbert",
    "CheXbertForReportLabeling": "modeling_chexbert",
    "CheXbertOutput": "modeling_chexbert",
    "convert_chexbert": "convert_chexbert",
}

__all__ = [
    "CheXbertConfig",
    "CheXbertForReportLabeling",
    "CheXbertOutput",
    "convert_chexbert",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("transformers.models.auto.modeling_auto")  # for the reason above
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value
