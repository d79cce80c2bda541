"""rrg_hf: faithful radiology report generation, native to the Hugging Face ecosystem.

Scope: chest X-ray first, English, research only, not a medical device.

Public names load on first use, so `import rrg_hf` is instant. Importing it also makes the transformers Auto classes
(`AutoModel`, `AutoModelForImageTextToText`, `AutoProcessor`, ...) know the model types of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _auto

if TYPE_CHECKING:
    from .data.images import read_image
    from .modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling
    from .modeling.lead import (
        LeadConfig,
        LeadInternVLForCausalLM,
        LeadInternVLProcessor,
        LeadMistral3ForCausalLM,
        LeadMistral3Processor,
        LeadQwen3VLConfig,
        LeadQwen3VLForCausalLM,
        LeadQwen3VLProcessor,
    )
    from .modeling.palm import PalmConfig, PalmForReportGeneration, PalmModel, PalmProcessor
    from .modeling.radgraph import RadGraphConfig, RadGraphModel
    from .pipeline import ReportGenerationPipeline
    from .text.rules import label_report
    from .text.sections import parse_sections
    from .trainers import LeadTrainer, LeadTrainingArguments, PalmTrainer, PalmTrainingArguments

__version__ = "0.1.0"

# public name -> the module that defines it
_PUBLIC = {
    "CheXbertConfig": "modeling.chexbert",
    "CheXbertForReportLabeling": "modeling.chexbert",
    "LeadConfig": "modeling.lead",
    "LeadInternVLForCausalLM": "modeling.lead",
    "LeadInternVLProcessor": "modeling.lead",
    "LeadMistral3ForCausalLM": "modeling.lead",
    "LeadMistral3Processor": "modeling.lead",
    "LeadQwen3VLConfig": "modeling.lead",
    "LeadQwen3VLForCausalLM": "modeling.lead",
    "LeadQwen3VLProcessor": "modeling.lead",
    "LeadTrainer": "trainers",
    "LeadTrainingArguments": "trainers",
    "PalmConfig": "modeling.palm",
    "PalmForReportGeneration": "modeling.palm",
    "PalmModel": "modeling.palm",
    "PalmProcessor": "modeling.palm",
    "PalmTrainer": "trainers",
    "PalmTrainingArguments": "trainers",
    "RadGraphConfig": "modeling.radgraph",
    "RadGraphModel": "modeling.radgraph",
    "ReportGenerationPipeline": "pipeline",
    "label_report": "text.rules",
    "parse_sections": "text.sections",
    "read_image": "data.images",
}

__all__ = [
    "CheXbertConfig",
    "CheXbertForReportLabeling",
    "LeadConfig",
    "LeadInternVLForCausalLM",
    "LeadInternVLProcessor",
    "LeadMistral3ForCausalLM",
    "LeadMistral3Processor",
    "LeadQwen3VLConfig",
    "LeadQwen3VLForCausalLM",
    "LeadQwen3VLProcessor",
    "LeadTrainer",
    "LeadTrainingArguments",
    "PalmConfig",
    "PalmForReportGeneration",
    "PalmModel",
    "PalmProcessor",
    "PalmTrainer",
    "PalmTrainingArguments",
    "RadGraphConfig",
    "RadGraphModel",
    "ReportGenerationPipeline",
    "label_report",
    "parse_sections",
    "read_image",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rrg_hf' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


_auto.install()
