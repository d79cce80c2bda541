"""Configuration of RadGraph's network: span entities and relations between them, read from a text encoder."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

# The encoders' configurations are imported where they are used: importing them loads the Auto modules, which may
# themselves be waiting for this module.
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec
from transformers.models.auto.configuration_auto import AutoConfig

ENCODER_TYPES = ("bert", "modernbert")
_CHOICES = {"preprocessing": ("v1", "xl", "echograph"), "segments": ("enclosed", "bare")}

# RadGraph v1: ANATomy and OBServation; Definitely Present, Definitely Absent, Uncertain. The null label comes first.
_NER_LABELS = ("", "ANAT-DP", "OBS-DP", "OBS-DA", "OBS-U")
_RELATION_LABELS = ("modify", "located_at", "suggestive_of")


class RadGraphConfig(PreTrainedConfig):
    r"""Configuration of a [`RadGraphModel`].

    Sources: "RadGraph: Extracting Clinical Entities and Relations from Radiology Reports" (Jain et al. 2021),
    "RadGraph-XL" (Delbrouck et al. 2024), and for the network "Entity, Relation, and Event Extraction with
    Contextualized Span Representations" (DyGIE++, Wadden et al. 2019). A converted archive states every value itself;
    the defaults have the shape of RadGraph v1.

    Args:
        encoder_config (`BertConfig`, `ModernBertConfig` or `dict`, *optional*):
            Text encoder; a dict says which with `model_type`. Defaults to BERT base.
        ner_labels (`list[str]`, *optional*):
            Entity labels. The first is the null label `""`, whose score is always 0.
        relation_labels (`list[str]`, *optional*):
            Relation labels, without a null label.
        max_span_width (`int`, *optional*, defaults to 8):
            Longest span in words that can be an entity.
        num_width_embeddings (`int`, *optional*):
            Rows of the span width table, at least `max_span_width`, which is the default.
        feature_size (`int`, *optional*, defaults to 20):
            Width of the span width embedding.
        ner_hidden_sizes, mention_hidden_sizes, relation_hidden_sizes (`list[int]`, *optional*):
            Hidden layers of the three feed-forward networks; each defaults to `[150, 150]`.
        head_dropout (`float`, *optional*, defaults to 0.4):
            Dropout after every hidden layer of the three, in training.
        spans_per_word (`float`, *optional*, defaults to 0.5):
            Spans per word of a report that may take part in relations: those with the best mention scores.
        max_length (`int`, *optional*, defaults to 512):
            Pieces an encoder pass sees, special tokens included. Longer reports are read in segments of that length,
            each on its own.
        segments (`str`, *optional*, defaults to `"enclosed"`):
            `"enclosed"` puts every segment between [CLS] and [SEP]; `"bare"` is what the published ModernBERT network
            was made with, see `ReportEncoder`.
        preprocessing (`str`, *optional*, defaults to `"v1"`):
            How a report becomes words, see `split_words`: `"v1"`, `"xl"` or `"echograph"`.
        namespace (`str`, *optional*, defaults to `"radgraph"`):
            Name of the label set in the archive that the weights come from; `"None"` in the original checkpoint.
        initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation of fresh weights.

    Raises:
        ValueError: a value that cannot work.
    """

    model_type = "radgraph"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {"encoder_config": SubConfigSpec(AutoConfig, model_type="bert")}

    # `Any` where None is allowed on the way in only.
    encoder_config: Any = None
    ner_labels: list[str] | tuple[str, ...] = _NER_LABELS
    relation_labels: list[str] | tuple[str, ...] = _RELATION_LABELS
    max_span_width: int = 8
    num_width_embeddings: Any = None
    feature_size: int = 20
    ner_hidden_sizes: list[int] | tuple[int, ...] = (150, 150)
    mention_hidden_sizes: list[int] | tuple[int, ...] = (150, 150)
    relation_hidden_sizes: list[int] | tuple[int, ...] = (150, 150)
    head_dropout: float | int = 0.4
    spans_per_word: float | int = 0.5
    max_length: int = 512
    segments: str = "enclosed"
    preprocessing: str = "v1"
    namespace: str = "radgraph"
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.encoder_config, PreTrainedConfig):
            self.encoder_config = copy.deepcopy(self.encoder_config)  # the caller's object stays as it is
            encoder_type = self.encoder_config.model_type
        else:
            encoder_type = (self.encoder_config or {}).get("model_type", "bert")
        if encoder_type not in ENCODER_TYPES:
            raise ValueError(f"`encoder_config` has model_type {encoder_type!r}. Use one of {list(ENCODER_TYPES)}.")
        self.ner_labels, self.relation_labels = list(self.ner_labels), list(self.relation_labels)
        if self.num_width_embeddings is None:
            self.num_width_embeddings = self.max_span_width
        self._check_values()
        super().__post_init__(**kwargs)

    def _check_values(self) -> None:
        for name in ("max_span_width", "num_width_embeddings", "feature_size"):
            _check_size(name, getattr(self, name))
        for name in ("ner_hidden_sizes", "mention_hidden_sizes", "relation_hidden_sizes"):
            sizes = getattr(self, name)
            if isinstance(sizes, (str, int)) or not sizes:
                raise ValueError(f"`{name}` must be a list with one size per hidden layer, got {sizes!r}.")
            for size in sizes:
                _check_size(name, size)
            setattr(self, name, list(sizes))
        if self.num_width_embeddings < self.max_span_width:
            raise ValueError(
                f"`max_span_width` is {self.max_span_width}, but the span width table has only "
                f"{self.num_width_embeddings} rows."
            )
        if len(self.ner_labels) < 2 or self.ner_labels[0] != "" or "" in self.ner_labels[1:]:
            raise ValueError(
                f"`ner_labels` must start with the null label '' and hold at least one other, got {self.ner_labels}."
            )
        if not self.relation_labels or "" in self.relation_labels:
            raise ValueError(f"`relation_labels` must hold labels and no null label, got {self.relation_labels}.")
        for name in ("ner_labels", "relation_labels"):
            labels = getattr(self, name)
            if len(set(labels)) != len(labels):
                raise ValueError(f"`{name}` holds a label twice: {labels}.")
        if isinstance(self.max_length, bool) or not isinstance(self.max_length, int) or self.max_length < 3:
            raise ValueError(
                f"`max_length` must be an integer of at least 3, since two special tokens count, got "
                f"{self.max_length!r}."
            )
        if not isinstance(self.spans_per_word, (int, float)) or not self.spans_per_word > 0:
            raise ValueError(f"`spans_per_word` must be a positive number, got {self.spans_per_word!r}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}` must be one of {list(choices)}, got {getattr(self, name)!r}.")


def _check_size(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer, got {value!r}.")


__all__ = ["RadGraphConfig"]
