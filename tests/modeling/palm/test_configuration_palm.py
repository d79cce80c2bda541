"""PalmConfig: defaults, round trips, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, Dinov2Config, GPT2Config, ViTConfig

from rrg_hf.modeling.palm import PalmConfig
from rrg_hf.modeling.palm.configuration_palm import PATHOLOGY_NAMES
from rrg_hf.observations import OBSERVATIONS


def test_defaults_are_the_papers_backbones() -> None:
    config = PalmConfig()
    assert (config.vision_config.image_size, config.vision_config.patch_size) == (518, 14)
    assert (config.decoder_config.n_layer, config.decoder_config.n_embd) == (6, 768)
    assert config.decoder_config.vocab_size == 50257
    assert config.decoder_config.add_cross_attention is True
    assert config.projection_dim == 768
    assert config.num_prototypes == 14
    assert (config.alignment_temperature, config.sinkhorn_epsilon, config.mem_mask_ratio) == (0.1, 0.5, 0.5)
    assert config.tie_word_embeddings is True
    assert config.training_stage is None


def test_prototype_names_are_the_observations_in_order() -> None:
    assert PATHOLOGY_NAMES == OBSERVATIONS
    assert PalmConfig().prototype_names == list(OBSERVATIONS)


def test_text_config_of_generation_is_the_decoders() -> None:
    config = PalmConfig()
    assert config.get_text_config() is config.decoder_config
    assert config.get_text_config(decoder=True) is config.decoder_config
    assert config.get_text_config(encoder=True) is config.text_config


@pytest.mark.parametrize("as_dict", [True, False])
def test_backbone_configs_as_dicts_or_objects(as_dict: bool) -> None:
    vision, text, decoder = (
        Dinov2Config(hidden_size=48),
        BertConfig(hidden_size=24, num_attention_heads=2),
        GPT2Config(n_embd=36, n_head=3),
    )
    given = [part.to_dict() if as_dict else part for part in (vision, text, decoder)]
    config = PalmConfig(vision_config=given[0], text_config=given[1], decoder_config=given[2])
    assert isinstance(config.vision_config, Dinov2Config) and config.vision_config.hidden_size == 48
    assert isinstance(config.text_config, BertConfig) and config.text_config.hidden_size == 24
    assert isinstance(config.decoder_config, GPT2Config) and config.decoder_config.n_embd == 36
    assert config.projection_dim == 36
    assert config.decoder_config.add_cross_attention is True
    assert decoder.add_cross_attention is False, "the caller's object must stay as it was"


def test_prefix_needs_no_cross_attention() -> None:
    assert PalmConfig(decoder_input="prefix").decoder_config.add_cross_attention is False


def test_special_tokens_agree_on_both_levels() -> None:
    config = PalmConfig(decoder_config={"vocab_size": 100, "eos_token_id": 7, "bos_token_id": 3}, pad_token_id=5)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (3, 7, 5)
    assert config.decoder_config.pad_token_id == 5


def test_round_trip_is_exact(tmp_path: Path) -> None:
    config = PalmConfig(
        vision_config={"hidden_size": 48, "image_size": 56},
        text_config={"hidden_size": 24, "num_attention_heads": 2},
        decoder_config={"n_embd": 36, "n_head": 3, "n_layer": 12},
        projection_dim=20,
        projection_type="mlp",
        alignment="contrastive",
        num_prototypes=20,
        prototype_names=["Edema", "Nodule"],
        decoder_input="prefix",
        training_stage="align",
        alignment_queue_size=64,
        mem_mask_strategy="block",
        normalize_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    before, after = config.to_dict(), PalmConfig.from_pretrained(tmp_path).to_dict()
    assert {key for key in before if before[key] != after[key]} <= {"_name_or_path"}
    assert before.keys() == after.keys()


def test_generic_keys_pass(tmp_path: Path) -> None:
    config = PalmConfig(
        dtype="bfloat16",
        architectures=["PalmForReportGeneration"],
        auto_map={"AutoConfig": "configuration_palm.PalmConfig"},
        transformers_version="5.24.0",
        output_hidden_states=True,
        attn_implementation="eager",
        num_labels=3,
        use_cache=False,
        max_length=50,
        _name_or_path="somewhere",
        quantization_config={"load_in_8bit": True},
    )
    assert config.dtype == torch.bfloat16
    assert config.vision_config._attn_implementation == "eager"
    assert config.auto_map == {"AutoConfig": "configuration_palm.PalmConfig"}
    config.save_pretrained(tmp_path)
    reloaded = PalmConfig.from_pretrained(tmp_path, output_attentions=False)
    assert reloaded.auto_map == config.auto_map and reloaded.architectures == config.architectures


def test_keys_of_other_releases_in_saved_backbone_configs_pass() -> None:
    saved = {"model_type": "gpt2", "n_ctx": 1024, "task_specific_params": {}, "something_of_its_own": 1}
    assert PalmConfig(decoder_config=saved).decoder_config.n_layer == 12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mem_mask_ratoi": 0.2}, "'mem_mask_ratoi' .did you mean 'mem_mask_ratio'"),
        ({"aligment": "contrastive"}, "'aligment' .did you mean 'alignment'"),
        (
            {"decoder": "distilgpt2"},
            "'decoder' .did you mean 'decoder_config'|'decoder' .did you mean 'decoder_input'",
        ),
        ({"zzz": 1}, "does not know the key 'zzz'"),
        ({"vision_config": {"hiden_size": 3}}, "vision_config.* 'hiden_size' .did you mean 'hidden_size'"),
        ({"text_config": {"num_hidden_layer": 3}}, "'num_hidden_layer' .did you mean 'num_hidden_layers'"),
        ({"decoder_config": {"model_type": "gpt2", "n_layers": 3}}, "'n_layers' .did you mean 'n_layer'"),
        ({"vision_config": {"model_type": "vit"}}, "model_type 'vit', but PALM needs 'dinov2'.*from_backbones"),
        ({"model_type": "gpt2", "n_embd": 3}, "is of model_type 'gpt2', not 'palm'.*from_backbones"),
        ({"vision_config": ViTConfig()}, "must be a Dinov2Config, got a ViTConfig"),
        ({"vision_config": 3}, "must be a Dinov2Config, a dict or None, got int"),
        ({"alignment": "ot"}, "`alignment` must be one of"),
        ({"decoder_input": "adapter"}, "`decoder_input` must be one of"),
        ({"mem_mask_strategy": "blocks"}, "`mem_mask_strategy` must be one of"),
        ({"training_stage": "done"}, "`training_stage` must be one of"),
        ({"projection_type": "conv"}, "`projection_type` must be one of"),
        ({"num_prototypes": 0}, "`num_prototypes` must be an integer of at least 1, got 0"),
        ({"num_prototypes": "14"}, "`num_prototypes` must be an integer"),
        ({"alignment_queue_size": -1}, "`alignment_queue_size`"),
        ({"projection_dim": 0}, "`projection_dim` must be a positive integer"),
        ({"alignment_temperature": 0.0}, "`alignment_temperature` must be a positive, finite number"),
        ({"sinkhorn_epsilon": float("inf")}, "`sinkhorn_epsilon` must be a positive, finite number"),
        ({"prototype_names": [1, 2]}, "`prototype_names` must be a list of names"),
        ({"normalize_embeddings": "maybe"}, "`normalize_embeddings` must be true or false"),
        ({"tie_word_embeddings": 1}, "`tie_word_embeddings` must be true or false"),
        ({"sinkhorn_epsilon": "0.5"}, "`sinkhorn_epsilon` must be a positive, finite number"),
        ({"mem_mask_ratio": 1.0}, "`mem_mask_ratio` must lie between 0 and 1"),
        ({"fusion_dropout": 1}, "`fusion_dropout` must be at least 0 and below 1"),
        ({"projection_dim": 30, "fusion_heads": 4}, "must be a multiple of `fusion_heads`"),
        ({"prototype_names": "Edema"}, "must be a list of names"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PalmConfig(**given)


def test_a_misspelt_key_in_a_config_file_is_refused(tmp_path: Path) -> None:
    PalmConfig().save_pretrained(tmp_path)
    entries = json.loads((tmp_path / "config.json").read_text())
    entries["fusion_layer"] = entries.pop("fusion_layers")
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"'fusion_layer' .did you mean 'fusion_layers'"):
        PalmConfig.from_pretrained(tmp_path)
