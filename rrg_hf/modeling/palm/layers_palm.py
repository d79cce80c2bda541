"""Building blocks of PALM: pre-norm transformer layers, projections, and the fusion of image and indication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_palm import PalmConfig


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain scaled dot-product attention that also returns its weights, (B, heads, queries, keys)."""
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = nn.functional.softmax(weights, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class PalmAttention(nn.Module):
    """Multi-head self-attention without causal mask, through the attention implementation named by the config."""

    def __init__(self, config: PalmConfig, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of the number of attention heads {num_heads}")
        self.config = config
        self.head_dim = width // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = dropout
        self.is_causal = False
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        batch_and_length = hidden_states.shape[:-1]
        heads = (*batch_and_length, -1, self.head_dim)
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, _ = attention(
            self,
            self.q_proj(hidden_states).view(heads).transpose(1, 2),
            self.k_proj(hidden_states).view(heads).transpose(1, 2),
            self.v_proj(hidden_states).view(heads).transpose(1, 2),
            attention_mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
        )
        return self.o_proj(output.reshape(*batch_and_length, -1).contiguous())


class PalmLayer(GradientCheckpointingLayer):
    """A pre-norm transformer encoder layer: x + attention(norm(x)), then x + mlp(norm(x)) of four times the width."""

    def __init__(self, config: PalmConfig, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = PalmAttention(config, width, num_heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        attended = self.attention(self.attention_norm(hidden_states), attention_mask)
        hidden_states = hidden_states + self.dropout(attended)
        return hidden_states + self.dropout(self.mlp(self.mlp_norm(hidden_states)))


class PalmEncoder(nn.Module):
    """A stack of `PalmLayer` with a padding mask and, unless it is empty, a final LayerNorm."""

    def __init__(self, config: PalmConfig, width: int, num_layers: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([PalmLayer(config, width, num_heads, dropout) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(width) if num_layers else nn.Identity()

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """
        Args:
            hidden_states: (B, N, width).
            attention_mask: (B, N), 1 for tokens and 0 for padding; None when there is no padding.

        Returns:
            (B, N, width).
        """
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask)
        return self.norm(hidden_states)


class PalmProjection(nn.Module):
    """phi_I or phi_T (Eq. 7): from a backbone's width into the shared space of width D."""

    def __init__(self, config: PalmConfig, input_width: int) -> None:
        super().__init__()
        width = config.projection_dim
        self.layers: nn.Module
        if config.projection_type == "linear":
            self.layers = nn.Linear(input_width, width)
        else:
            self.layers = nn.Sequential(nn.Linear(input_width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)


class PalmFusion(nn.Module):
    """Fusion(F_I, F_Ind) of Eq. 14: transformer layers over image and indication tokens side by side.

    A learned embedding marks each token's modality. A study without an indication gets the layers over F_I alone: in a
    batch its indication tokens are padding, which no token attends to.
    """

    def __init__(self, config: PalmConfig) -> None:
        super().__init__()
        width = config.projection_dim
        self.modality_embeddings = nn.Embedding(2, width)
        self.encoder = PalmEncoder(config, width, config.fusion_layers, config.fusion_heads, config.fusion_dropout)

    def forward(
        self,
        image_features: torch.Tensor,
        indication_features: torch.Tensor | None = None,
        indication_attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            image_features: F_I, (B, N_I, D).
            indication_features: F_Ind, (B, N_Ind, D), or None when no study of the batch has an indication.
            indication_attention_mask: (B, N_Ind), 1 for tokens and 0 for padding.

        Returns:
            U, (B, N_I + N_Ind, D), and its mask, (B, N_I + N_Ind), or None when there is nothing to mask.
        """
        image_type, indication_type = self.modality_embeddings.weight
        tokens = image_features + image_type
        if indication_features is None:
            return self.encoder(tokens), None
        batch, num_image_tokens = image_features.shape[:2]
        if indication_attention_mask is None:
            indication_attention_mask = indication_features.new_ones(indication_features.shape[:2], dtype=torch.long)
        tokens = torch.cat([tokens, indication_features + indication_type], dim=1)
        image_mask = indication_attention_mask.new_ones(batch, num_image_tokens)
        mask = torch.cat([image_mask, indication_attention_mask], dim=1)
        return self.encoder(tokens, mask), mask
