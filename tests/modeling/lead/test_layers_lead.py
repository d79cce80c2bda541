"""LEAD's blocks against one expert, one layer and one token at a time, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rrg_hf.modeling.lead import LeadConfig
from rrg_hf.modeling.lead.layers_lead import LeadExpertBranch, LeadFusion, LeadProjection, gate_width

EXPERTS, WIDTH, SIZE, LAYERS, TOKENS = 3, 6, 5, 2, 4
VARIANTS: list[dict[str, Any]] = [
    {},
    {"projection": "shared"},
    {"projection_rank": None},
    {"fusion": "add"},
    {"fusion": "add", "token_interaction": False},
    {"gate_rank": None},
    {"gate_type": "scalar"},
    {"gate_type": "scalar", "projection": "shared", "token_interaction": False},
]
gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def make(seed: int = 0, **settings: Any) -> tuple[LeadConfig, LeadExpertBranch, LeadFusion]:
    config = LeadConfig(
        **{"expert_names": ["a", "b", "c"], "expert_hidden_size": 4, "projection_rank": 3, "gate_rank": 2, **settings}
    )
    torch.manual_seed(seed)
    branch = LeadExpertBranch(config, WIDTH, SIZE, LAYERS).double()
    fusion = LeadFusion(config, SIZE, LAYERS).double()
    with torch.no_grad():
        for parameter in [*branch.parameters(), *fusion.parameters()]:
            parameter.copy_(torch.randn_like(parameter))
    return config, branch, fusion


def reference(
    config: LeadConfig, branch: LeadExpertBranch, fusion: LeadFusion, pooled: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[list[Any]]]:
    """Logits (C,), and per layer the fused tokens (T, d) and gates, of one sample."""
    w = {name: value.detach().numpy() for name, value in branch.named_parameters()}
    f = {name: value.detach().numpy() for name, value in fusion.named_parameters()}
    logits, weighted = [], []
    for i in range(config.num_experts):
        first = gelu(pooled @ w["experts.weight_1"][i] + w["experts.bias_1"][i])
        feature = gelu(first @ w["experts.weight_2"][i] + w["experts.bias_2"][i])
        logits.append(feature @ w["experts.weight_3"][i] + w["experts.bias_3"][i])
        weighted.append(sigmoid(logits[-1]) * feature)
    embedding = w["aggregation.weight"] @ np.concatenate(weighted) + w["aggregation.bias"]
    fused = np.zeros((LAYERS, TOKENS, SIZE))
    gates: list[list[Any]] = [[None] * TOKENS for _ in range(LAYERS)]
    for layer in range(LAYERS):
        p = f"projections.{layer if config.projection == 'layer' else 0}"
        e = embedding
        if config.projection_rank is not None:
            e = gelu(w[f"{p}.hidden.weight"] @ e + w[f"{p}.hidden.bias"])
        e = w[f"{p}.output.weight"] @ e + w[f"{p}.output.bias"]
        for t in range(TOKENS):
            h, name, m = hidden[t], f"layers.{layer}", e
            if config.token_interaction:
                norm = (h - h.mean()) / math.sqrt(h.var() + 1e-5) * f[f"{name}.norm.weight"] + f[f"{name}.norm.bias"]
                m = e + f[f"{name}.beta"][0] * norm * e
            g: Any = 1.0
            if config.fusion == "gate":
                # W [h; e], written as one matrix over the concatenation
                whole = np.hstack([f[f"{name}.gate_hidden.weight"], w[f"gate_contexts.{layer}.weight"]])
                g = whole @ np.concatenate([h, e]) + f.get(f"{name}.gate_hidden.bias", 0.0)
                if f"{name}.gate_output.weight" in f:
                    g = f[f"{name}.gate_output.weight"] @ g + f[f"{name}.gate_output.bias"]
                g = gates[layer][t] = sigmoid(g)
            fused[layer, t] = h + g * m
    return np.array(logits), fused, gates


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_blocks_equal_the_loops(settings: dict[str, Any]) -> None:
    config, branch, fusion = make(**settings)
    pooled, hidden = torch.randn(2, WIDTH).double(), torch.randn(2, TOKENS, SIZE).double()
    with torch.no_grad():
        states, logits = branch(pooled)
        for layer in range(LAYERS):
            fused, gates = fusion(hidden, states[:, layer], layer)
            for row in range(2):
                own = reference(config, branch, fusion, pooled[row].numpy(), hidden[row].numpy())
                np.testing.assert_allclose(logits[row].numpy(), own[0], rtol=1e-10)
                np.testing.assert_allclose(fused[row].numpy(), own[1][layer], rtol=1e-10)
                if config.fusion == "gate":
                    np.testing.assert_allclose(gates[row].numpy(), np.stack(own[2][layer]), rtol=1e-10)
                else:
                    assert gates is None
    if config.fusion == "gate":
        assert gates.shape[-1] == (1 if config.gate_type == "scalar" else SIZE)


def test_without_fusion_only_experts_remain() -> None:
    branch = make(fusion="none")[1]
    assert {name.split(".")[0] for name, _ in branch.named_parameters()} == {"experts"}
    states, logits = branch(torch.randn(2, WIDTH).double())
    assert states is None and logits.shape == (2, EXPERTS)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_rows_without_an_image_get_nothing(settings: dict[str, Any]) -> None:
    _, branch, fusion = make(**settings)
    hidden = torch.randn(3, TOKENS, SIZE).double()
    states, _ = branch(torch.randn(3, WIDTH).double(), torch.tensor([True, False, True]))
    for layer in range(LAYERS):
        fused, _ = fusion(hidden, states[:, layer], layer)
        assert torch.equal(fused[1], hidden[1])
        assert (fused[[0, 2]] != hidden[[0, 2]]).any(-1).all()


def test_rows_do_not_mix() -> None:
    _, branch, fusion = make()
    pooled, hidden = torch.randn(3, WIDTH).double(), torch.randn(3, TOKENS, SIZE).double()
    states, logits = branch(pooled)
    turned, turned_logits = branch(pooled.flip(0))
    torch.testing.assert_close(turned.flip(0), states)
    torch.testing.assert_close(turned_logits.flip(0), logits)
    torch.testing.assert_close(fusion(hidden.flip(0), turned[:, 1], 1)[0].flip(0), fusion(hidden, states[:, 1], 1)[0])


@pytest.mark.parametrize(
    ("settings", "width"), [({}, 2), ({"gate_rank": None}, SIZE), ({"gate_type": "scalar", "gate_rank": None}, 1)]
)
def test_gate_width(settings: dict[str, Any], width: int) -> None:
    config, branch, _ = make(**settings)
    assert gate_width(config, SIZE) == width
    assert branch(torch.randn(1, WIDTH).double())[0].shape == (1, LAYERS, SIZE + width)


def test_a_projection_without_rank_is_one_linear() -> None:
    assert sum(p.numel() for p in LeadProjection(SIZE, None).parameters()) == SIZE * SIZE + SIZE
    assert sum(p.numel() for p in LeadProjection(SIZE, 2).parameters()) == 2 * SIZE + 2 + 2 * SIZE + SIZE


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("backbone", [torch.bfloat16, torch.float16, torch.float32])
def test_own_precision_may_differ_from_the_backbone(settings: dict[str, Any], backbone: torch.dtype) -> None:
    """As below a 4-bit or half-precision backbone, whose LEAD parts stay in float32."""
    _, branch, fusion = make(**settings)
    branch, fusion = branch.float(), fusion.float()
    hidden = torch.randn(2, TOKENS, SIZE).to(backbone)
    with torch.no_grad():
        states, _ = branch(torch.randn(2, WIDTH))
        fused, _ = fusion(hidden, states[:, 0], 0)
        exact, _ = fusion(hidden.float(), states[:, 0], 0)
        with torch.autocast("cpu", torch.bfloat16):
            cast, _ = fusion(hidden, states[:, 0], 0)
    assert fused.dtype == backbone and cast.dtype == backbone
    torch.testing.assert_close(fused.float(), exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(cast.float(), exact, rtol=5e-2, atol=0.2)
