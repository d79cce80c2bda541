"""Training. Each method has `<method>_config.py` and `<method>_trainer.py`."""

from __future__ import annotations

from .palm_config import PalmTrainingArguments
from .palm_loading import load_palm
from .palm_trainer import PalmTrainer

__all__ = ["PalmTrainer", "PalmTrainingArguments", "load_palm"]
