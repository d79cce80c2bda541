"""Outputs of LEAD models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.modeling_outputs import MultimodalBaseModelOutputWithPast, MultimodalCausalLMOutputWithPast


@dataclass
class LeadModelOutput(MultimodalBaseModelOutputWithPast):
    """
    Args:
        expert_logits (`torch.FloatTensor` of shape `(batch_size, num_experts)`):
            Logits of the pathology experts, in the order of `config.lead_config.expert_names`; NaN in rows without an
            image. Absent when no image was encoded in this call (as in decoding steps).
        gates (`torch.FloatTensor` of shape `(batch_size, num_layers, sequence_length)`):
            Gate strength, averaged over the hidden units; on request (`output_gates=True`). In a row without an image
            there is nothing for the gate to let through.
    """

    expert_logits: torch.Tensor | None = None
    gates: torch.Tensor | None = None


@dataclass
class LeadCausalLMOutput(MultimodalCausalLMOutputWithPast):
    """
    Args:
        loss (`torch.FloatTensor` of shape `()`):
            `language_loss` + lambda `expert_loss`, of those there are.
        language_loss (`torch.FloatTensor` of shape `()`):
            Next-token cross-entropy; with `labels`.
        expert_loss (`torch.FloatTensor` of shape `()`):
            Mean binary cross-entropy over the known labels; with `expert_labels`. Given `num_items_in_batch`, both are
            this batch's part of the mean over all batches and processes that it counts, weighted by learnt tokens.
        expert_logits, gates:
            See [`LeadModelOutput`].
    """

    language_loss: torch.Tensor | None = None
    expert_loss: torch.Tensor | None = None
    expert_logits: torch.Tensor | None = None
    gates: torch.Tensor | None = None
