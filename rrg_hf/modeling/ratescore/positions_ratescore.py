"""DeBERTa's relative-position terms at inference without the work that does not depend on the input.

Disentangled attention (He et al. 2021, "DeBERTa", Eq. 4) adds to each content score the terms `Q_i K^r(d)` and
`K_j Q^r(d)`, where d is the bucketed distance of i and j. `K^r` and `Q^r` are projections of the embedded distances:
512 rows that are the same for every input, yet projected in every layer of every forward pass, and all 512 are
multiplied with the batch although n tokens are at most n - 1 apart. For sentences that is about half of the time.
Here each layer projects once and multiplies with the rows in reach only. The sums are the same up to float rounding.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

_ARGUMENTS = ("query_layer", "key_layer", "relative_pos", "rel_embeddings", "scale_factor")


def cache_relative_positions(model: nn.Module) -> bool:
    """Let the DeBERTa-v2/v3 inside `model` keep its projected positions while it infers.

    The cache is used in eval mode without gradients and is renewed when weights, device or dtype change; training is
    unaffected, and so are `state_dict` and saved files. Calling it again changes nothing.

    Args:
        model: any transformers model on a DeBERTa-v2 encoder; changed in place.

    Returns:
        False if the attention of this transformers version is built differently: the model then stays as it was.

    Raises:
        ValueError: there is no DeBERTa-v2 encoder in the model.
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder

    encoders: list[Any] = [module for module in model.modules() if isinstance(module, DebertaV2Encoder)]
    if not encoders:
        raise ValueError(f"{type(model).__name__} holds no DeBERTa-v2 encoder, so it has no positions to cache.")
    relative = [encoder for encoder in encoders if getattr(encoder, "relative_attention", True)]
    attentions = [(encoder, layer.attention.self) for encoder in relative for layer in encoder.layer]
    if not all(_is_known(encoder, attention) for encoder, attention in attentions):
        return False
    for encoder in relative:
        shared: list[nn.Parameter] = [encoder.rel_embeddings.weight]
        if "layer_norm" in encoder.norm_rel_ebd:
            shared += encoder.LayerNorm.parameters()
        reach = _Reach()
        for layer in encoder.layer:
            attention = layer.attention.self
            attention.disentangled_attention_bias = _PositionBias(attention, shared, reach)
    return True


def _is_known(encoder: Any, attention: Any) -> bool:
    method = getattr(type(attention), "disentangled_attention_bias", None)
    return (
        method is not None
        and tuple(inspect.signature(method).parameters)[1:] == _ARGUMENTS
        and all(hasattr(encoder, name) for name in ("relative_attention", "norm_rel_ebd"))
        and all(hasattr(attention, name) for name in ("pos_att_type", "share_att_key", "pos_ebd_size"))
    )


class _Reach:
    """Rows of the position table that the batch at hand needs; the layers of one forward pass share it."""

    def __init__(self) -> None:
        self._seen: torch.Tensor | None = None
        self.first = 0
        self.stop = 0
        self.index = torch.empty(0, dtype=torch.long)

    def update(self, relative_pos: torch.Tensor, span: int) -> None:
        """Args: relative_pos: bucketed distances (1, L, L); span: greatest distance the table holds."""
        if relative_pos is self._seen:
            return
        index = (relative_pos[0].long() + span).clamp(0, 2 * span - 1)
        self.first, self.stop = int(index.min()), int(index.max()) + 1
        self.index = index - self.first
        self._seen = relative_pos


class _PositionBias:
    """Takes the place of one attention module's `disentangled_attention_bias`."""

    def __init__(self, attention: Any, shared: list[nn.Parameter], reach: _Reach) -> None:
        self.attention = attention
        self.reach = reach
        if attention.share_att_key:
            self.key_projection, self.query_projection = attention.key_proj, attention.query_proj
        else:
            self.key_projection = getattr(attention, "pos_key_proj", None)
            self.query_projection = getattr(attention, "pos_query_proj", None)
        projections = [module for module in (self.key_projection, self.query_projection) if module is not None]
        self.sources = [*shared, *(weight for module in projections for weight in module.parameters())]
        self.tables: dict[str, torch.Tensor] = {}
        self.state: tuple[Any, ...] = ()

    def __call__(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        relative_pos: torch.Tensor | None,
        rel_embeddings: torch.Tensor,
        scale_factor: int,
    ) -> Any:
        attention = self.attention
        length = query_layer.size(-2)
        usual = relative_pos is not None and relative_pos.shape == (1, length, length)
        if attention.training or torch.is_grad_enabled() or not usual or key_layer.size(-2) != length:
            original = type(attention).disentangled_attention_bias
            return original(attention, query_layer, key_layer, relative_pos, rel_embeddings, scale_factor)
        assert relative_pos is not None
        self._project(rel_embeddings, scale_factor)
        self.reach.update(relative_pos, attention.pos_ebd_size)
        index = self.reach.index
        bias: torch.Tensor | int = 0
        if "c2p" in attention.pos_att_type:
            bias = self._scores(query_layer, "c2p", index)
        if "p2c" in attention.pos_att_type:
            # row j of the keys' scores holds what every query i gets from key j, at the distance of i and j
            bias = bias + self._scores(key_layer, "p2c", index.T).transpose(-1, -2)
        return bias

    def _scores(self, content: torch.Tensor, term: str, index: torch.Tensor) -> torch.Tensor:
        """Products of content vectors (B * heads, L, d) with the table, picked by `index` (L, L)."""
        table = self.tables[term][:, self.reach.first : self.reach.stop]
        rows = content.view(-1, table.size(0), *content.shape[1:])
        scores = torch.matmul(rows, table.transpose(-1, -2)).flatten(0, 1)
        return scores.gather(-1, index.expand(scores.size(0), -1, -1))

    def _project(self, rel_embeddings: torch.Tensor, scale_factor: int) -> None:
        """Fill the tables, (heads, 2 * span, d) each, if anything they come from has changed."""
        versions = (0 if weight.is_inference() else weight._version for weight in self.sources)
        places = ((weight.data_ptr(), weight.dtype, weight.device) for weight in self.sources)
        state = (scale_factor, rel_embeddings.dtype, *places, *versions)
        if state == self.state:
            return
        attention = self.attention
        terms = {"c2p": self.key_projection, "p2c": self.query_projection}
        embedded = rel_embeddings[: 2 * attention.pos_ebd_size]
        self.tables = {}
        for term, projection in terms.items():
            if term in attention.pos_att_type:
                table = projection(embedded).unflatten(-1, (attention.num_attention_heads, -1)).transpose(0, 1)
                self.tables[term] = (table / (table.size(-1) * scale_factor) ** 0.5).contiguous()
        self.state = state
