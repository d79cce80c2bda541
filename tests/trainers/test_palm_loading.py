"""Opening PALM checkpoints: other architectures, damaged files and settings that cannot work are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

from rrg_hf.errors import CheckpointError, ConfigError
from rrg_hf.modeling.palm import PalmProcessor
from rrg_hf.trainers.palm_loading import check_vocabularies, load_palm, load_processor, read_palm_config


def test_palm_loads(palm_dir: Path) -> None:
    assert load_palm(palm_dir).config.model_type == "palm"
    assert load_palm(palm_dir, alignment="contrastive").config.alignment == "contrastive"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoint of 'bert', not of PALM.*from_backbones"):
        load_palm(tmp_path)


def test_missing_and_damaged_checkpoints(tmp_path: Path, palm_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="No model could be found"):
        load_palm(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"No model could be found.*the folder has no config\.json"):
        load_palm(tmp_path)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((palm_dir / name).read_text())
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_palm(tmp_path)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"palm"', '{"model_type": "palm"', '{"model_type": 7}'])
def test_a_config_that_is_no_configuration_is_refused(content: str, palm_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(palm_dir, folder)
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError):
        load_palm(folder)


def test_a_checkpoint_with_a_wrong_value_or_without_weights_is_refused(palm_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(palm_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    for key, value in (("fusion_dropout", 9), ("num_prototypes", "a"), ("decoder_config", 3), ("vision_config", [])):
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load_palm(folder)
    (folder / "config.json").write_text(json.dumps(config))
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_palm(folder)


def test_settings_are_checked_without_reading_weights(palm_dir: Path, tmp_path: Path) -> None:
    shutil.copy(palm_dir / "config.json", tmp_path)
    config = read_palm_config(tmp_path, fusion_dropout=0.25, decoder_config={"resid_pdrop": 0.0})
    before = read_palm_config(tmp_path)
    assert (config.fusion_dropout, config.decoder_config.resid_pdrop) == (0.25, 0.0)
    assert config.decoder_config.n_embd == before.decoder_config.n_embd
    for settings, message in (
        ({"fusion_dropout": 9}, "fusion_dropout"),
        ({"num_prototypes": before.num_prototypes + 1}, r"num_prototypes: .*first model\.prototypes"),
        ({"decoder_input": "prefix"}, "a checkpoint keeps its shapes"),
        ({"vision_config": {"hidden_size": 4 * before.vision_config.hidden_size}}, "a checkpoint keeps its shapes"),
        ({"prototype_names": 3}, "prototype_names"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_palm_config(tmp_path, **settings)


def test_a_processor_that_is_none_or_lacks_files(palm_dir: Path, tmp_path: Path) -> None:
    assert isinstance(load_processor(palm_dir), PalmProcessor)
    for place in (tmp_path, tmp_path / "none", "/no/where/at/all"):
        with pytest.raises(CheckpointError, match="No PalmProcessor could be loaded"):
            load_processor(place)
    folder = tmp_path / "model"
    shutil.copytree(palm_dir, folder)
    for path in folder.glob("**/tokenizer.json"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizers of .* are empty|No PalmProcessor"):
        load_processor(folder)


def test_a_processor_of_another_model_is_refused(palm_dir: Path) -> None:
    processor = load_processor(palm_dir)
    check_vocabularies(read_palm_config(palm_dir), processor)
    small = read_palm_config(palm_dir)
    small.decoder_config.vocab_size = len(processor.tokenizer) - 1
    with pytest.raises(ConfigError, match=r"tokenizer for the decoder has \d+ tokens, but the model knows \d+"):
        check_vocabularies(small, processor)
    other = read_palm_config(palm_dir)
    other.eos_token_id = processor.tokenizer.eos_token_id + 1
    with pytest.raises(ConfigError, match=f"set eos_token_id to {processor.tokenizer.eos_token_id}"):
        check_vocabularies(other, processor)


def test_weights_that_lack_tensors_are_refused(tmp_path: Path, palm_dir: Path) -> None:
    """transformers would fill them with random numbers and only warn."""
    from safetensors.torch import load_file, save_file

    for file in palm_dir.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    weights = load_file(palm_dir / "model.safetensors")
    lost = sorted(name for name in weights if ".decoder.h." in name)[:3]
    kept = {name: weight for name, weight in weights.items() if name not in lost}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="3 are missing"):
        load_palm(tmp_path)
