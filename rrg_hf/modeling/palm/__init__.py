"""PALM: configuration, model, processor, and the two training stages before report generation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Before any module of this folder: their imports would load it half-way, and its registration hook needs them whole.
import transformers.models.auto.configuration_auto  # noqa: F401

if TYPE_CHECKING:
    from .alignment_palm import PalmAlignmentOutput, PalmForAlignment
    from .configuration_palm import PalmConfig
    from .masked_evidence_palm import PalmForMaskedEvidenceModeling, PalmMaskedEvidenceOutput
    from .modeling_palm import PalmForReportGeneration, PalmModel, PalmPreTrainedModel
    from .processing_palm import PalmProcessor

# public name -> the module that defines it; loaded on first use, so that inference never imports training code
_PUBLIC = {
    "PalmAlignmentOutput": "alignment_palm",
    "PalmConfig": "configuration_palm",
    "PalmForAlignment": "alignment_palm",
    "PalmForMaskedEvidenceModeling": "masked_evidence_palm",
    "PalmForReportGeneration": "modeling_palm",
    "PalmMaskedEvidenceOutput": "masked_evidence_palm",
    "PalmModel": "modeling_palm",
    "PalmPreTrainedModel": "modeling_palm",
    "PalmProcessor": "processing_palm",
}

__all__ = [
    "PalmAlignmentOutput",
    "PalmConfig",
    "PalmForAlignment",
    "PalmForMaskedEvidenceModeling",
    "PalmForReportGeneration",
    "PalmMaskedEvidenceOutput",
    "PalmModel",
    "PalmPreTrainedModel",
    "PalmProcessor",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("transformers.models.auto.modeling_auto")  # for the reason above
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value
