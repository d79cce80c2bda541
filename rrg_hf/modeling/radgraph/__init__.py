"""RadGraph: configuration, network, words and segments of a report, and the converter of published archives."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Before any module of this folder: their imports would load it half-way, and its registration hook needs them whole.
import transformers.models.auto.configuration_auto  # noqa: F401

if TYPE_CHECKING:
    from .configuration_radgraph import RadGraphConfig
    from .convert_radgraph import convert_radgraph
    from .modeling_radgraph import RadGraphModel, RadGraphOutput, RadGraphPreTrainedModel
    from .words_radgraph import split_words

# public name -> the module that defines it; loaded on first use
_PUBLIC = {
    "RadGraphConfig": "configuration_radgraph",
    "RadGraphModel": "modeling_radgraph",
    "RadGraphOutput": "modeling_radgraph",
    "RadGraphPreTrainedModel": "modeling_radgraph",
    "convert_radgraph": "convert_radgraph",
    "split_words": "words_radgraph",
}

__all__ = [
    "RadGraphConfig",
    "RadGraphModel",
    "RadGraphOutput",
    "RadGraphPreTrainedModel",
    "convert_radgraph",
    "split_words",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("transformers.models.auto.modeling_auto")  # for the reason above
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value
