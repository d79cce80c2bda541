"""Training. Each method has `<method>_config.py` and `<method>_trainer.py`."""

from __future__ import annotations

from .lead_config import LeadTrainingArguments
from .lead_loading import load_lead
from .lead_trainer import LeadTrainer
from .palm_config import PalmTrainingArguments
from .palm_loading import load_palm
from .palm_trainer import PalmTrainer

__all__ = [
    "LeadTrainer",
    "LeadTrainingArguments",
    "PalmTrainer",
    "PalmTrainingArguments",
    "load_lead",
    "load_palm",
]
