"""from_backbones: the layouts that rad-dino, CXR-BERT and distilgpt2 have on the Hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, Dinov2Model, GPT2LMHeadModel

from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from tests.tiny_palm import make_tiny_decoder

Dirs = tuple[Path, Path, Path]


@pytest.fixture
def copies(backbone_dirs: Dirs, tmp_path: Path) -> Dirs:
    """Backbone folders that a test may damage."""
    vision, text, decoder = (Path(shutil.copytree(path, tmp_path / path.name)) for path in backbone_dirs)
    return vision, text, decoder


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(path: Path, *, drop: str | None = None, **added: torch.Tensor) -> None:
    """Drop the weights whose name contains `drop`, and add some; dots in added names are written as __."""
    binary = path.suffix == ".bin"
    weights = torch.load(path, weights_only=True) if binary else load_file(path)
    weights = {key: value for key, value in weights.items() if drop is None or drop not in key}
    weights |= {key.replace("__", "."): value for key, value in added.items()}
    if binary:
        torch.save(weights, path)
    else:
        save_file(weights, path, metadata={"format": "pt"})


def test_fixtures_have_the_hub_layouts(backbone_dirs: Dirs) -> None:
    """What these tests stand on: key names as in the published checkpoints."""
    vision, text, decoder = backbone_dirs
    vision_keys = set(load_file(vision / "model.safetensors"))
    assert {"embeddings.cls_token", "embeddings.mask_token", "embeddings.position_embeddings", "layernorm.weight"} <= (
        vision_keys
    )
    assert "encoder.layer.0.attention.attention.query.weight" in vision_keys
    assert "encoder.layer.1.attention.output.dense.bias" in vision_keys
    assert json.loads((vision / "config.json").read_text())["model_type"] == "dinov2"
    text_keys = set(torch.load(text / "pytorch_model.bin", weights_only=True))
    assert "bert.encoder.layer.0.attention.self.query.weight" in text_keys
    assert "cls.predictions.transform.dense.weight" in text_keys
    assert "cls_projection_head.dense_to_hidden.weight" in text_keys
    assert json.loads((text / "config.json").read_text())["model_type"] == "cxr-bert"
    decoder_keys = set(load_file(decoder / "model.safetensors"))
    assert {"transformer.wte.weight", "transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"} <= decoder_keys


def test_encoders_equal_the_backbones(backbone_dirs: Dirs, batch: dict[str, torch.Tensor]) -> None:
    vision, text, decoder = backbone_dirs
    model = PalmForReportGeneration.from_backbones(vision, text, decoder)
    assert not model.training
    plain_vision = Dinov2Model.from_pretrained(vision).eval()
    pixels = batch["pixel_values"]
    expected = plain_vision(pixel_values=pixels).last_hidden_state
    assert torch.equal(model.model.vision_model(pixel_values=pixels).last_hidden_state, expected)

    entries = json.loads((text / "config.json").read_text())
    config = BertConfig(**{key: entries[key] for key in BertConfig().to_dict() if key in entries})
    plain_text = BertModel(config, add_pooling_layer=False).eval()
    weights = torch.load(text / "pytorch_model.bin", weights_only=True)
    bert = {key[5:]: value for key, value in weights.items() if key.startswith("bert.")}
    bert.pop("embeddings.position_ids")
    plain_text.load_state_dict(bert, strict=True)
    ids, mask = batch["report_input_ids"], batch["report_attention_mask"]
    expected = plain_text(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(model.model.text_model(input_ids=ids, attention_mask=mask).last_hidden_state, expected)

    plain_decoder = GPT2LMHeadModel.from_pretrained(decoder).eval()
    for key, value in plain_decoder.transformer.state_dict().items():
        assert torch.equal(model.model.decoder.state_dict()[key], value), key
    assert model.lm_head.weight is model.model.decoder.wte.weight


def test_decoder_without_memory_equals_the_language_model(backbone_dirs: Dirs, batch: dict[str, torch.Tensor]) -> None:
    """With silenced cross-attention, PALM's decoder and head are the GPT-2 they came from."""
    model = PalmForReportGeneration.from_backbones(*backbone_dirs)
    for block in model.model.decoder.h:
        torch.nn.init.zeros_(block.crossattention.c_proj.weight)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    expected = GPT2LMHeadModel.from_pretrained(backbone_dirs[2]).eval()(input_ids=ids, attention_mask=mask).logits
    logits = model(input_ids=ids, attention_mask=mask, pixel_values=batch["pixel_values"]).logits
    torch.testing.assert_close(logits[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)


def test_report_counts_and_names(backbone_dirs: Dirs) -> None:
    report = PalmForReportGeneration.from_backbones(*backbone_dirs).backbone_report
    assert report is not None
    assert report.dropped["vision_model"] == [] and report.new["vision_model"] == []
    assert sum(name.startswith("cls_projection_head.") for name in report.dropped["text_model"]) == 6
    assert report.new["text_model"] == []
    assert report.new["decoder"] and all("cross" in name for name in report.new["decoder"])
    assert len(report.new["decoder"]) == 16
    text = torch.load(backbone_dirs[1] / "pytorch_model.bin", weights_only=True)
    assert report.loaded["text_model"] == sum(key.startswith("bert.") for key in text) - 1  # without position_ids
    assert "16 new" in str(report)
    assert PalmForReportGeneration.from_backbones(*backbone_dirs, decoder_input="prefix").backbone_report.new[
        "decoder"
    ] == []  # fmt: skip


def test_config_fields_pass_through(backbone_dirs: Dirs) -> None:
    model = PalmForReportGeneration.from_backbones(*backbone_dirs, projection_dim=16, alignment="contrastive")
    assert model.config.projection_dim == 16 and model.config.alignment == "contrastive"
    assert model.config.vision_config.image_size == 56
    with pytest.raises(ValueError, match="did you mean 'fusion_layers'"):
        PalmForReportGeneration.from_backbones(*backbone_dirs, fusion_layer=1)
    with pytest.raises(ValueError, match="reads \\['vision_config'\\] from the checkpoints"):
        PalmForReportGeneration.from_backbones(*backbone_dirs, vision_config={})


def test_seed_decides_the_new_weights(backbone_dirs: Dirs) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(PalmForReportGeneration.from_backbones(*backbone_dirs).state_dict())
    key = "model.decoder.h.0.crossattention.q_attn.weight"
    assert torch.equal(models[0][key], models[1][key]) and not torch.equal(models[0][key], models[2][key])
    key = "model.image_projection.layers.weight"
    assert torch.equal(models[0][key], models[1][key]) and not torch.equal(models[0][key], models[2][key])


def test_prototypes_start_from_the_tokenizer_beside_the_text_encoder(backbone_dirs: Dirs, tmp_path: Path) -> None:
    vision, text, decoder = backbone_dirs
    model = PalmForReportGeneration.from_backbones(vision, text, decoder)
    processor = PalmProcessor.from_backbones(vision, text, decoder)
    found = model.model.prototypes.detach().clone()
    model.model.initialize_prototypes(processor)
    assert torch.equal(model.model.prototypes, found)
    bare = Path(shutil.copytree(text, tmp_path / "text", ignore=shutil.ignore_patterns("vocab.txt", "tokenizer*")))
    torch.manual_seed(0)
    without = PalmForReportGeneration.from_backbones(vision, bare, decoder)
    assert (without.model.prototypes.norm(dim=-1) < 0.5).all(), "random start"
    given = PalmForReportGeneration.from_backbones(vision, bare, decoder, text_tokenizer=processor.text_tokenizer)
    torch.testing.assert_close(given.model.prototypes.norm(dim=-1), torch.ones(14))


@pytest.mark.parametrize(("prefix", "buffers"), [("transformer.", False), ("", True), ("", False)])
def test_other_gpt2_layouts(backbone_dirs: Dirs, tmp_path: Path, prefix: str, buffers: bool) -> None:
    """Without the `transformer.` prefix, as `gpt2` is stored, and without mask buffers and head, as saved today."""
    decoder = make_tiny_decoder(tmp_path / "decoder", prefix=prefix, buffers=buffers)
    model = PalmForReportGeneration.from_backbones(*backbone_dirs[:2], decoder)
    saved = load_file(decoder / "model.safetensors")
    assert torch.equal(model.lm_head.weight, saved[f"{prefix}wte.weight"])
    assert torch.equal(model.model.decoder.h[1].mlp.c_fc.weight, saved[f"{prefix}h.1.mlp.c_fc.weight"])


def test_text_encoder_as_safetensors_or_plain_bert(copies: Dirs) -> None:
    text = copies[1]
    expected = PalmForReportGeneration.from_backbones(*copies).model.text_model.state_dict()
    weights = torch.load(text / "pytorch_model.bin", weights_only=True)
    save_file({key: value.contiguous() for key, value in weights.items() if "decoder" not in key},
              text / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    (text / "pytorch_model.bin").unlink()
    model = PalmForReportGeneration.from_backbones(*copies)
    for key, value in expected.items():
        assert torch.equal(model.model.text_model.state_dict()[key], value), key
    bare = {key[5:]: value for key, value in weights.items() if key.startswith("bert.")}
    bare |= {"pooler.dense.weight": torch.zeros(32, 32), "pooler.dense.bias": torch.zeros(32)}
    save_file(bare, text / "model.safetensors", metadata={"format": "pt"})
    edit_json(text / "config.json", model_type="bert")
    model = PalmForReportGeneration.from_backbones(*copies)
    for key, value in expected.items():
        assert torch.equal(model.model.text_model.state_dict()[key], value), key
    assert model.backbone_report is not None
    assert model.backbone_report.dropped["text_model"] == ["pooler.dense.bias", "pooler.dense.weight"]


def test_no_remote_code_runs(copies: Dirs, tmp_path: Path) -> None:
    """CXR-BERT's auto_map points at code; it must not be imported, nor pickled objects be built."""
    text = copies[1]
    marker = tmp_path / "ran"
    for name in ("configuration_cxrbert.py", "modeling_cxrbert.py"):
        (text / name).write_text(f"from pathlib import Path\nPath({str(marker)!r}).write_text('x')\n")
    PalmForReportGeneration.from_backbones(*copies)
    PalmProcessor.from_backbones(*copies)
    assert not marker.exists()


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "ran")


def test_pickles_with_code_are_refused(copies: Dirs, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    weights = torch.load(copies[1] / "pytorch_model.bin", weights_only=True)
    torch.save(weights | {"bert.extra": Planted(marker)}, copies[1] / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights_only|unsupported|not allowed"):
        PalmForReportGeneration.from_backbones(*copies)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("part", "weights", "name"),
    [
        (0, "model.safetensors", "encoder.layer.1.mlp.fc1.weight"),
        (1, "pytorch_model.bin", "encoder.layer.0.output.dense.bias"),
        (2, "model.safetensors", "h.1.mlp.c_fc.weight"),
    ],
)
def test_missing_weights_are_named(copies: Dirs, part: int, weights: str, name: str) -> None:
    edit_weights(copies[part] / weights, drop=name)
    with pytest.raises(ValueError, match=f"1 missing weights .*{name}"):
        PalmForReportGeneration.from_backbones(*copies)


@pytest.mark.parametrize(
    ("part", "weights", "name"),
    [
        (0, "model.safetensors", "encoder__layer__7__surprise"),
        (1, "pytorch_model.bin", "bert__encoder__layer__7__surprise"),
        (2, "model.safetensors", "transformer__h__0__surprise"),
    ],
)
def test_unexpected_weights_are_named(copies: Dirs, part: int, weights: str, name: str) -> None:
    edit_weights(copies[part] / weights, **{name: torch.zeros(1)})
    with pytest.raises(ValueError, match=r"1 unexpected weights .*surprise"):
        PalmForReportGeneration.from_backbones(*copies)


def test_misshapen_weights_are_named(copies: Dirs) -> None:
    edit_weights(copies[0] / "model.safetensors", embeddings__cls_token=torch.zeros(1, 1, 16))
    with pytest.raises(ValueError, match=r"1 weights of another shape .*embeddings.cls_token"):
        PalmForReportGeneration.from_backbones(*copies)


def test_other_architectures_are_refused(backbone_dirs: Dirs, copies: Dirs) -> None:
    vision, text, decoder = backbone_dirs
    with pytest.raises(ValueError, match="model_type 'cxr-bert'; PALM's vision_model is read from 'dinov2'"):
        PalmForReportGeneration.from_backbones(text, vision, decoder)
    with pytest.raises(ValueError, match="model_type 'gpt2'; PALM's text_model is read from 'bert' or 'cxr-bert'"):
        PalmForReportGeneration.from_backbones(vision, decoder, text)
    edit_json(copies[2] / "config.json", model_type="llama")
    with pytest.raises(ValueError, match="model_type 'llama'"):
        PalmForReportGeneration.from_backbones(*copies)
    edit_json(copies[1] / "config.json", position_embedding_type="relative_key")
    with pytest.raises(ValueError, match="'relative_key' position embeddings"):
        PalmForReportGeneration.from_backbones(*copies)


def test_absent_folder(backbone_dirs: Dirs, tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError), match="nowhere"):
        PalmForReportGeneration.from_backbones(tmp_path / "nowhere", *backbone_dirs[1:])


def test_no_folder_of_this_machine_in_a_saved_config(backbone_dirs: Dirs, tmp_path: Path) -> None:
    PalmForReportGeneration.from_backbones(*backbone_dirs).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert not any(str(folder) in text for folder in backbone_dirs)


def test_prototypes_can_stay_at_their_random_start(backbone_dirs: Dirs) -> None:
    named = PalmForReportGeneration.from_backbones(*backbone_dirs)
    random = PalmForReportGeneration.from_backbones(*backbone_dirs, initialize_prototypes=False)
    directions = torch.nn.functional.normalize(random.model.prototypes.detach(), dim=-1)
    assert (directions @ directions.T).fill_diagonal_(-1).max() < 0.95
    assert not torch.equal(named.model.prototypes, random.model.prototypes)
