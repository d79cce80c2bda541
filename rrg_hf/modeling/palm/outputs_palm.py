"""What PALM's forward passes return."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache
from transformers.utils import ModelOutput


@dataclass
class PalmModelOutput(ModelOutput):
    """Output of [`PalmModel`]. T is the number of decoder tokens, N_U = N_I + N_Ind that of the memory's.

    Args:
        last_hidden_state: (B, T, d), the decoder's last layer.
        cache: keys and values of the decoder, with `use_cache=True`.
        hidden_states: with `output_hidden_states=True`, one (B, T, d) per decoder layer and one for the embeddings.
        attentions: with `output_attentions=True`, one (B, heads, T, T_past + T) per decoder layer.
        cross_attentions: with `output_attentions=True` and `decoder_input="cross_attention"`, one (B, heads, T, N_U)
            per decoder layer. The first N_I columns are the image: [CLS], then the patches row by row.
        encoder_last_hidden_state: U of Eq. 14, (B, N_U, D).
        encoder_attention_mask: (B, N_U), or None when all of U is visible.
    """

    last_hidden_state: torch.Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None
    encoder_last_hidden_state: torch.Tensor | None = None
    encoder_attention_mask: torch.Tensor | None = None


@dataclass
class PalmReportGenerationOutput(ModelOutput):
    """Output of [`PalmForReportGeneration`]: the fields of [`PalmModelOutput`] and

    Args:
        loss: scalar, L_gen of Eq. 16 as a mean over tokens, when `labels` are given.
        logits: (B, T, vocabulary), or only the last `logits_to_keep` positions.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    cross_attentions: tuple[torch.Tensor, ...] | None = None
    encoder_last_hidden_state: torch.Tensor | None = None
    encoder_attention_mask: torch.Tensor | None = None


__all__ = ["PalmModelOutput", "PalmReportGenerationOutput"]
