"""LEAD on three tiny random backbones: identity at start, the equations, generation, saving."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText

import rrg_hf  # noqa: F401 (registers the Auto classes)
from rrg_hf.modeling.lead import LeadConfig
from rrg_hf.modeling.lead.layers_lead import LeadExpertBranch, LeadFusionLayer
from rrg_hf.modeling.lead.modeling_lead import expert_cross_entropy
from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PLAIN_CLASSES, make_backbone, make_batch, perturb

FAMILIES = tuple(LEAD_CLASSES)
ROWS = [([(2, 2)], 7), ([(2, 3), (2, 2)], 4), ([], 9)]  # one image, two images, none
# a random model may write image tokens, which no image then fills
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6, "suppress_tokens": [5, 6, 7, 8]}
BEAMS = {**GREEDY, "num_beams": 2, "repetition_penalty": 1.05}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_backbone(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


def load(family: str, backbones: dict[str, Path], **lead: Any) -> Any:
    return LEAD_CLASSES[family].from_pretrained(backbones[family], lead_config={**LEAD_TINY, **lead}).eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "lead",
    [
        {},
        {"projection": "shared"},
        {"fusion": "add"},
        {"fusion": "none"},
        {"gate_rank": None},
        {"gate_type": "scalar"},
        {"projection_rank": None},
        {"token_interaction": False},
    ],
    ids=str,
)
def test_a_fresh_model_is_its_backbone(family: str, lead: dict, backbones: dict[str, Path]) -> None:
    plain = PLAIN_CLASSES[family].from_pretrained(backbones[family]).eval()
    model = load(family, backbones, **lead)
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        assert torch.equal(plain(**batch).logits, model(**batch).logits)
        for settings in (GREEDY, BEAMS):
            assert torch.equal(plain.generate(**batch, **settings), model.generate(**batch, **settings))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_folder_fills_the_backbone_completely(family: str, backbones: dict[str, Path]) -> None:
    model, info = LEAD_CLASSES[family].from_pretrained(
        backbones[family], lead_config=LEAD_TINY, output_loading_info=True
    )
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    plain = dict(PLAIN_CLASSES[family].from_pretrained(backbones[family]).named_parameters())
    own = {name: value for name, value in model.named_parameters() if ".lead_" not in name}
    assert set(own) == set(plain)
    assert all(torch.equal(value, plain[name]) for name, value in own.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_with_and_without_cache_agrees(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones))
    batch = make_batch(family, ROWS)
    for settings in (GREEDY, BEAMS, {**GREEDY, "num_beams": 3, "num_return_sequences": 2}):
        with_cache = model.generate(**batch, **settings)
        assert torch.equal(with_cache, model.generate(**batch, **settings, use_cache=False))
    assert not torch.equal(
        model.generate(**batch, **GREEDY),
        PLAIN_CLASSES[family].from_pretrained(backbones[family]).eval().generate(**batch, **GREEDY),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_its_rows(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones))
    rows = [([(2, 2)], 7), ([(2, 3)], 3), ([(2, 2), (2, 2)], 5), ([], 4)]
    together = make_batch(family, rows)
    written = model.generate(**together, **BEAMS)[:, together["input_ids"].shape[1] :]
    images = 0
    for row, (sizes, length) in enumerate(rows):
        alone = make_batch(family, [(sizes, length)])
        mask = together["attention_mask"][row].bool()
        alone["input_ids"] = together["input_ids"][row][mask][None]
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        if sizes:
            for name in ("image_sizes", "image_grid_thw"):
                if name in together:
                    alone[name] = together[name][images : images + len(sizes)]
            if family == "qwen3_vl":
                ends = together["image_grid_thw"].prod(-1).cumsum(0).tolist()
                start = ends[images - 1] if images else 0
                alone["pixel_values"] = together["pixel_values"][start : ends[images + len(sizes) - 1]]
            else:
                alone["pixel_values"] = together["pixel_values"][images : images + len(sizes)]
        images += len(sizes)
        single = model.generate(**alone, **BEAMS)[0, alone["input_ids"].shape[1] :]
        expected = written[row][: len(single)]
        assert torch.equal(expected, single), row


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_without_an_image_are_left_alone(family: str, backbones: dict[str, Path]) -> None:
    plain = PLAIN_CLASSES[family].from_pretrained(backbones[family]).eval()
    model = perturb(load(family, backbones))
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        expected, output = plain(**batch).logits, model(**batch)
    torch.testing.assert_close(output.logits[2], expected[2], rtol=0, atol=1e-5)
    assert (output.logits[:2] - expected[:2]).abs().amax() > 0.1
    assert output.expert_logits[2].isnan().all() and not output.expert_logits[:2].isnan().any()
    text = make_batch(family, [([], 9)])
    with torch.no_grad():
        alone = model(**text)
    assert alone.expert_logits is None
    torch.testing.assert_close(alone.logits, plain(**text).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_run_once_and_fusion_every_step(
    family: str, backbones: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = perturb(load(family, backbones))
    calls = {"experts": 0, "fusion": 0}
    for name, module in (("experts", model.model.lead_experts), ("fusion", model.model.lead_fusion)):

        def count(*args: Any, name: str = name, forward: Any = module.forward, **kwargs: Any) -> Any:
            calls[name] += 1
            return forward(*args, **kwargs)

        monkeypatch.setattr(module, "forward", count)
    model.generate(**make_batch(family, ROWS), **{**BEAMS, "min_new_tokens": 6})
    layers = model.config.get_text_config().num_hidden_layers
    assert calls == {"experts": 1, "fusion": 6 * layers}


def test_the_equations(seed: int = 5) -> None:
    """Experts, aggregation, projection, interaction and gate, one expert and one token at a time in float64."""
    torch.manual_seed(seed)
    config = LeadConfig(expert_names=["a", "b", "c"], expert_hidden_size=4, projection_rank=3, gate_rank=2)
    width, size, layers, tokens = 6, 5, 2, 3
    branch = LeadExpertBranch(config, width, size, layers).double()
    fusion = LeadFusionLayer(config, size).double()
    with torch.no_grad():
        for parameter in [*branch.parameters(), *fusion.parameters()]:
            parameter.copy_(torch.randn_like(parameter))
        pooled, hidden = torch.randn(2, width, dtype=torch.float64), torch.randn(2, tokens, size, dtype=torch.float64)
        states, logits = branch(pooled)
        fused, gates = fusion(hidden, states[:, 1])
    gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))
    weights = {
        name: value.detach().numpy() for name, value in [*branch.named_parameters(), *fusion.named_parameters()]
    }
    for row in range(2):
        weighted = []
        for expert in range(3):
            x = pooled[row].numpy()
            first = gelu(x @ weights["experts.weight_1"][expert] + weights["experts.bias_1"][expert])
            feature = gelu(first @ weights["experts.weight_2"][expert] + weights["experts.bias_2"][expert])
            logit = feature @ weights["experts.weight_3"][expert] + weights["experts.bias_3"][expert]
            assert logits[row, expert].item() == pytest.approx(logit)
            weighted.append(feature / (1 + math.exp(-logit)))
        embedding = weights["aggregation.weight"] @ np.concatenate(weighted) + weights["aggregation.bias"]
        inner = gelu(weights["projections.1.hidden.weight"] @ embedding + weights["projections.1.hidden.bias"])
        e = weights["projections.1.output.weight"] @ inner + weights["projections.1.output.bias"]
        for token in range(tokens):
            h = hidden[row, token].numpy()
            norm = (h - h.mean()) / math.sqrt(h.var() + 1e-5) * weights["norm.weight"] + weights["norm.bias"]
            m = e + weights["beta"][0] * norm * e
            gate_in = weights["gate_hidden.weight"] @ h + weights["gate_contexts.1.weight"] @ e
            g = 1 / (1 + np.exp(-(weights["gate_output.weight"] @ gate_in + weights["gate_output.bias"])))
            np.testing.assert_allclose(gates[row, token].numpy(), g, rtol=1e-10)
            np.testing.assert_allclose(fused[row, token].numpy(), h + g * m, rtol=1e-10)


def test_expert_loss_is_the_mean_over_known_labels() -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.2], [float("nan")] * 3])
    labels = torch.tensor([[1.0, -1.0, 0.0], [float("nan"), 0.0, 1.0], [1.0, 1.0, 1.0]])
    total, count = 0.0, 0
    for row in range(2):
        for column in range(3):
            label, score = labels[row, column].item(), logits[row, column].item()
            if label in (0.0, 1.0):
                p = 1 / (1 + math.exp(-score))
                total -= math.log(p if label else 1 - p)
                count += 1
    assert expert_cross_entropy(logits, labels).item() == pytest.approx(total / count, rel=1e-6)
    assert expert_cross_entropy(logits, torch.full((3, 3), -1.0)).item() == 0.0
    for wrong, message in ((torch.zeros(3, 2), "shape"), (torch.full((3, 3), 0.5), "other than 0, 1")):
        with pytest.raises(ValueError, match=message):
            expert_cross_entropy(logits, wrong)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fusion", ["gate", "add", "none"])
def test_losses_and_gradients(family: str, fusion: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones, fusion=fusion)).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lead_" in name)
    batch = make_batch(family, ROWS, pad="right")
    labels = batch["input_ids"].masked_fill((batch["attention_mask"] == 0) | (batch["input_ids"] == 5), -100)
    known = torch.randint(0, 2, (3, 14), generator=torch.Generator().manual_seed(0)).float()
    output = model(**batch, labels=labels, expert_labels=known)
    assert output.loss.item() == pytest.approx(output.language_loss.item() + 4.0 * output.expert_loss.item(), rel=1e-5)
    assert model(**batch, labels=labels).expert_loss is None
    output.loss.backward()
    for name, parameter in model.named_parameters():
        if ".lead_" in name:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        else:
            assert parameter.grad is None, name


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family: str, backbones: dict[str, Path]) -> None:
    batch = make_batch(family, ROWS, pad="right")
    start = perturb(load(family, backbones))
    gradients = []
    for settings in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        model = copy.deepcopy(start).train()
        if settings is not None:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
            model.enable_input_require_grads()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PEFT and TRL read the old name, on behalf of users who cannot change that
            assert model.is_gradient_checkpointing is model.is_activation_checkpointing is (settings is not None)
        model(**batch, labels=batch["input_ids"], use_cache=False).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for other in gradients[1:]:
        assert set(other) == set(gradients[0])
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_saving_loading_copying(family: str, backbones: dict[str, Path], tmp_path: Path) -> None:
    model = perturb(load(family, backbones))
    model.save_pretrained(tmp_path, max_shard_size="100kB")
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        expected = model(**batch).logits
        again = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
        assert type(again) is type(model)
        assert torch.equal(again(**batch).logits, expected)
        assert torch.equal(copy.deepcopy(model)(**batch).logits, expected)
        inner = AutoModel.from_pretrained(tmp_path).eval()
        assert torch.equal(model.lm_head(inner(**batch).last_hidden_state), expected)
    assert AutoConfig.from_pretrained(tmp_path).lead_config.gate_rank == LEAD_TINY["gate_rank"]


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_on_request(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones))
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        output = model(**batch, output_gates=True)
        assert model(**batch).gates is None
    layers = model.config.get_text_config().num_hidden_layers
    assert output.gates.shape == (3, layers, batch["input_ids"].shape[1])
    assert ((output.gates > 0) & (output.gates < 1)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_attention_and_bfloat16(family: str, backbones: dict[str, Path]) -> None:
    batch = make_batch(family, ROWS[:2])
    model = perturb(load(family, backbones))
    eager = LEAD_CLASSES[family].from_pretrained(backbones[family], lead_config=LEAD_TINY, attn_implementation="eager")
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        mask = batch["attention_mask"].bool()
        reference = model(**batch).logits[mask]
        torch.testing.assert_close(eager.eval()(**batch).logits[mask], reference, rtol=1e-3, atol=1e-3)
        half = model.to(torch.bfloat16)
        written = half.generate(**batch, **BEAMS)
    assert written.dtype == torch.long and half(**batch).logits.isfinite().all()


def test_images_that_do_not_fit_their_prompt(backbones: dict[str, Path]) -> None:
    model = load("qwen3_vl", backbones)
    batch = make_batch("qwen3_vl", [([(2, 2)], 4), ([(2, 3)], 4)])
    swapped = batch["input_ids"].flip(0)  # row 0 now holds room for the second image
    with pytest.raises(ValueError, match="image tokens, but the images take"):
        model(**{**batch, "input_ids": swapped, "mm_token_type_ids": (swapped == 5).int()})
    with pytest.raises(ValueError, match="without an image"):
        model(**make_batch("qwen3_vl", [([], 4)]), expert_labels=torch.zeros(1, 14))


def test_settings_that_cannot_work() -> None:
    for settings, message in (
        ({"fusion": "mul"}, "fusion"),
        ({"projection": "deep"}, "projection"),
        ({"gate_type": "matrix"}, "gate_type"),
        ({"gate_rank": 0}, "gate_rank"),
        ({"expert_hidden_size": 0}, "expert_hidden_size"),
        ({"expert_names": []}, "expert_names"),
        ({"expert_names": ["a", "a"]}, "expert_names"),
        ({"expert_loss_weight": -1.0}, "expert_loss_weight"),
    ):
        with pytest.raises(ValueError, match=message):
            LeadConfig(**settings)


def test_a_checkpoint_of_another_backbone_is_refused(backbones: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="model_type 'internvl'"):
        LEAD_CLASSES["qwen3_vl"].from_pretrained(backbones["internvl"])


@pytest.mark.parametrize("family", sorted(LEAD_CLASSES))
def test_experts_predict_without_the_language_model(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(LEAD_CLASSES[family].from_pretrained(backbones[family], lead_config=LEAD_TINY)).eval()
    batch = make_batch(family, [([(2, 2)], 5), ([], 4), ([(2, 2), (2, 2)], 2)])
    with torch.no_grad():
        expected = model(**batch).expert_logits.sigmoid()
    model.model.language_model.forward = None  # type: ignore[assignment]
    found = model.predict_experts(**batch)
    assert found.shape == (3, 14) and found.dtype == torch.float32
    assert torch.isnan(found[1]).all() and torch.isnan(expected[1]).all()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_predicted_observations(backbones: dict[str, Path]) -> None:
    names = ["Edema", "No Finding", "Fracture"]
    lead = {**LEAD_TINY, "expert_names": names, "expert_threshold": 0.7}
    model = LEAD_CLASSES["qwen3_vl"].from_pretrained(backbones["qwen3_vl"], lead_config=lead)
    probabilities = torch.tensor([[0.71, 0.9, 0.69], [0.1, 0.8, 0.0], [0.0, 0.0, 0.0], [float("nan")] * 3])
    assert model.predicted_observations(probabilities) == [["Edema"], ["No Finding"], [], None]


def test_parts_of_an_expert_loss_add_up_to_the_mean(backbones: dict[str, Path]) -> None:
    model = LEAD_CLASSES["qwen3_vl"].from_pretrained(backbones["qwen3_vl"], lead_config=LEAD_TINY).eval()
    batch = make_batch("qwen3_vl", [([(2, 2)], 5), ([(2, 2)], 5)])
    targets = torch.randint(-1, 2, (2, 14), generator=torch.Generator().manual_seed(0)).float()
    targets[0, :9] = -1  # the rows have different numbers of known labels
    known = (targets >= 0).sum()
    whole = model(**batch, expert_labels=targets).expert_loss
    parts = []
    for index in range(2):
        part = make_batch("qwen3_vl", [([(2, 2)], 5), ([(2, 2)], 5)])
        pixels = part["pixel_values"].view(2, -1, part["pixel_values"].shape[-1])[index]
        part = {name: value[index : index + 1] for name, value in part.items()} | {"pixel_values": pixels}
        out = model(**part, expert_labels=targets[index : index + 1], num_known_labels=known)
        parts.append(out.expert_loss)
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-5)
