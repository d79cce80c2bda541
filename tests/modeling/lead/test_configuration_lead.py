"""LeadConfig and the three configurations that carry it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from rrg_hf.modeling.lead import LeadConfig, LeadInternVLConfig, LeadMistral3Config, LeadQwen3VLConfig
from rrg_hf.modeling.lead.configuration_lead import PATHOLOGY_NAMES
from rrg_hf.observations import OBSERVATIONS
from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, backbone_config

CONFIGS = {"qwen3_vl": LeadQwen3VLConfig, "internvl": LeadInternVLConfig, "mistral3": LeadMistral3Config}


def test_names_are_the_package_vocabulary() -> None:
    assert PATHOLOGY_NAMES == OBSERVATIONS
    assert LeadConfig().num_experts == 14


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expert_names": []}, "`expert_names` must be one or more different names"),
        ({"expert_names": ["Edema", "Edema"]}, "different names"),
        ({"projection": "both"}, r"`projection` must be one of \['layer', 'shared'\], got 'both'"),
        ({"fusion": "concat"}, "`fusion` must be one of"),
        ({"gate_type": "matrix"}, "`gate_type` must be one of"),
        ({"expert_hidden_size": 0}, "`expert_hidden_size` must be at least 1, got 0"),
        ({"projection_rank": -1}, "`projection_rank` must be at least 1 or None, got -1"),
        ({"gate_rank": 0}, "`gate_rank` must be at least 1 or None"),
        ({"expert_loss_weight": -0.5}, "`expert_loss_weight` must not be negative"),
    ],
    ids=str,
)
def test_refused_values(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeadConfig(**settings)
    with pytest.raises(ValueError, match=message):
        LeadQwen3VLConfig(**backbone_config("qwen3_vl").to_dict() | {"lead_config": settings})


@pytest.mark.parametrize("family", CONFIGS)
def test_a_plain_config_becomes_ours(family: str, tmp_path: Path) -> None:
    plain = backbone_config(family)
    plain.architectures = ["Plain"]
    plain.save_pretrained(tmp_path / "plain")
    config = CONFIGS[family].from_pretrained(tmp_path / "plain", lead_config={"gate_rank": None, "fusion": "add"})
    assert config.model_type == f"lead_{family}" and config.architectures is None
    assert isinstance(config.lead_config, LeadConfig)
    assert config.lead_config.gate_rank is None and config.lead_config.fusion == "add"
    assert config.lead_config.expert_hidden_size == 512, "what is not named keeps its default"
    assert config.get_text_config().to_dict() == plain.get_text_config().to_dict()
    assert config.vision_config.to_dict() == plain.vision_config.to_dict()


@pytest.mark.parametrize("family", CONFIGS)
def test_round_trip(family: str, tmp_path: Path) -> None:
    lead = {**LEAD_TINY, "expert_names": ["Edema", "Fracture"], "projection_rank": None, "expert_loss_weight": 2.5}
    config = CONFIGS[family](**backbone_config(family).to_dict(), lead_config=lead)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert type(again) is CONFIGS[family]
    assert again.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert again.lead_config.expert_names == ["Edema", "Fracture"] and again.lead_config.projection_rank is None
    other = AutoConfig.from_pretrained(tmp_path, lead_config={"gate_type": "scalar"})
    assert other.lead_config.gate_type == "scalar"
    assert other.lead_config.expert_names == ["Edema", "Fracture"], "an override changes what it names only"
    default = CONFIGS[family](**backbone_config(family).to_dict())
    assert default.lead_config.to_dict() == LeadConfig().to_dict()


def test_configs_refuse_other_backbones(tmp_path: Path) -> None:
    backbone_config("internvl").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has model_type 'internvl'; LeadQwen3VLConfig reads 'lead_qwen3_vl' and"):
        LeadQwen3VLConfig.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has model_type 'internvl'"):
        LEAD_CLASSES["mistral3"].from_pretrained(tmp_path)


def test_two_models_of_one_config_share_no_state() -> None:
    names = list(PATHOLOGY_NAMES)
    first = LeadConfig(expert_names=names)
    names.append("Other")
    first.expert_names.append("Another")
    assert LeadConfig().num_experts == 14 and len(PATHOLOGY_NAMES) == 14


def test_no_field_is_undocumented() -> None:
    fields = set(json.loads(LeadConfig().to_json_string(use_diff=False)))
    own = fields - set(json.loads(type(LeadConfig()).__mro__[1]().to_json_string(use_diff=False)))
    assert own and all(f"{name} (`" in LeadConfig.__doc__ for name in own)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 1.5, -0.1])
def test_a_threshold_lies_between_0_and_1(threshold: float) -> None:
    with pytest.raises(ValueError, match="expert_threshold"):
        LeadConfig(expert_threshold=threshold)
