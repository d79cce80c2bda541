"""CheXbert: a report in, one class per observation and a report vector out.

Source: "CheXbert: Combining Automatic Labelers and Expert Annotations for Accurate Radiology Report Labeling Using
BERT" (Smit et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers.models.auto.modeling_auto  # noqa: F401 (first: BERT's modules need it whole)
from torch import nn
from torch.nn import functional as F
from transformers.models.bert.modeling_bert import BertModel, BertPreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_chexbert import CLASS_NAMES, CheXbertConfig


@dataclass
class CheXbertOutput(ModelOutput):
    """
    Args:
        loss (`torch.FloatTensor` of shape `()`):
            Sum over the heads of their cross-entropies; with `labels`.
        logits (`torch.FloatTensor` of shape `(batch_size, num_heads, 4)`):
            Class scores of each head: blank, positive, negative, uncertain. -inf for the classes a head does not have.
        cls (`torch.FloatTensor` of shape `(batch_size, hidden_size)`):
            Last hidden state of [CLS], the report's vector of CheXbert's vector similarity.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    cls: torch.Tensor | None = None


class CheXbertForReportLabeling(BertPreTrainedModel):
    """BERT, dropout on [CLS], and one Linear per observation.

    Args:
        config: see [`CheXbertConfig`].
    """

    config: CheXbertConfig
    config_class = CheXbertConfig
    base_model_prefix = "bert"

    def __init__(self, config: CheXbertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)  # with its pooler, which the checkpoint holds and labels do not use
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.linear_heads = nn.ModuleList(nn.Linear(config.hidden_size, count) for count in config.head_classes)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> CheXbertOutput:
        """
        Args:
            input_ids: (B, L) of a bert-base-uncased tokenizer, [CLS] first.
            attention_mask: (B, L).
            token_type_ids, inputs_embeds: as in `BertModel`.
            labels: (B, num_heads) class of each head, -100 where it is not known.
        """
        outputs = self.bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        cls = outputs.last_hidden_state[:, 0]
        dropped = self.dropout(cls)
        scores = [head(dropped) for head in self.linear_heads]
        loss = None
        if labels is not None:
            loss = torch.stack(
                [
                    # a head without a known label has no mean; its sum is 0
                    F.cross_entropy(score, label, ignore_index=-100, reduction="sum")
                    / label.ne(-100).sum().clamp(min=1)
                    for score, label in zip(scores, labels.unbind(1), strict=True)
                ]
            ).sum()
        padded = [F.pad(score, (0, len(CLASS_NAMES) - score.shape[-1]), value=float("-inf")) for score in scores]
        return CheXbertOutput(loss=loss, logits=torch.stack(padded, dim=1), cls=cls)


__all__ = ["CheXbertForReportLabeling", "CheXbertOutput"]
