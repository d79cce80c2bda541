"""Configuration of LEAD (layer-wise expert-aligned decoding): one block of settings on top of three backbones'."""

from __future__ import annotations

from typing import Any, ClassVar

import transformers.models.auto.configuration_auto  # noqa: F401 (first: the backbones' modules need it whole)
from transformers.configuration_utils import PreTrainedConfig
from transformers.models.internvl.configuration_internvl import InternVLConfig
from transformers.models.mistral3.configuration_mistral3 import Mistral3Config
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig

# The CheXpert label set. `rrg_hf.observations.OBSERVATIONS` holds the same names; this folder must load alone.
PATHOLOGY_NAMES: tuple[str, ...] = (
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
    "No Finding",
)

NO_FINDING = "No Finding"

_CHOICES: dict[str, tuple[str, ...]] = {
    "projection": ("layer", "shared"),
    "fusion": ("gate", "add", "none"),
    "gate_type": ("vector", "scalar"),
}


class LeadConfig(PreTrainedConfig):
    r"""What LEAD adds to a backbone: pathology experts, their projection to every decoder layer, and gated fusion.

    Source: "Layer-wise Expert-aligned Decoding for Faithful Radiology Report Generation" (arXiv 2602.04617). Fields
    marked "not stated in the paper" are this project's choice.

    Args:
        expert_names (`list[str]`, *optional*):
            One expert per name. Defaults to the 14 CheXpert observations.
        expert_hidden_size (`int`, *optional*, defaults to 512):
            Width of both hidden layers of an expert, so of its feature f_i; not stated in the paper.
        projection (`str`, *optional*, defaults to `"layer"`):
            phi_l of Sec. II-C2: `"layer"` has one per decoder layer, `"shared"` one for all (Table VI).
        projection_rank (`int`, *optional*, defaults to 512):
            Hidden width of phi_l (Linear-GELU-Linear); `None` makes phi_l one Linear. Not stated in the paper. Either
            way its last layer starts at zero, so that a fresh model equals its backbone.
        fusion (`str`, *optional*, defaults to `"gate"`):
            `"gate"`: h + g * m (Sec. II-C4); `"add"`: h + m (Table VI); `"none"`: experts are trained but nothing is
            injected ("auxiliary classification").
        gate_type (`str`, *optional*, defaults to `"vector"`):
            One gate per hidden unit, or `"scalar"`, one per token; not stated in the paper.
        gate_rank (`int`, *optional*, defaults to 256):
            The gate's linear map of [h; e] is factorised through this width; `None` for the full map, which adds about
            9 % compute to an 8B model. Not stated in the paper. Without effect on a scalar gate.
        token_interaction (`bool`, *optional*, defaults to `True`):
            The beta term of Sec. II-C3; without it m = e.
        expert_loss_weight (`float`, *optional*, defaults to 4.0):
            Lambda of L = L_gen + lambda L_cls (from the paper's first version).
        expert_prompting (`bool`, *optional*, defaults to `False`):
            Whether the observations that the experts predict are written into the prompt, in training and inference
            ("expert prompting", Tables II and VI; usually with `fusion="none"`). The model does not do it: trainer and
            pipeline call `predict_experts` and write the prompt.
        expert_threshold (`float`, *optional*, defaults to 0.5):
            Probability from which an expert's observation counts as predicted; not stated in the paper.
    """

    model_type = "lead"
    base_config_key = "lead_config"

    expert_names: list[str] | tuple[str, ...] = PATHOLOGY_NAMES
    expert_hidden_size: int = 512
    projection: str = "layer"
    projection_rank: int | None = 512
    fusion: str = "gate"
    gate_type: str = "vector"
    gate_rank: int | None = 256
    token_interaction: bool = True
    expert_loss_weight: float | int = 4.0
    expert_prompting: bool = False
    expert_threshold: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        self.expert_names = list(self.expert_names)
        if not self.expert_names or len(set(self.expert_names)) != len(self.expert_names):
            raise ValueError(f"`expert_names` must be one or more different names, got {self.expert_names}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}` must be one of {list(choices)}, got {getattr(self, name)!r}.")
        for name in ("expert_hidden_size", "projection_rank", "gate_rank"):
            value = getattr(self, name)
            optional = name != "expert_hidden_size"
            if not (optional and value is None) and (isinstance(value, bool) or value < 1):
                raise ValueError(f"`{name}` must be at least 1{' or None' if optional else ''}, got {value!r}.")
        if self.expert_loss_weight < 0:
            raise ValueError(f"`expert_loss_weight` must not be negative, got {self.expert_loss_weight}.")
        if not 0 < self.expert_threshold < 1:
            raise ValueError(f"`expert_threshold` must lie between 0 and 1, got {self.expert_threshold}.")
        super().__post_init__(**kwargs)

    @property
    def num_experts(self) -> int:
        return len(self.expert_names)


class _FromBackbone:
    """Reads the config.json of a plain backbone as well as its own."""

    model_type: ClassVar[str]
    backbone_model_type: ClassVar[str]

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        config_dict, kwargs = super().get_config_dict(*args, **kwargs)  # type: ignore[misc]
        found = config_dict.get("model_type")
        if found == cls.backbone_model_type:
            config_dict = {**config_dict, "model_type": cls.model_type}
            config_dict.pop("architectures", None)
        elif found is not None and found != cls.model_type:
            raise ValueError(
                f"The checkpoint has model_type {found!r}; {cls.__name__} reads {cls.model_type!r} and the plain "
                f"backbone {cls.backbone_model_type!r}."
            )
        return config_dict, kwargs


class LeadQwen3VLConfig(_FromBackbone, Qwen3VLConfig):
    """Qwen3-VL's configuration with a `lead_config` ([`LeadConfig`], a dict or None for its defaults)."""

    model_type = "lead_qwen3_vl"
    backbone_model_type = "qwen3_vl"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {**Qwen3VLConfig.sub_configs_defaults, "lead_config": LeadConfig}

    lead_config: dict | PreTrainedConfig | None = None


class LeadInternVLConfig(_FromBackbone, InternVLConfig):
    """InternVL's configuration with a `lead_config` ([`LeadConfig`], a dict or None for its defaults)."""

    model_type = "lead_internvl"
    backbone_model_type = "internvl"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {**InternVLConfig.sub_configs_defaults, "lead_config": LeadConfig}

    lead_config: dict | PreTrainedConfig | None = None


class LeadMistral3Config(_FromBackbone, Mistral3Config):
    """Mistral 3's configuration (also Ministral 3) with a `lead_config` ([`LeadConfig`], a dict or None)."""

    model_type = "lead_mistral3"
    backbone_model_type = "mistral3"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {**Mistral3Config.sub_configs_defaults, "lead_config": LeadConfig}

    lead_config: dict | PreTrainedConfig | None = None


__all__ = ["PATHOLOGY_NAMES", "LeadConfig", "LeadInternVLConfig", "LeadMistral3Config", "LeadQwen3VLConfig"]
