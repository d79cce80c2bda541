"""Configuration of CheXbert: a BERT encoder with one classifier per observation."""

from __future__ import annotations

from typing import Any

import transformers.models.auto.configuration_auto  # noqa: F401 (first: BERT's modules need it whole)
from transformers.models.bert.configuration_bert import BertConfig

# CheXpert's observations in the order of CheXbert's heads. `rrg_hf.observations.OBSERVATIONS` holds the same names;
# this folder must load alone.
OBSERVATION_NAMES: tuple[str, ...] = (
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
    "No Finding",
)
CLASS_NAMES: tuple[str, ...] = ("blank", "positive", "negative", "uncertain")


class CheXbertConfig(BertConfig):
    r"""Configuration of a [`CheXbertForReportLabeling`]; a `BertConfig` (default: bert-base-uncased) with two fields.

    Source: "CheXbert: Combining Automatic Labelers and Expert Annotations for Accurate Radiology Report Labeling
    Using BERT" (Smit et al. 2020).

    Args:
        observation_names (`list[str]`, *optional*):
            One head per name. Defaults to the 14 CheXpert observations.
        head_classes (`list[int]`, *optional*):
            Classes of each head: 4 (blank, positive, negative, uncertain), or 2 (blank, positive) for "No Finding".
    """

    model_type = "chexbert"

    observation_names: list[str] | tuple[str, ...] = OBSERVATION_NAMES
    head_classes: list[int] | tuple[int, ...] = (*[4] * 13, 2)

    def __post_init__(self, **kwargs: Any) -> None:
        self.observation_names = list(self.observation_names)
        self.head_classes = list(self.head_classes)
        if len(self.observation_names) != len(self.head_classes):
            raise ValueError(
                f"{len(self.observation_names)} `observation_names` but {len(self.head_classes)} `head_classes`."
            )
        wrong = [count for count in self.head_classes if count not in (2, len(CLASS_NAMES))]
        if wrong:
            raise ValueError(f"`head_classes` are 2 or {len(CLASS_NAMES)}, got {wrong}.")
        super().__post_init__(**kwargs)


__all__ = ["CLASS_NAMES", "OBSERVATION_NAMES", "CheXbertConfig"]
