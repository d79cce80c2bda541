"""Cached position projections give the logits of the plain network, and leave everything but speed as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2ForTokenClassification

from rrg_hf.modeling.ratescore import cache_relative_positions
from rrg_hf.modeling.ratescore import positions_ratescore as positions

V3: dict[str, Any] = {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "v3": V3,
    "v3_wide_buckets": {**V3, "position_buckets": 64, "max_position_embeddings": 300},
    "v2_own_projections": {"share_att_key": False, "position_buckets": 8},
    "no_buckets": {"share_att_key": True, "position_buckets": -1, "max_relative_positions": 64},
    "content_to_position_only": {**V3, "pos_att_type": ["c2p"]},
    "position_to_content_only": {**V3, "share_att_key": False, "pos_att_type": ["p2c"]},
    "convolution": {**V3, "conv_kernel_size": 3, "conv_act": "gelu"},
    "no_relative_attention": {"relative_attention": False, "pos_att_type": []},
}


def tagger(**settings: Any) -> DebertaV2ForTokenClassification:
    torch.manual_seed(0)
    base = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 128}
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32}
    config = DebertaV2Config(**{"vocab_size": 50, "num_labels": 7, "type_vocab_size": 0, **shape, **base, **settings})
    model = DebertaV2ForTokenClassification(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def batch(length: int, rows: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(1, 50, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, max(1, length - 2 * row) :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_plain_network(settings: dict[str, Any]) -> None:
    plain, fast = tagger(**settings), tagger(**settings)
    assert cache_relative_positions(fast) is True
    for length in (1, 2, 9, 30, 7, 100):
        inputs = batch(length)
        with torch.inference_mode():
            expected, found = plain(**inputs).logits, fast(**inputs).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_positions_are_projected_once_and_only_those_in_reach_are_used() -> None:
    fast = tagger(**V3)
    cache_relative_positions(fast)
    attention = fast.deberta.encoder.layer[1].attention.self
    shapes = []
    attention.key_proj.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    with torch.inference_mode():
        for length in (5, 9, 5):
            fast(**batch(length, rows=2))
    assert shapes == [(2, 5, 24), (32, 24), (2, 9, 24), (2, 5, 24)]
    reach = attention.disentangled_attention_bias.reach
    assert reach.stop - reach.first == 2 * 5 - 1


def test_new_weights_and_dtypes_are_noticed() -> None:
    plain, fast = tagger(**V3), tagger(**V3)
    cache_relative_positions(fast)
    inputs = batch(12)
    with torch.no_grad():
        fast(**inputs)
        for model in (plain, fast):
            model.deberta.encoder.rel_embeddings.weight.mul_(1.5)
            model.deberta.encoder.layer[0].attention.self.key_proj.bias.add_(1.0)
        torch.testing.assert_close(fast(**inputs).logits, plain(**inputs).logits, rtol=1e-4, atol=1e-4)
        found, expected = fast.double()(**inputs).logits, plain.double()(**inputs).logits
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_training_takes_the_original_path() -> None:
    plain, fast = tagger(**V3), tagger(**V3)
    cache_relative_positions(fast)
    inputs = batch(10)
    labels = torch.zeros_like(inputs["input_ids"])
    with torch.inference_mode():
        fast(**inputs)  # the tables of inference must not reach autograd
    for model in (plain, fast):
        model.train()
        torch.manual_seed(1)
        model(**inputs, labels=labels).loss.backward()
    for (name, expected), found in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None), name
        if expected.grad is not None:
            assert torch.equal(expected.grad, found.grad), name


def test_saving_copying_and_a_second_call_change_nothing(tmp_path) -> None:
    plain, fast = tagger(**V3), tagger(**V3)
    cache_relative_positions(fast)
    cache_relative_positions(fast)
    inputs = batch(8)
    with torch.inference_mode():
        expected = fast(**inputs).logits
    assert fast.state_dict().keys() == plain.state_dict().keys()
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        twin.deberta.encoder.layer[0].attention.self.query_proj.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(fast(**inputs).logits, expected)
        assert not torch.allclose(twin(**inputs).logits, expected)
    fast.save_pretrained(tmp_path)
    again = DebertaV2ForTokenClassification.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        torch.testing.assert_close(again(**inputs).logits, expected, rtol=1e-4, atol=1e-4)


def test_other_networks_are_refused_and_unknown_builds_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match="no DeBERTa-v2 encoder"):
        cache_relative_positions(BertModel(BertConfig(vocab_size=9, **shape)))
    model = tagger(**V3)
    monkeypatch.setattr(positions, "_ARGUMENTS", ("query_layer",))
    assert cache_relative_positions(model) is False
    assert "disentangled_attention_bias" not in vars(model.deberta.encoder.layer[0].attention.self)
