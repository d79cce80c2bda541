"""Reading the three backbones of PALM out of the layouts their published checkpoints have.

- DINOv2 as `microsoft/rad-dino` stores it: `embeddings.*`, `encoder.layer.N.*`, `layernorm.*`.
- BERT as `microsoft/BiomedVLP-CXR-BERT-specialized` stores it: model_type `cxr-bert` with remote code, `bert.*` beside
  the heads `cls.*` and `cls_projection_head.*`. Only the BERT part is read and no remote code runs.
- GPT-2 as `distilgpt2` stores it: `transformer.*` or bare keys, tied head, causal-mask buffers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel
from transformers.models.dinov2.configuration_dinov2 import Dinov2Config
from transformers.models.dinov2.modeling_dinov2 import Dinov2Model
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.utils import logging

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class _Layout:
    """What a backbone's checkpoint may hold beside the encoder, and what it may lack."""

    model_class: type[PreTrainedModel]
    config_class: type[PreTrainedConfig]
    model_types: tuple[str, ...]
    droppable: re.Pattern[str]
    may_be_new: re.Pattern[str]
    init_kwargs: dict[str, Any] = field(default_factory=dict)


_NEVER = re.compile(r"(?!)")
_LAYOUTS: dict[str, _Layout] = {
    "vision_model": _Layout(
        Dinov2Model,
        Dinov2Config,
        ("dinov2",),
        droppable=re.compile(r"^(classifier|head)\."),
        # Only masked-image pretraining uses it; some exports leave it out.
        may_be_new=re.compile(r"^embeddings\.mask_token$"),
    ),
    "text_model": _Layout(
        BertModel,
        BertConfig,
        ("bert", "cxr-bert"),
        droppable=re.compile(r"^(bert\.)?(cls\.|cls_projection_head\.|pooler\.|embeddings\.position_ids$)"),
        may_be_new=_NEVER,
        init_kwargs={"add_pooling_layer": False},
    ),
    "decoder": _Layout(
        GPT2Model,
        GPT2Config,
        ("gpt2",),
        droppable=re.compile(r"^(lm_head\.weight$|(transformer\.)?h\.\d+\.(cross)?attn(ention)?\.(masked_)?bias$)"),
        may_be_new=re.compile(r"^h\.\d+\.(crossattention|ln_cross_attn)\."),
    ),
}


@dataclass
class BackboneReport:
    """What `from_backbones` did, by part of the model.

    Args:
        loaded: number of weight tensors taken over, by part.
        dropped: names of checkpoint tensors that PALM has no use for (other heads, buffers), by part.
        new: names of weights the checkpoint lacks and that start at random (cross-attention), by part.
    """

    loaded: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, list[str]] = field(default_factory=dict)
    new: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [
            f"{part}: {self.loaded[part]} tensors loaded, {len(self.dropped[part])} dropped "
            f"{_sample(self.dropped[part])}, {len(self.new[part])} new {_sample(self.new[part])}"
            for part in self.loaded
        ]
        return "Backbones read. " + "; ".join(parts) + "."


def load_backbones(
    vision: str | os.PathLike[str],
    text: str | os.PathLike[str],
    decoder: str | os.PathLike[str],
    config_kwargs: dict[str, Any],
    hub_kwargs: dict[str, Any],
) -> tuple[dict[str, PreTrainedModel], BackboneReport]:
    """Read the three backbones in float32.

    Args:
        vision: folder or Hub id of the DINOv2 checkpoint.
        text: of the BERT checkpoint.
        decoder: of the GPT-2 checkpoint.
        config_kwargs: `PalmConfig` fields; `decoder_input` decides whether the decoder gets cross-attention.
        hub_kwargs: download options.

    Returns:
        The models under their attribute names in `PalmModel`, and the report.

    Raises:
        ValueError: wrong architecture, missing, unknown or misshapen weights; the message names them.
    """
    clashing = {"vision_config", "text_config", "decoder_config"} & set(config_kwargs)
    if clashing:
        raise ValueError(f"`from_backbones` reads {sorted(clashing)} from the checkpoints; do not pass them.")
    report = BackboneReport()
    models = {}
    for part, path in {"vision_model": vision, "text_model": text, "decoder": decoder}.items():
        overrides: dict[str, Any] = {}
        if part == "decoder":
            overrides["add_cross_attention"] = (
                config_kwargs.get("decoder_input", "cross_attention") == "cross_attention"
            )
        models[part] = _load_backbone(part, os.fspath(path), overrides, hub_kwargs, report)
    return models, report


def read_backbone_configs(
    vision: str | os.PathLike[str],
    text: str | os.PathLike[str],
    decoder: str | os.PathLike[str],
    hub_kwargs: dict[str, Any] | None = None,
) -> dict[str, PreTrainedConfig]:
    """The three backbones' configurations under their names in `PalmConfig`, without reading a weight.

    Raises:
        ValueError: wrong architecture.
    """
    parts = {
        "vision_config": ("vision_model", vision),
        "text_config": ("text_model", text),
        "decoder_config": ("decoder", decoder),
    }
    return {name: _backbone_config(part, os.fspath(path), hub_kwargs or {}) for name, (part, path) in parts.items()}


def load_text_tokenizer(text: str | os.PathLike[str], hub_kwargs: dict[str, Any]) -> Any | None:
    """The BERT tokenizer stored beside the text encoder, or None when there is none. Runs no remote code."""
    from transformers import BertTokenizer

    try:
        # The class is named, not looked up: CXR-BERT's tokenizer_config points at remote code for a BertTokenizer.
        tokenizer = BertTokenizer.from_pretrained(os.fspath(text), **hub_kwargs)
    except (OSError, ValueError, TypeError):
        return None
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_tokens) else None


def _load_backbone(
    part: str, path: str, overrides: dict[str, Any], hub_kwargs: dict[str, Any], report: BackboneReport
) -> PreTrainedModel:
    layout = _LAYOUTS[part]
    config = _backbone_config(part, path, hub_kwargs)
    for name, value in overrides.items():
        setattr(config, name, value)
    loaded: Any = layout.model_class.from_pretrained(
        path,
        config=config,
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they become an error below, which names them
        weights_only=True,
        **layout.init_kwargs,
        **hub_kwargs,
    )
    model, info = loaded
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    problems = []
    if unknown := [key for key in unexpected if not layout.droppable.search(key)]:
        problems.append(f"{len(unknown)} unexpected weights {_sample(unknown)}")
    if lacking := [key for key in missing if not layout.may_be_new.search(key)]:
        problems.append(f"{len(lacking)} missing weights {_sample(lacking)}")
    if mismatched := sorted(str(entry[0]) for entry in info["mismatched_keys"]):
        problems.append(f"{len(mismatched)} weights of another shape {_sample(mismatched)}")
    if problems:
        raise ValueError(
            f"{path} does not hold the {layout.model_class.__name__} its config.json describes: {'; '.join(problems)}."
        )
    report.loaded[part] = len(model.state_dict()) - len(missing)
    report.dropped[part] = unexpected
    report.new[part] = missing
    return model


def _backbone_config(part: str, path: str, hub_kwargs: dict[str, Any]) -> PreTrainedConfig:
    """The native config of a backbone from its config.json, whatever model_type of its own it claims."""
    layout = _LAYOUTS[part]
    entries, _ = PreTrainedConfig.get_config_dict(path, **hub_kwargs)
    model_type = entries.get("model_type")
    if model_type not in layout.model_types:
        wanted = " or ".join(map(repr, layout.model_types))
        raise ValueError(f"{path} is a checkpoint of model_type {model_type!r}; PALM's {part} is read from {wanted}.")
    if entries.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"{path} uses {entries['position_embedding_type']!r} position embeddings, which BERT no longer has in "
            "transformers. Use a checkpoint with absolute ones."
        )
    config_class = layout.config_class
    housekeeping = {"architectures", "transformers_version", "model_type", "dtype", "torch_dtype", "auto_map"}
    known = set(config_class().to_dict()) | set(config_class.attribute_map)
    known = {key for key in known if not key.startswith("_")} - housekeeping
    return config_class(**{key: value for key, value in entries.items() if key in known})


def _sample(names: list[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return f"({shown}{', ...' if len(names) > limit else ''})" if names else ""


__all__ = ["BackboneReport", "load_backbones", "load_text_tokenizer", "read_backbone_configs"]
