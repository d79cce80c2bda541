"""PalmModel and PalmForReportGeneration: features, memory, loss, gradients, saving."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForImageTextToText

from rrg_hf.modeling.palm import PalmConfig, PalmForReportGeneration, PalmModel, PalmProcessor
from tests.tiny_palm import make_tiny_palm

FORWARD_KEYS = (
    "pixel_values",
    "input_ids",
    "attention_mask",
    "labels",
    "indication_input_ids",
    "indication_attention_mask",
)


def forward_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: batch[key] for key in FORWARD_KEYS}


def row_of(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    return {key: value[row : row + 1] for key, value in batch.items()}


@pytest.fixture(scope="module", params=["cross_attention", "prefix"])
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PalmForReportGeneration:
    """A tiny model per `decoder_input`, with a shared width that differs from the decoder's."""
    path = tmp_path_factory.mktemp(request.param)
    return make_tiny_palm(path, decoder_input=request.param, projection_dim=24, projection_type="mlp")[0]


def test_shapes(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    palm = model.model
    tokens = (56 // 14) ** 2 + 1
    features = palm.get_image_features(batch["pixel_values"])
    assert features.shape == (3, tokens, 32)
    text = palm.get_text_features(batch["report_input_ids"], batch["report_attention_mask"])
    assert text.shape == (*batch["report_input_ids"].shape, 32)
    assert palm.prototypes.shape == (14, 32)
    memory, mask = palm.encode(
        batch["pixel_values"], batch["indication_input_ids"], batch["indication_attention_mask"]
    )
    length = tokens + batch["indication_input_ids"].shape[1]
    assert memory.shape == (3, length, 32)
    assert mask is not None and mask.shape == (3, length)
    assert mask[:, :tokens].all() and mask[1, tokens:].sum() == 0
    output = model(**forward_inputs(batch))
    assert output.logits.shape == (*batch["input_ids"].shape, model.config.decoder_config.vocab_size)
    assert output.encoder_last_hidden_state.shape == memory.shape


def test_image_features_are_phi_of_psi(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    palm = model.model
    hidden = palm.vision_model(pixel_values=batch["pixel_values"]).last_hidden_state
    weight, bias = palm.image_projection.layers.weight, palm.image_projection.layers.bias
    torch.testing.assert_close(palm.get_image_features(batch["pixel_values"]), hidden @ weight.T + bias)


def test_pool_is_the_normalised_cls_token(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    features = model.model.get_image_features(batch["pixel_values"])
    pooled = model.model.pool(features)
    torch.testing.assert_close(pooled, features[:, 0] / features[:, 0].norm(dim=-1, keepdim=True))
    model.config.normalize_embeddings = False
    assert torch.equal(model.model.pool(features), features[:, 0])


def test_text_features_ignore_padding(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    ids, mask = batch["report_input_ids"], batch["report_attention_mask"]
    together = model.model.get_text_features(ids, mask)
    for row in range(3):
        length = int(mask[row].sum())
        alone = model.model.get_text_features(ids[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-5, atol=1e-5)


def test_rows_without_indication_equal_the_row_alone(
    variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    """F_I alone when there is no indication, whatever the rest of the batch has."""
    inputs = forward_inputs(batch)
    together = variant(**inputs).logits
    alone = row_of(inputs, 1)
    without = {key: value for key, value in alone.items() if not key.startswith("indication")}
    length = int(alone["attention_mask"].sum())
    torch.testing.assert_close(variant(**without).logits[0, :length], together[1, :length], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(variant(**alone).logits[0, :length], together[1, :length], rtol=1e-4, atol=1e-5)


def test_rows_with_indication_equal_the_row_alone(
    variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    inputs = forward_inputs(batch)
    together = variant(**inputs).logits
    for row in (0, 2):
        alone = row_of(inputs, row)
        for prefix in ("", "indication_"):
            mask = alone[f"{prefix}attention_mask"]
            length = int(mask.sum())
            for key in ("input_ids", "attention_mask"):
                alone[f"{prefix}{key}"] = alone[f"{prefix}{key}"][:, :length]
        alone.pop("labels")
        logits = variant(**alone).logits[0]
        torch.testing.assert_close(logits, together[row, : len(logits)], rtol=1e-4, atol=1e-5)


def test_image_and_indication_reach_the_logits(
    variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    inputs = forward_inputs(batch)
    base = variant(**inputs).logits
    other_image = variant(**{**inputs, "pixel_values": inputs["pixel_values"].flip(0)}).logits
    assert (other_image[0] - base[0]).abs().max() > 1e-6
    ids = inputs["indication_input_ids"].clone()
    ids[0, 1] = ids[2, 1]
    other_indication = variant(**{**inputs, "indication_input_ids": ids}).logits
    assert (other_indication[0] - base[0]).abs().max() > 1e-6
    assert torch.equal(other_indication[1:], base[1:])


def test_loss_is_the_mean_over_unmasked_tokens(
    variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    output = variant(**forward_inputs(batch))
    logits, labels = output.logits.detach().double(), batch["labels"]
    total, count = 0.0, 0
    for row in range(labels.shape[0]):
        for position in range(1, labels.shape[1]):
            target = int(labels[row, position])
            if target != -100:
                total -= torch.log_softmax(logits[row, position - 1], dim=-1)[target].item()
                count += 1
    assert count == int((labels != -100).sum()) - labels.shape[0]
    assert math.isclose(output.loss.item(), total / count, rel_tol=1e-5)


def test_padding_side_does_not_move_a_report(variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = forward_inputs(batch)
    inputs.pop("labels")
    lengths = inputs["attention_mask"].sum(1)
    width = inputs["input_ids"].shape[1]
    left = {**inputs, "input_ids": inputs["input_ids"].clone(), "attention_mask": inputs["attention_mask"].clone()}
    for row, length in enumerate(lengths.tolist()):
        for key in ("input_ids", "attention_mask"):
            left[key][row] = inputs[key][row].roll(width - length)
    right_logits, left_logits = variant(**inputs).logits, variant(**left).logits
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(left_logits[row, -length:], right_logits[row, :length], rtol=1e-4, atol=1e-5)


def test_logits_to_keep(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = {key: value for key, value in forward_inputs(batch).items() if key != "labels"}
    full = model(**inputs).logits
    torch.testing.assert_close(model(**inputs, logits_to_keep=2).logits, full[:, -2:])
    torch.testing.assert_close(model(**inputs, logits_to_keep=torch.tensor([0, 3])).logits, full[:, [0, 3]])


def test_tuple_output(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = forward_inputs(batch)
    output = model(**inputs)
    as_tuple = model(**inputs, return_dict=False)
    assert torch.equal(as_tuple[0], output.loss) and torch.equal(as_tuple[1], output.logits)
    inputs.pop("labels")
    hidden = model.model(**inputs, return_dict=False)[0]
    assert torch.equal(hidden, model.model(**inputs).last_hidden_state)


def test_memory_can_be_given(variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = forward_inputs(batch)
    memory, mask = variant.model.encode(
        inputs["pixel_values"], inputs["indication_input_ids"], inputs["indication_attention_mask"]
    )
    tokens = {key: inputs[key] for key in ("input_ids", "attention_mask", "labels")}
    given = variant(**tokens, encoder_hidden_states=memory, encoder_attention_mask=mask)
    assert torch.equal(given.logits, variant(**inputs).logits)


def test_attentions_and_hidden_states(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = forward_inputs(batch)
    with pytest.raises(ValueError, match="set_attn_implementation"):
        model(**inputs, output_attentions=True)
    plain = model(**inputs)
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(output.logits, plain.logits, rtol=1e-4, atol=1e-5)
    length, memory = batch["input_ids"].shape[1], output.encoder_last_hidden_state.shape[1]
    assert [layer.shape for layer in output.attentions] == [(3, 2, length, length)] * 2
    assert [layer.shape for layer in output.cross_attentions] == [(3, 2, length, memory)] * 2
    assert [layer.shape for layer in output.hidden_states] == [(3, length, 32)] * 3
    for layer in output.cross_attentions:
        torch.testing.assert_close(layer.sum(-1), torch.ones(3, 2, length))
        assert float(layer[1, :, :, 17:].max()) == 0.0, "a study without indication looks at its image only"


@pytest.mark.parametrize("missing", ["pixel_values", "input_ids"])
def test_missing_inputs_are_named(
    model: PalmForReportGeneration, batch: dict[str, torch.Tensor], missing: str
) -> None:
    inputs = {key: value for key, value in forward_inputs(batch).items() if key != missing}
    with pytest.raises(ValueError, match=missing):
        model(**inputs)


def test_batch_sizes_must_agree(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = forward_inputs(batch)
    with pytest.raises(ValueError, match="3 images but 2 indications"):
        model(**{**inputs, "indication_input_ids": inputs["indication_input_ids"][:2]})
    with pytest.raises(ValueError, match="3 images but 2 token sequences"):
        model(**{**inputs, "input_ids": inputs["input_ids"][:2], "attention_mask": None, "labels": None})


def test_too_long_inputs_name_the_limit(variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    """The tiny decoder has 96 positions and the tiny text encoder 64."""
    pixels = batch["pixel_values"]
    with pytest.raises(ValueError, match="report of 97 tokens, but the decoder has 96 positions"):
        variant(input_ids=torch.zeros(3, 97, dtype=torch.long), pixel_values=pixels)
    assert variant(input_ids=torch.zeros(3, 96, dtype=torch.long), pixel_values=pixels).logits.shape[1] == 96
    with pytest.raises(ValueError, match=r"97 tokens.*`max_new_tokens`"):
        variant.generate(pixel_values=pixels, max_new_tokens=200, eos_token_id=None)
    assert variant.generate(pixel_values=pixels, max_new_tokens=96, eos_token_id=None).shape == (3, 97)
    with pytest.raises(ValueError, match="65 tokens, but the text encoder has 64 positions"):
        variant.model.get_text_features(torch.zeros(1, 65, dtype=torch.long))


@pytest.mark.parametrize("stage", ["generate", None])
def test_every_trainable_weight_of_generation_gets_a_gradient(
    variant: PalmForReportGeneration, batch: dict[str, torch.Tensor], stage: str | None
) -> None:
    model = copy.deepcopy(variant).train()
    model.model.set_trainable(stage)
    model(**forward_inputs(batch)).loss.backward()
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    unused = {"model.prototypes", "model.vision_model.embeddings.mask_token"}
    assert trainable - reached == (set() if stage == "generate" else unused)
    assert reached <= trainable
    assert unused.isdisjoint(reached)


def test_unknown_stage(model: PalmForReportGeneration) -> None:
    with pytest.raises(ValueError, match="Unknown stage 'pretrain'"):
        model.model.set_trainable("pretrain")


def test_gradients_match_finite_differences(variant: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    """Central differences in float64, along a random direction in each part of the model."""
    model = copy.deepcopy(variant).double().eval()
    inputs = forward_inputs(batch)
    inputs["pixel_values"] = inputs["pixel_values"].double()
    generator = torch.Generator().manual_seed(0)

    def loss() -> torch.Tensor:  # the library's own loss is a float32
        logits = model(**inputs).logits[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits, inputs["labels"][:, 1:].flatten())

    loss().backward()
    for part in ("vision_model", "text_model", "image_projection", "text_projection", "fusion", "decoder"):
        parameters = [p for p in getattr(model.model, part).parameters() if p.grad is not None]
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        analytic = sum(float((p.grad * d).sum()) for p, d in zip(parameters, directions, strict=True))
        step, losses = 1e-5, []
        for sign in (1, -2):
            with torch.no_grad():
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.add_(direction, alpha=sign * step)
                losses.append(float(loss()))
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
        numeric = (losses[0] - losses[1]) / (2 * step)
        assert math.isclose(analytic, numeric, rel_tol=1e-5, abs_tol=1e-7), part


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(
    variant: PalmForReportGeneration, batch: dict[str, torch.Tensor], reentrant: bool
) -> None:
    inputs = forward_inputs(batch)

    def gradients(checkpointing: bool) -> dict[str, torch.Tensor]:
        model = copy.deepcopy(variant)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for config in (model.config.text_config, model.config.decoder_config):
            config.attention_probs_dropout_prob = config.attn_pdrop = 0.0
        for layer in model.model.fusion.encoder.layers:
            layer.attention.dropout = 0.0
        model.train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            assert model.is_activation_checkpointing
        model(**inputs).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain, checkpointed = gradients(False), gradients(True)
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, msg=name)


def test_weights_start_random_and_finite() -> None:
    config = PalmConfig(
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
        text_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        decoder_config={"n_embd": 32, "n_layer": 1, "n_head": 2},
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    model = PalmForReportGeneration(config)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter).all(), name
    assert 0.03 < model.model.prototypes.std().item() < 0.07
    assert 0.03 < model.model.image_projection.layers.weight.std().item() < 0.07
    assert torch.equal(model.model.fusion.encoder.norm.weight, torch.ones(32))
    assert model.lm_head.weight is model.model.decoder.wte.weight


def test_resize_token_embeddings(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    size = model.config.decoder_config.vocab_size
    inputs = {key: value for key, value in forward_inputs(batch).items() if key != "labels"}
    before = model(**inputs).logits
    model.resize_token_embeddings(size + 3)
    assert model.config.get_text_config().vocab_size == size + 3
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model.lm_head.out_features == size + 3
    torch.testing.assert_close(model(**inputs).logits[..., :size], before)
    assert model(**forward_inputs(batch)).loss.isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_round_trip_is_exact(model: PalmForReportGeneration, tmp_path: Path, dtype: torch.dtype) -> None:
    model.to(dtype)
    model.config.training_stage = "align"
    model.save_pretrained(tmp_path)
    reloaded, info = PalmForReportGeneration.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert reloaded.config.training_stage == "align"
    before, after = model.state_dict(), reloaded.state_dict()
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert after[key].dtype == value.dtype == dtype, key
        assert torch.equal(after[key], value), key
    assert reloaded.generation_config.to_dict() == model.generation_config.to_dict()


def test_saved_twice_is_the_same_file(model: PalmForReportGeneration, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "first")
    PalmForReportGeneration.from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "second")
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


def test_untied_head_round_trip(model: PalmForReportGeneration, tmp_path: Path) -> None:
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    untied = PalmForReportGeneration(config)
    assert untied.lm_head.weight is not untied.model.decoder.wte.weight
    untied.save_pretrained(tmp_path)
    reloaded = PalmForReportGeneration.from_pretrained(tmp_path)
    assert torch.equal(reloaded.lm_head.weight, untied.lm_head.weight)
    assert torch.equal(reloaded.model.decoder.wte.weight, untied.model.decoder.wte.weight)


def test_other_checkpoints_are_refused(backbone_dirs: tuple[Path, Path, Path]) -> None:
    for folder, model_type in zip(backbone_dirs, ("dinov2", "cxr-bert", "gpt2"), strict=True):
        with pytest.raises(ValueError, match=f"is of model_type '{model_type}', not 'palm'"):
            PalmForReportGeneration.from_pretrained(folder)


def test_auto_classes_load_the_same_weights(
    tiny_palm_dir: Path, tiny_palm: tuple[PalmForReportGeneration, PalmProcessor]
) -> None:
    whole = AutoModelForImageTextToText.from_pretrained(tiny_palm_dir)
    inner = AutoModel.from_pretrained(tiny_palm_dir)
    assert type(whole) is PalmForReportGeneration and type(inner) is PalmModel
    for key, value in tiny_palm[0].state_dict().items():
        assert torch.equal(whole.state_dict()[key], value), key
    for key, value in tiny_palm[0].model.state_dict().items():
        assert torch.equal(inner.state_dict()[key], value), key


def test_inner_model_folder_loads_into_the_whole(model: PalmForReportGeneration, tmp_path: Path) -> None:
    model.model.save_pretrained(tmp_path)
    whole = PalmForReportGeneration.from_pretrained(tmp_path)
    for key, value in model.state_dict().items():
        assert torch.equal(whole.state_dict()[key], value), key


def test_bfloat16_forward(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    expected = model(**forward_inputs(batch)).loss
    loss = model.to(torch.bfloat16)(**forward_inputs(batch)).loss
    assert loss.isfinite() and abs(float(loss) - float(expected)) < 0.1


def test_prototypes_are_the_encoded_names(model: PalmForReportGeneration, processor: PalmProcessor) -> None:
    palm = model.model
    with torch.no_grad():
        palm.prototypes.normal_()
    last = palm.prototypes[-1].clone()
    palm.train()
    palm.initialize_prototypes(processor, names=["Edema", "Pleural Effusion"])
    assert palm.training, "the mode is restored"
    palm.eval()
    for row, name in enumerate(["Edema", "Pleural Effusion"]):
        tokens = processor.text_tokenizer(name, return_tensors="pt")
        expected = palm.pool(palm.get_text_features(tokens["input_ids"], tokens["attention_mask"]))[0]
        torch.testing.assert_close(palm.prototypes[row], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(palm.prototypes[-1], last)


def test_prototype_names_beyond_the_prototypes(model: PalmForReportGeneration, processor: PalmProcessor) -> None:
    with pytest.raises(ValueError, match="15 names for 14 prototypes"):
        model.model.initialize_prototypes(processor, names=["x"] * 15)
    with pytest.raises(ValueError, match="No prototype names"):
        model.model.initialize_prototypes(processor, names=[])


@pytest.mark.parametrize(("count", "random_rows"), [(20, 6), (5, 0)])
def test_more_or_fewer_prototypes_than_names(tmp_path: Path, count: int, random_rows: int) -> None:
    model, _ = make_tiny_palm(tmp_path, num_prototypes=count)
    prototypes = model.model.prototypes
    assert prototypes.shape == (count, 32)
    norms = prototypes.norm(dim=-1)
    named = count - random_rows
    torch.testing.assert_close(norms[:named], torch.ones(named))
    assert (norms[named:] < 0.5).all(), "random prototypes keep their small start"


def test_no_labels_no_loss(model: PalmForReportGeneration, batch: dict[str, Any]) -> None:
    inputs = {key: value for key, value in forward_inputs(batch).items() if key != "labels"}
    assert model(**inputs).loss is None
