"""Loading LEAD for training: families told apart by config.json, fresh parts only on plain backbones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rrg_hf.errors import CheckpointError, ConfigError
from rrg_hf.trainers.lead_loading import lead_config, lead_family, load_lead, load_lead_processor
from rrg_hf.trainers.palm_loading import read_config_json
from tests.trainers.conftest import LEAD_SETTINGS


def test_families(lead_dirs: dict[str, Path], tmp_path: Path, palm_dir: Path) -> None:
    assert [lead_family(lead_dirs[name]) for name in ("qwen3_vl", "internvl", "mistral3")] == [
        ("Qwen3VL", False), ("InternVL", False), ("Mistral3", False),
    ]  # fmt: skip
    load_lead(lead_dirs["internvl"], LEAD_SETTINGS).save_pretrained(tmp_path)
    assert lead_family(tmp_path) == ("InternVL", True)
    with pytest.raises(CheckpointError, match=r"checkpoint of 'palm'\. LEAD stands on"):
        lead_family(palm_dir)
    with pytest.raises(CheckpointError, match="No model could be found at"):
        lead_family(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"No model could be found.*the folder has no config\.json"):
        lead_family(lead_dirs["qwen3_vl"].parent)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"lead"', '{"model_type": "lead_qwen3_vl"', "{}"])
def test_a_config_that_is_no_configuration_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError):
        lead_family(tmp_path)


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"at 'nobody/model' \(We couldn't connect.*\)\. Give a folder"):
        read_config_json("nobody/model", cache_dir=tmp_path, local_files_only=True)


def test_settings(lead_dirs: dict[str, Path], tmp_path: Path) -> None:
    config = lead_config(lead_dirs["qwen3_vl"], {"fusion": "add", "projection": "shared"})
    assert (config.lead_config.fusion, config.lead_config.projection, config.lead_config.gate_rank) == (
        "add", "shared", 256,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"model\.lead has no setting 'fuson' \(did you mean 'fusion'"):
        lead_config(lead_dirs["qwen3_vl"], {"fuson": "add"})
    with pytest.raises(ConfigError, match="`fusion` must be one of"):
        lead_config(lead_dirs["qwen3_vl"], {"fusion": "sum"})
    load_lead(lead_dirs["qwen3_vl"], {**LEAD_SETTINGS, "fusion": "none"}).save_pretrained(tmp_path)
    assert lead_config(tmp_path).lead_config.gate_rank == 4  # a LEAD checkpoint's own settings stay
    with pytest.raises(CheckpointError, match="settings of `lead` may ask for parts"):
        load_lead(tmp_path, {"fusion": "gate"})


def test_incomplete_and_damaged_weights(lead_dirs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(lead_dirs["mistral3"], folder)
    state = load_file(folder / "model.safetensors")
    lost = next(name for name in state if "q_proj" in name)
    save_file({name: value for name, value in state.items() if name != lost}, folder / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    with pytest.raises(CheckpointError, match="are incomplete: 1 are missing"):
        load_lead(folder, LEAD_SETTINGS)
    (folder / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_lead(folder, LEAD_SETTINGS)


def test_dtype_and_processor(lead_dirs: dict[str, Path], tmp_path: Path) -> None:
    assert load_lead(lead_dirs["qwen3_vl"], LEAD_SETTINGS).dtype == torch.float32
    assert load_lead(lead_dirs["qwen3_vl"], LEAD_SETTINGS, dtype="bfloat16").dtype == torch.bfloat16
    processor = load_lead_processor(lead_dirs["internvl"], image_size=48, prompt="Report.")
    assert (type(processor).__name__, processor.image_size, processor.prompt) == (
        "LeadInternVLProcessor", 48, "Report.",
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"}))
    with pytest.raises(CheckpointError, match="No processor could be loaded"):
        load_lead_processor(tmp_path)
