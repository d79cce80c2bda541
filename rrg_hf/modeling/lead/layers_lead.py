"""The blocks LEAD adds to a decoder, small to large. Equations: "Layer-wise Expert-aligned Decoding", Sec. II."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .configuration_lead import LeadConfig


class LeadExperts(nn.Module):
    """C three-layer perceptrons side by side, one binary classifier per observation (Sec. II-B).

    All experts see the same input, so their layers are one linear and two batched products, not a loop.

    Args:
        config: number and width of the experts.
        input_size: width D_v of the visual tower.
    """

    def __init__(self, config: LeadConfig, input_size: int) -> None:
        super().__init__()
        count, width = config.num_experts, config.expert_hidden_size
        self.weight_1 = nn.Parameter(torch.empty(count, input_size, width))
        self.bias_1 = nn.Parameter(torch.zeros(count, width))
        self.weight_2 = nn.Parameter(torch.empty(count, width, width))
        self.bias_2 = nn.Parameter(torch.zeros(count, width))
        self.weight_3 = nn.Parameter(torch.empty(count, width))
        self.bias_3 = nn.Parameter(torch.zeros(count))

    def forward(self, pooled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            pooled: (B, D_v), the visual tower's last hidden state averaged over patches and images.

        Returns:
            f, (B, C, H): second hidden layer of each expert. s, (B, C): its logit.
        """
        hidden = F.gelu(torch.einsum("bv,cvh->bch", pooled, self.weight_1) + self.bias_1)
        features = F.gelu(torch.einsum("bch,chk->bck", hidden, self.weight_2) + self.bias_2)
        logits = torch.einsum("bch,ch->bc", features, self.weight_3) + self.bias_3
        return features, logits


class LeadZeroLinear(nn.Linear):
    """A Linear that starts at zero, so that what it feeds starts without effect."""


class LeadScaledLinear(nn.Linear):
    """A Linear that starts with outputs as large as its inputs, whatever its width.

    With the backbones' own start (a standard deviation of 0.02) what reaches the zero layer behind it would shrink
    with the model's width, and so would its gradient: the experts of a small model would stay unheard for long.
    """


class LeadProjection(nn.Module):
    """phi_l: from the global expert embedding to one layer's, starting at exactly zero (Sec. II-C2).

    Args:
        size: width d of the decoder.
        rank: hidden width, or None for a single Linear.
    """

    def __init__(self, size: int, rank: int | None) -> None:
        super().__init__()
        self.hidden = LeadScaledLinear(size, rank) if rank is not None else None
        self.output = LeadZeroLinear(rank if rank is not None else size, size)

    def forward(self, embedding: torch.Tensor) -> torch.Tensor:
        """(B, d) -> (B, d)."""
        if self.hidden is not None:
            embedding = F.gelu(self.hidden(embedding))
        return self.output(embedding)


class LeadExpertBranch(nn.Module):
    """Experts, confidence-aware aggregation and projection: everything that happens once per image.

    Args:
        config: see [`LeadConfig`].
        input_size: width D_v of the visual tower.
        size: width d of the decoder.
        num_layers: L of the decoder.
    """

    def __init__(self, config: LeadConfig, input_size: int, size: int, num_layers: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.experts = LeadExperts(config, input_size)
        self.aggregation: nn.Linear | None = None
        self.projections: nn.ModuleList | None = None
        self.gate_contexts: nn.ModuleList | None = None
        if config.fusion == "none":
            return
        self.aggregation = LeadScaledLinear(config.num_experts * config.expert_hidden_size, size)
        count = num_layers if config.projection == "layer" else 1
        self.projections = nn.ModuleList(LeadProjection(size, config.projection_rank) for _ in range(count))
        if config.fusion == "gate":
            # W_e of the gate; its product with e_l is the same for all tokens and steps, so it is taken here, once.
            self.gate_contexts = nn.ModuleList(
                nn.Linear(size, gate_width(config, size), bias=False) for _ in range(num_layers)
            )

    def forward(
        self, pooled: torch.Tensor, has_image: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """
        Args:
            pooled: (B, D_v).
            has_image: (B,) bool; rows without an image get a state that injects nothing.

        Returns:
            States (B, L, d) or, with a gate, (B, L, d + gate width): e_l and the gate's part of it; None without
            fusion. Expert logits s, (B, C).
        """
        features, logits = self.experts(pooled)
        if self.aggregation is None or self.projections is None:
            return None, logits
        confidence = torch.sigmoid(logits).unsqueeze(-1)
        embedding = self.aggregation((confidence * features).flatten(1))
        projected = [projection(embedding) for projection in self.projections]
        if len(projected) == 1:
            projected = projected * self.num_layers
        if has_image is not None:
            projected = [state * has_image.unsqueeze(-1).to(state.dtype) for state in projected]
        if self.gate_contexts is not None:
            projected = [
                torch.cat([state, context(state)], dim=-1)
                for state, context in zip(projected, self.gate_contexts, strict=True)
            ]
        return torch.stack(projected, dim=1), logits


class LeadFusionLayer(nn.Module):
    """Token-conditioned interaction and context-adaptive gated fusion of one decoder layer (Sec. II-C3, II-C4).

    Args:
        config: see [`LeadConfig`].
        size: width d of the decoder.
    """

    def __init__(self, config: LeadConfig, size: int) -> None:
        super().__init__()
        self.size = size
        self.gated = config.fusion == "gate"
        self.beta = nn.Parameter(torch.zeros(1)) if config.token_interaction else None
        self.norm = nn.LayerNorm(size) if config.token_interaction else None
        self.gate_hidden: nn.Linear | None = None
        self.gate_output: nn.Linear | None = None
        if self.gated:
            width = gate_width(config, size)
            factorised = config.gate_type == "vector" and config.gate_rank is not None
            self.gate_hidden = nn.Linear(size, width, bias=not factorised)
            self.gate_output = nn.Linear(width, size) if factorised else None

    def forward(self, hidden_states: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states: h, (B, T, d), output of the decoder layer.
            state: (B, d [+ gate width]), this layer's slice of what [`LeadExpertBranch`] returned.

        Returns:
            h', (B, T, d), and the gate g, (B, T, d) or (B, T, 1); None without a gate.
        """
        # This runs in every layer of every decoding step, where a call costs about as much as the arithmetic in it:
        # each attribute of the module is read once, and what is there already is neither converted nor multiplied.
        norm, gate_hidden, dtype = self.norm, self.gate_hidden, hidden_states.dtype
        inputs = hidden_states
        # Our own precision may be another one: with a 4-bit or half-precision backbone these layers stay as they are.
        own = norm if norm is not None else gate_hidden
        if own is not None and own.weight.dtype != dtype:
            inputs = hidden_states.to(own.weight.dtype)
        if state.dtype != inputs.dtype or state.device != inputs.device:
            state = state.to(device=inputs.device, dtype=inputs.dtype)
        state = state.unsqueeze(1)
        embedding = state if gate_hidden is None else state.narrow(-1, 0, self.size)
        message = embedding
        if norm is not None and self.beta is not None:
            message = torch.addcmul(embedding, self.beta * embedding, norm(inputs))
        if gate_hidden is None:
            return hidden_states + message.to(dtype), None
        gate = gate_hidden(inputs) + state.narrow(-1, self.size, state.shape[-1] - self.size)
        gate_output = self.gate_output
        if gate_output is not None:
            gate = gate_output(gate)
        gate = torch.sigmoid(gate)
        fused = torch.addcmul(inputs, gate, message)
        return (fused if fused.dtype == dtype else fused.to(dtype)), gate


class LeadFusion(nn.Module):
    """The fusion layers of all decoder layers behind one `forward`, which is all that PEFT's wrapper switches."""

    def __init__(self, config: LeadConfig, size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LeadFusionLayer(config, size) for _ in range(num_layers))

    def forward(
        self, hidden_states: torch.Tensor, state: torch.Tensor, layer_index: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See [`LeadFusionLayer`]; `layer_index` counts decoder layers from 0."""
        return self.layers[layer_index](hidden_states, state)


def gate_width(config: LeadConfig, size: int) -> int:
    """Width between [h; e] and the gate: the rank, or the gate's own width."""
    if config.gate_type == "scalar":
        return 1
    return config.gate_rank if config.gate_rank is not None else size
