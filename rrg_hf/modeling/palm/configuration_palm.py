"""Configuration of PALM (prototype-aligned radiology report generation)."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
from collections.abc import Iterable
from typing import Any, ClassVar

# The three backbone configurations are imported where they are used: importing them loads the Auto modules, which may
# themselves be waiting for this module (see `rrg_hf/_auto.py`).
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec
from transformers.models.auto.configuration_auto import AutoConfig

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

# distilgpt2. Its vocabulary has no padding token: see `PalmProcessor`.
_DECODER_DEFAULTS: dict[str, Any] = {"n_layer": 6}
# rad-dino: ViT-B/14 at 518 px.
_VISION_DEFAULTS: dict[str, Any] = {"image_size": 518, "patch_size": 14}

# Keys that any config.json may hold and that `PreTrainedConfig` or the tools around it read or write.
_GENERIC_KEYS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "custom_pipelines",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "per_layer_config",
        "pruned_heads",
        "quantization_config",
        "task_specific_params",
        "tie_last_hidden_states",
        "tokenizer_class",
        "torch_dtype",
        "use_bfloat16",
        "use_cache",
    }
)
# Written by older releases into the backbones' config.json; they have no effect today.
_LEGACY_BACKBONE_KEYS = frozenset(
    {"gradient_checkpointing", "n_ctx", "position_embedding_type", "projection_size", "is_causal", "prefix"}
)

_CHOICES: dict[str, tuple[Any, ...]] = {
    "projection_type": ("linear", "mlp"),
    "alignment": ("prototype", "contrastive"),
    "mem_mask_strategy": ("random", "block"),
    "decoder_input": ("cross_attention", "prefix"),
    "training_stage": (None, "mem", "align", "generate"),
}


def _generic_keys() -> set[str]:
    from transformers.generation.configuration_utils import GenerationConfig

    base_fields = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    generation = set(GenerationConfig._get_default_generation_params())
    return base_fields | generation | _GENERIC_KEYS


def _unknown_key_error(owner: str, unknown: Iterable[str], known: set[str]) -> ValueError:
    parts = []
    for key in sorted(unknown):
        close = difflib.get_close_matches(key, sorted(known), n=3, cutoff=0.6)
        parts.append(f"{key!r} (did you mean {', '.join(map(repr, close))}?)" if close else repr(key))
    return ValueError(f"{owner} does not know the key{'s' if len(parts) > 1 else ''} {', '.join(parts)}.")


def _backbone_config(
    name: str,
    value: PreTrainedConfig | dict[str, Any] | None,
    config_class: type[PreTrainedConfig],
    defaults: dict[str, Any],
) -> PreTrainedConfig:
    """The backbone's config object from an object, a dict or None, with misspelt keys refused."""
    expected = config_class.model_type
    if isinstance(value, PreTrainedConfig):
        if not isinstance(value, config_class):
            raise ValueError(f"`{name}` must be a {config_class.__name__}, got a {type(value).__name__}.")
        return copy.deepcopy(value)  # the caller's object stays as it is
    if value is None:
        return config_class(**defaults)
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` must be a {config_class.__name__}, a dict or None, got {type(value).__name__}.")
    model_type = value.get("model_type", expected)
    if model_type != expected:
        raise ValueError(
            f"`{name}` has model_type {model_type!r}, but PALM needs {expected!r} there. To start from another "
            "checkpoint layout use `PalmForReportGeneration.from_backbones`."
        )
    known = {key for key in config_class().to_dict() if not key.startswith("_")}
    known |= {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    tolerated = _generic_keys() | _LEGACY_BACKBONE_KEYS
    unknown = {key for key in value if key not in known | tolerated and not key.startswith("_")}
    if "model_type" in value:
        # Read from a config.json, where another release may have left keys of its own. Near misses stay errors.
        unknown = {key for key in unknown if difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.8)}
    if unknown:
        raise _unknown_key_error(f"{config_class.__name__} (`{name}`)", unknown, known)
    return config_class(**{key: entry for key, entry in value.items() if key != "model_type"})


class PalmConfig(PreTrainedConfig):
    r"""Configuration of a [`PalmModel`], a [`PalmForReportGeneration`] and their training stages.

    Source: "Learning to See Locally and Align Clinically with Pathology Semantics for Radiology Report Generation"
    (PALM). The defaults have the shapes of `microsoft/rad-dino`, `microsoft/BiomedVLP-CXR-BERT-specialized` (BERT
    base) and `distilgpt2`. The paper leaves many choices open; each is a field here, marked "not stated in the paper".

    Args:
        vision_config (`Dinov2Config` or `dict`, *optional*):
            Visual encoder psi_I. Defaults to ViT-B/14 at 518 px.
        text_config (`BertConfig` or `dict`, *optional*):
            Text encoder psi_T, used for reports (alignment), indications (generation) and prototype names.
        decoder_config (`GPT2Config` or `dict`, *optional*):
            Language model. `add_cross_attention` follows `decoder_input` and need not be given.
        projection_dim (`int`, *optional*):
            Width D of the shared space of Eq. 7. Defaults to the decoder's width; not stated in the paper.
        projection_type (`str`, *optional*, defaults to `"linear"`):
            phi_I and phi_T of Eq. 7: `"linear"` or `"mlp"` (Linear-GELU-Linear); not stated in the paper.
        normalize_embeddings (`bool`, *optional*, defaults to `True`):
            Whether z (Eq. 8) and the prototypes are scaled to unit length before they are compared, so that z p^T is
            a cosine; not stated in the paper.
        num_prototypes (`int`, *optional*, defaults to 14):
            K of Eq. 9. Those beyond the named ones start at random.
        prototype_names (`list[str]`, *optional*):
            Names whose encodings start the first prototypes. Defaults to the 14 CheXpert observations.
        alignment (`str`, *optional*, defaults to `"prototype"`):
            `"prototype"` is L_multi + L_uni (Eq. 11-13); `"contrastive"` the symmetric InfoNCE of the ablation.
        alignment_temperature (`float`, *optional*, defaults to 0.1):
            tau of the similarity softmax and of the transport cost; its value is not stated in the paper.
        sinkhorn_epsilon (`float`, *optional*, defaults to 0.5):
            Entropy weight of the transport problem (Eq. 10); its value is not stated in the paper. With tau = 0.1 the
            kernel is exp(20 cos), the sharpness of SwAV.
        sinkhorn_max_iterations (`int`, *optional*, defaults to 10000):
            Cap on Sinkhorn iterations; it stops much earlier once the marginals hold. Not stated in the paper.
        alignment_queue_size (`int`, *optional*, defaults to 0):
            Past embeddings per modality that join the transport problem, as SwAV's queue, for batches that are small
            against K. 0 turns it off; not stated in the paper.
        gather_embeddings (`bool`, *optional*, defaults to `True`):
            Whether alignment gathers embeddings over distributed ranks, so that the loss and its gradient are those of
            one process on the global batch; not stated in the paper.
        mem_mask_ratio (`float`, *optional*, defaults to 0.5):
            Share of patches masked in Masked Evidence Modeling; not stated in the paper.
        mem_mask_strategy (`str`, *optional*, defaults to `"random"`):
            `"random"` patches or one contiguous `"block"`; not stated in the paper.
        mem_predictor_layers (`int`, *optional*, defaults to 2):
            Transformer layers of the MEM decoder D (Eq. 4); not stated in the paper.
        fusion_layers (`int`, *optional*, defaults to 2):
            Pre-norm transformer layers of Fusion (Eq. 14); not stated in the paper.
        fusion_heads (`int`, *optional*):
            Attention heads of Fusion. Defaults to one per 64 channels; not stated in the paper.
        fusion_dropout (`float`, *optional*, defaults to 0.1):
            Dropout in Fusion; not stated in the paper.
        decoder_input (`str`, *optional*, defaults to `"cross_attention"`):
            How the decoder sees U (Eq. 15): by cross-attention, or as a `"prefix"` of the token sequence; not stated
            in the paper.
        training_stage (`str`, *optional*):
            The last finished stage: None, `"mem"`, `"align"` or `"generate"`.
        initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation for the weights that no backbone brings.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`):
            Whether the LM head shares the decoder's token embeddings.
        bos_token_id, eos_token_id, pad_token_id (`int`, *optional*):
            Decoder token ids. Default to those of `decoder_config`; given here, they replace them there.

    Raises:
        ValueError: a key that neither PALM nor `PreTrainedConfig` knows, or a value that cannot work.

    Example:

    ```python
    >>> from rrg_hf import PalmConfig, PalmForReportGeneration

    >>> config = PalmConfig(vision_config={"image_size": 224, "num_hidden_layers": 4}, fusion_layers=1)
    >>> model = PalmForReportGeneration(config)
    ```"""

    model_type = "palm"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {
        "vision_config": SubConfigSpec(AutoConfig, model_type="dinov2"),
        "text_config": SubConfigSpec(AutoConfig, model_type="bert"),
        "decoder_config": SubConfigSpec(AutoConfig, model_type="gpt2"),
    }
    # Not results: the evaluation loop must not gather them over batches.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "cache",
        "encoder_last_hidden_state",
        "encoder_attention_mask",
        "predictions",
        "targets",
        "patch_mask",
    ]

    # `Any` where None is allowed on the way in only: each is a config object, an int or a list once built.
    vision_config: Any = None
    text_config: Any = None
    decoder_config: Any = None
    projection_dim: Any = None
    projection_type: str = "linear"
    normalize_embeddings: bool = True
    num_prototypes: int = 14
    prototype_names: Any = None
    alignment: str = "prototype"
    alignment_temperature: float = 0.1
    sinkhorn_epsilon: float = 0.5
    sinkhorn_max_iterations: int = 10_000
    alignment_queue_size: int = 0
    gather_embeddings: bool = True
    mem_mask_ratio: float = 0.5
    mem_mask_strategy: str = "random"
    mem_predictor_layers: int = 2
    fusion_layers: int = 2
    fusion_heads: Any = None
    fusion_dropout: float = 0.1
    decoder_input: str = "cross_attention"
    training_stage: str | None = None
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        from transformers import BertConfig, Dinov2Config, GPT2Config

        if kwargs.get("model_type", self.model_type) != self.model_type:
            raise ValueError(
                f"The configuration is of model_type {kwargs['model_type']!r}, not {self.model_type!r}. To start from "
                "other checkpoints use `PalmForReportGeneration.from_backbones`."
            )
        own = {field.name for field in dataclasses.fields(self)}
        generic = _generic_keys()
        unknown = {key for key in kwargs if key not in generic and not key.startswith("_")}
        if unknown:
            raise _unknown_key_error("PalmConfig", unknown, own | generic)

        self.vision_config = _backbone_config("vision_config", self.vision_config, Dinov2Config, _VISION_DEFAULTS)
        self.text_config = _backbone_config("text_config", self.text_config, BertConfig, {})
        self.decoder_config = _backbone_config("decoder_config", self.decoder_config, GPT2Config, _DECODER_DEFAULTS)
        self._check_values()

        self.decoder_config.add_cross_attention = self.decoder_input == "cross_attention"
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self.decoder_config, name))
            else:
                setattr(self.decoder_config, name, getattr(self, name))
        if self.projection_dim is None:
            self.projection_dim = self.decoder_config.hidden_size
        if self.fusion_heads is None:
            self.fusion_heads = _default_heads(self.projection_dim)
        if self.projection_dim % self.fusion_heads:
            raise ValueError(
                f"`projection_dim` ({self.projection_dim}) must be a multiple of `fusion_heads` ({self.fusion_heads})."
            )
        self.prototype_names = list(PATHOLOGY_NAMES if self.prototype_names is None else self.prototype_names)
        super().__post_init__(**kwargs)

    def _check_values(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}` must be one of {list(choices)}, got {getattr(self, name)!r}.")
        for name, minimum in {
            "num_prototypes": 1,
            "sinkhorn_max_iterations": 1,
            "alignment_queue_size": 0,
            "mem_predictor_layers": 1,
            "fusion_layers": 0,
        }.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(f"`{name}` must be an integer of at least {minimum}, got {value!r}.")
        for name in ("projection_dim", "fusion_heads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"`{name}` must be a positive integer or None, got {value!r}.")
        for name in ("alignment_temperature", "sinkhorn_epsilon", "initializer_range"):
            value = getattr(self, name)
            if not _is_number(value) or not value > 0:
                raise ValueError(f"`{name}` must be a positive, finite number, got {value!r}.")
        if not _is_number(self.mem_mask_ratio) or not 0 < self.mem_mask_ratio < 1:
            raise ValueError(f"`mem_mask_ratio` must lie between 0 and 1, both excluded, got {self.mem_mask_ratio!r}.")
        if not _is_number(self.fusion_dropout) or not 0 <= self.fusion_dropout < 1:
            raise ValueError(f"`fusion_dropout` must be at least 0 and below 1, got {self.fusion_dropout!r}.")
        names = self.prototype_names
        if names is not None and (
            not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names)
        ):
            raise ValueError(f"`prototype_names` must be a list of names or None, got {names!r}.")
        for name in ("normalize_embeddings", "gather_embeddings", "tie_word_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be true or false, got {getattr(self, name)!r}.")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The decoder's config, which generation and TRL need; the text encoder's only for `encoder=True` alone."""
        return self.text_config if encoder and not decoder else self.decoder_config


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _default_heads(width: int) -> int:
    """About one head per 64 channels, and a divisor of the width."""
    wanted = max(1, width // 64)
    return max(heads for heads in range(1, wanted + 1) if width % heads == 0)


__all__ = ["PATHOLOGY_NAMES", "PalmConfig"]
