"""PALM's building blocks against slow references: attention head by head, pre-norm layers, padding, fusion."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from rrg_hf.modeling.palm import PalmConfig
from rrg_hf.modeling.palm.layers_palm import PalmAttention, PalmEncoder, PalmFusion, PalmLayer, PalmProjection

WIDTH, HEADS = 24, 3


def config(**changes: Any) -> PalmConfig:
    sizes: dict[str, Any] = {
        "vision_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
        "text_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        "decoder_config": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 10, "bos_token_id": 0},
        "projection_dim": WIDTH,
        "fusion_heads": HEADS,
        "fusion_layers": 2,
        "fusion_dropout": 0.0,
    }
    made = PalmConfig(**sizes | changes)
    made._attn_implementation = "eager"
    return made


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def slow_attention(layer: PalmAttention, tokens: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """One study, one head, one query at a time; only visible keys are ever looked at."""
    out = torch.zeros_like(tokens)
    width = layer.head_dim
    for row in range(tokens.shape[0]):
        q, k, v = (part(tokens[row]) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
        heads = []
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            keys, values = k[visible[row], part], v[visible[row], part]
            mixed = []
            for query in q[:, part]:
                scores = torch.stack([query @ key for key in keys]) / math.sqrt(width)
                weights = scores.exp() / scores.exp().sum()
                mixed.append((weights[:, None] * values).sum(0))
            heads.append(torch.stack(mixed))
        out[row] = layer.o_proj(torch.cat(heads, dim=-1))
    return out


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_equals_a_head_by_head_reference(implementation: str) -> None:
    made = config()
    made._attn_implementation = implementation
    encoder = PalmEncoder(made, WIDTH, 1, HEADS, 0.0).eval()
    tokens = torch.randn(2, 5, WIDTH)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
    layer = encoder.layers[0]
    assert isinstance(layer, PalmLayer)
    normed = layer.attention_norm(tokens)
    expected = tokens + slow_attention(layer.attention, normed, mask.bool())
    expected = encoder.norm(expected + layer.mlp(layer.mlp_norm(expected)))
    actual = encoder(tokens, mask)
    assert torch.allclose(actual[0], expected[0], atol=1e-5)
    assert torch.allclose(actual[1][mask[1].bool()], expected[1][mask[1].bool()], atol=1e-5)


def test_width_must_divide_into_heads() -> None:
    with pytest.raises(ValueError, match="width 24 is not a multiple of the number of attention heads 5"):
        PalmAttention(config(), WIDTH, 5, 0.0)


def test_an_encoder_without_layers_is_the_identity() -> None:
    tokens = torch.randn(1, 3, WIDTH)
    assert torch.equal(PalmEncoder(config(), WIDTH, 0, HEADS, 0.0)(tokens), tokens)


def test_dropout_works_in_training_only() -> None:
    layer = PalmLayer(config(), WIDTH, HEADS, 0.5)
    tokens = torch.randn(1, 4, WIDTH)
    assert not torch.equal(layer.train()(tokens), layer(tokens))
    assert torch.equal(layer.eval()(tokens), layer(tokens))


@pytest.mark.parametrize(("kind", "modules"), [("linear", 1), ("mlp", 2)])
def test_projections(kind: str, modules: int) -> None:
    projection = PalmProjection(config(projection_type=kind), 16)
    linear = [module for module in projection.modules() if isinstance(module, nn.Linear)]
    assert len(linear) == modules and projection(torch.randn(2, 3, 16)).shape == (2, 3, WIDTH)
    features = torch.randn(4, 16)
    expected = linear[0](features)
    if kind == "mlp":
        expected = linear[1](nn.functional.gelu(expected))
    assert torch.allclose(projection(features), expected)


def test_fusion_marks_modalities_and_never_looks_at_padding() -> None:
    fusion = PalmFusion(config()).eval()
    image, indication = torch.randn(2, 4, WIDTH), torch.randn(2, 3, WIDTH)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    memory, memory_mask = fusion(image, indication, mask)
    assert memory.shape == (2, 7, WIDTH) and memory_mask is not None
    assert memory_mask.tolist() == [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]]
    # what stands in the padding changes nothing that is visible
    other = indication.clone()
    other[0, 2] = other[1] = 99.0
    again, _ = fusion(image, other, mask)
    visible = memory_mask.bool()
    assert torch.allclose(memory[visible], again[visible], atol=1e-5)
    # a study without an indication gets what it would get alone
    alone, none = fusion(image[1:])
    assert none is None and torch.allclose(memory[1, :4], alone[0], atol=1e-5)
    # the same features as the other modality are other tokens
    swapped, _ = fusion(indication[:1, :2], image[:1, :2])
    straight, _ = fusion(image[:1, :2], indication[:1, :2])
    assert not torch.allclose(swapped.flip(1), straight, atol=1e-3)


def test_fusion_without_a_mask_sees_all_of_the_indication() -> None:
    fusion = PalmFusion(config()).eval()
    image, indication = torch.randn(1, 4, WIDTH), torch.randn(1, 3, WIDTH)
    memory, mask = fusion(image, indication)
    expected, _ = fusion(image, indication, torch.ones(1, 3, dtype=torch.long))
    assert mask is not None and mask.all() and torch.allclose(memory, expected)
