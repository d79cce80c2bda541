"""Whole LEAD models: the equations through all layers, pairing of rows and images, training steps, compilation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

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


def image_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in batch.items() if k in ("pixel_values", "image_grid_thw", "image_sizes")}


def pooled_alone(family: str, plain: Any, batch: dict[str, Any], image: int) -> torch.Tensor:
    """Mean of the tower's last hidden state for one image that is encoded alone."""
    if family == "qwen3_vl":
        lengths = batch["image_grid_thw"].prod(-1).tolist()
        start = sum(lengths[:image])
        pixels, grid = batch["pixel_values"][start : start + lengths[image]], batch["image_grid_thw"][image][None]
        return plain.model.visual(pixels, grid_thw=grid).last_hidden_state.mean(0)
    pixels = batch["pixel_values"][image][None]
    if family == "internvl":
        return plain.model.vision_tower(pixels).last_hidden_state[0, 1:].mean(0)
    height, width = batch["image_sizes"][image].tolist()
    sizes = torch.tensor([[height, width]])
    return plain.model.vision_tower(pixels[:, :, :height, :width], image_sizes=sizes).last_hidden_state[0].mean(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_its_backbone_plus_the_equations(family: str, backbones: dict[str, Path]) -> None:
    """Written once more over the plain backbone: images one by one, one fusion by hand after every layer, float64."""
    model = perturb(load(family, backbones)).double()
    plain = PLAIN_CLASSES[family].from_pretrained(backbones[family]).eval().double()
    batch = make_batch(family, ROWS)
    batch["pixel_values"] = batch["pixel_values"].double()
    w = {name.removeprefix("model."): p for name, p in model.named_parameters() if ".lead_" in name}
    images_of = [[0], [1, 2], []]
    embeddings: list[Any] = []
    with torch.no_grad():
        for images in images_of:
            if not images:
                embeddings.append(None)
                continue
            pooled = torch.stack([pooled_alone(family, plain, batch, image) for image in images]).mean(0)
            weighted = []
            for i in range(14):
                x = F.gelu(pooled @ w["lead_experts.experts.weight_1"][i] + w["lead_experts.experts.bias_1"][i])
                x = F.gelu(x @ w["lead_experts.experts.weight_2"][i] + w["lead_experts.experts.bias_2"][i])
                s = x @ w["lead_experts.experts.weight_3"][i] + w["lead_experts.experts.bias_3"][i]
                weighted.append(torch.sigmoid(s) * x)
            embeddings.append(
                w["lead_experts.aggregation.weight"] @ torch.cat(weighted) + w["lead_experts.aggregation.bias"]
            )

        def fuse(layer: int, hidden: torch.Tensor) -> torch.Tensor:
            p, f = f"lead_experts.projections.{layer}", f"lead_fusion.layers.{layer}"
            fused = hidden.clone()
            for row, embedding in enumerate(embeddings):
                if embedding is None:
                    continue
                e = F.gelu(w[f"{p}.hidden.weight"] @ embedding + w[f"{p}.hidden.bias"])
                e = w[f"{p}.output.weight"] @ e + w[f"{p}.output.bias"]
                for t, h in enumerate(hidden[row]):
                    norm = (h - h.mean()) / (h.var(unbiased=False) + 1e-5).sqrt()
                    m = e + w[f"{f}.beta"] * (norm * w[f"{f}.norm.weight"] + w[f"{f}.norm.bias"]) * e
                    g = w[f"{f}.gate_hidden.weight"] @ h + w[f"lead_experts.gate_contexts.{layer}.weight"] @ e
                    g = w[f"{f}.gate_output.weight"] @ g + w[f"{f}.gate_output.bias"]
                    fused[row, t] = h + torch.sigmoid(g) * m
            return fused

        for index, layer in enumerate(plain.model.language_model.layers):
            layer.register_forward_hook(lambda module, args, output, index=index: fuse(index, output))
        expected, logits = plain(**batch).logits, model(**batch).logits
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(logits[mask], expected[mask], rtol=1e-4, atol=1e-4)  # towers keep tables in float32
    assert (logits[mask] - load(family, backbones).double()(**batch).logits[mask]).abs().amax() > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_swapped_images_swap_what_is_written(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones))
    batch = make_batch(family, [([(2, 2)], 5), ([(2, 2)], 5)])
    for name in ("input_ids", "attention_mask"):
        batch[name] = batch[name][:1].repeat(2, 1)  # one prompt, two images
    pixels = batch["pixel_values"]
    swapped = {**batch, "pixel_values": pixels.reshape(2, -1, *pixels.shape[1:]).flip(0).reshape(pixels.shape)}
    for settings in (
        GREEDY,
        BEAMS,
        {**BEAMS, "num_beams": 4, "num_return_sequences": 3},
        {**GREEDY, "num_beams": 3, "use_cache": False},
    ):
        written, other = model.generate(**batch, **settings), model.generate(**swapped, **settings)
        count = settings.get("num_return_sequences", 1)
        first, second = written.split(count)
        assert not torch.equal(first, second), "the images must matter"
        assert torch.equal(torch.cat([second, first]), other)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_repeats_with_its_seed(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones))
    batch = make_batch(family, ROWS)
    settings = {**GREEDY, "do_sample": True, "top_k": 20, "num_return_sequences": 2}
    written = []
    for use_cache in (True, True, False):
        torch.manual_seed(3)
        written.append(model.generate(**batch, **settings, use_cache=use_cache))
    assert torch.equal(written[0], written[1]) and torch.equal(written[0], written[2])
    assert written[0].shape[0] == 6


@pytest.mark.parametrize("family", FAMILIES)
def test_states_may_be_given(family: str, backbones: dict[str, Path]) -> None:
    """As a preference trainer or a server does that keeps them."""
    model = perturb(load(family, backbones))
    batch = make_batch(family, ROWS)
    layout = {name: batch[name] for name in ("image_grid_thw", "image_sizes") if name in batch}
    with torch.no_grad():
        outputs = model.model.get_image_features(**image_inputs(batch), return_dict=True)
        states, logits = model.model.prepare_lead_states(outputs, batch["input_ids"], 3, **layout)
        expected = model(**batch)
        rest = {name: value for name, value in batch.items() if name != "pixel_values"}
        given = model(**rest, mm_encoder_outputs={"image": outputs}, lead_states=states)
    torch.testing.assert_close(given.logits, expected.logits)
    torch.testing.assert_close(logits, expected.expert_logits, equal_nan=True)
    with pytest.raises(ValueError, match="`pixel_values` or `mm_encoder_outputs`, not both"):
        model(**batch, mm_encoder_outputs={"image": outputs})


@pytest.mark.parametrize("family", FAMILIES)
def test_image_tokens_that_do_not_fit_are_one_error(family: str, backbones: dict[str, Path]) -> None:
    model = load(family, backbones)
    batch = make_batch(family, [([(2, 2)], 4), ([(2, 2)], 4)])
    places = (batch["input_ids"] == 5).nonzero().tolist()

    def changed(where: list[list[int]], token: int) -> dict[str, Any]:
        ids = batch["input_ids"].clone()
        for row, column in where:
            ids[row, column] = token
        extra = {"mm_token_type_ids": (ids == 5).int()} if family == "qwen3_vl" else {}
        return {**batch, "input_ids": ids, **extra}

    for wrong in (
        changed(places[:1], 20),  # a prompt cut inside an image
        changed(places[-4:], 20),  # an image without a placeholder
        changed(places, 20),  # a prompt without any
        changed([[0, 0], [0, 1], [0, 2], [0, 3]], 5),  # a placeholder without an image
    ):
        for call in (lambda wrong=wrong: model(**wrong), lambda wrong=wrong: model.generate(**wrong, **GREEDY)):
            with torch.no_grad(), pytest.raises(ValueError, match=r"image tokens, but the images take \[4, 4\]"):
                call()


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_learns_from_a_fresh_start(family: str, backbones: dict[str, Path]) -> None:
    """phi_l starts at zero: gate, beta and what feeds phi_l get a gradient once it has moved, in the second step.
    beta starts at zero, so its LayerNorm gets one in the third."""
    model = load(family, backbones).train()
    batch = make_batch(family, ROWS[:2], pad="right")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    known = torch.randint(0, 2, (2, 14), generator=torch.Generator().manual_seed(0)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    quiet = []
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch, labels=labels, expert_labels=known).loss.backward()
        quiet.append({name for name, p in model.named_parameters() if ".lead_" in name and not (p.grad != 0).any()})
        optimizer.step()
    assert not {name for name in quiet[0] if ".experts." in name or ".output." in name}
    assert quiet[0] and quiet[1] == {name for name in quiet[0] if ".norm." in name} and not quiet[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_a_batch_add_up_to_the_batch(family: str, backbones: dict[str, Path]) -> None:
    """Gradient accumulation: lambda must not grow with the number of parts."""
    model = perturb(load(family, backbones)).train()
    parts = [make_batch(family, [([(2, 2)], length)], seed=length, pad="right") for length in (4, 11)]
    known = [torch.tensor([[1.0] * 7 + [0.0] * 7]), torch.tensor([[0.0] * 10 + [1.0] * 4])]
    labels = [part["input_ids"].masked_fill(part["input_ids"] == 5, -100) for part in parts]
    counts = [int((label[:, 1:] != -100).sum()) for label in labels]
    whole = [model(**part, labels=label, expert_labels=y) for part, label, y in zip(parts, labels, known, strict=True)]
    expected_language = sum(c * o.language_loss for c, o in zip(counts, whole, strict=True)) / sum(counts)
    expected_expert = sum(c * o.expert_loss for c, o in zip(counts, whole, strict=True)) / sum(counts)
    pieces = [
        model(**part, labels=label, expert_labels=y, num_items_in_batch=torch.tensor(sum(counts)))
        for part, label, y in zip(parts, labels, known, strict=True)
    ]
    torch.testing.assert_close(sum(o.language_loss for o in pieces), expected_language)
    torch.testing.assert_close(sum(o.expert_loss for o in pieces), expected_expert)
    torch.testing.assert_close(sum(o.loss for o in pieces), expected_language + 4.0 * expected_expert)
    only = model(**parts[0], expert_labels=known[0])
    torch.testing.assert_close(only.loss, 4.0 * only.expert_loss)
    assert only.language_loss is None


def test_expert_loss_is_log_loss_over_what_is_known() -> None:
    """Against scikit-learn's log loss over what is known, and its gradient where nothing is known."""
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    from rrg_hf.modeling.lead.modeling_lead import expert_cross_entropy

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 14, generator=generator, requires_grad=True)
    labels = torch.randint(-1, 2, (20, 14), generator=generator).float()
    labels[3] = float("nan")
    known = labels >= 0
    expected = sklearn_metrics.log_loss(labels[known].numpy(), torch.sigmoid(logits[known]).detach().double().numpy())
    loss = expert_cross_entropy(logits, labels)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert (logits.grad[~known] == 0).all() and (logits.grad[known] != 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_vl"])  # the others compile too, but tracing one takes 10 s
def test_compiled_forward(family: str, backbones: dict[str, Path]) -> None:
    """Traced by torch.compile, hooks and all; "eager" leaves out the code generation, which is not ours to test."""
    batch = make_batch(family, [([(2, 2)], 5), ([(2, 2)], 3)])
    model = perturb(load(family, backbones))
    with torch.no_grad():
        expected = model(**batch)
        torch._dynamo.reset()
        try:
            compiled = torch.compile(copy.deepcopy(model), backend="eager")(**batch)
        except Exception:
            torch._dynamo.reset()
            plain = PLAIN_CLASSES[family].from_pretrained(backbones[family]).eval()
            try:
                torch.compile(plain, backend="eager")(**batch)
            except Exception as error:
                pytest.skip(f"torch.compile fails on the backbone itself: {type(error).__name__}")
            raise
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(compiled.logits[mask], expected.logits[mask], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled.expert_logits, expected.expert_logits)
