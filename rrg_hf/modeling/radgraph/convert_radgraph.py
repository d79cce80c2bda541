"""From a published RadGraph archive to a folder that `RadGraphModel.from_pretrained` loads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.modernbert.configuration_modernbert import ModernBertConfig
from transformers.utils import logging
from transformers.utils.hub import cached_file

from .archive_radgraph import RadGraphArchive, read_archive
from .configuration_radgraph import RadGraphConfig
from .modeling_radgraph import RadGraphModel

logger = logging.get_logger(__name__)

_ENCODER = "_embedder.token_embedder_bert._matched_embedder.transformer_model."
_NER, _RELATION = "__ner_labels", "__relation_labels"
# How each label set's training data was split into words. "None" is what the original checkpoint calls its only set.
# radgraph 0.1.18 splits EchoGraph's reports like RadGraph-XL's.
_PREPROCESSING = {
    "None": "v1",
    "radgraph": "v1",
    "radgraph-xl": "xl",
    "modern-radgraph-xl": "xl",
    "echograph": "xl",
}
# Tokenizer classes that enclose a segment themselves. For any other, and for a folder that names none beside a
# ModernBERT, radgraph encloses nothing, and reads words one piece too far right.
_ENCLOSING_CLASSES = re.compile(r"(Bert|DistilBert|Electra|Roberta|MPNet|Camembert|XLMRoberta)Tokenizer(Fast)?")
_PLAIN_HEAD_SIZE = 64  # of BERT and ModernBERT in all published sizes


def convert_radgraph(
    archive: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] = "radgraph",
    *,
    namespace: str | None = None,
    preprocessing: str | None = None,
    encoder_config: dict[str, Any] | None = None,
    tokenizer_revision: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Convert an archive of `StanfordAIMI/RRG_scorers` or an original RadGraph checkpoint.

    All shapes and limits are read from the archive. Weights without a part in entities and relations (coreference,
    events, the encoder's pooler, other label sets) are left out; conversion.json counts them.

    Args:
        archive: the tar.gz file, or the folder it was unpacked to.
        tokenizer: folder or Hub id with the encoder's tokenizer and config.json; the archive's `model_name` by
            default.
        output_dir: new folder for config.json, model.safetensors and the tokenizer.
        namespace: label set to use where the archive holds several, e.g. "radgraph-xl".
        preprocessing: "v1", "xl" or "echograph", see `split_words`; follows the namespace by default.
        encoder_config: config.json of the encoder as a dict, for a tokenizer folder that has none.
        tokenizer_revision: commit of `tokenizer` on the Hub.
        overwrite: replace `output_dir`.

    Returns:
        `output_dir`.

    Raises:
        ValueError: an archive that is unsafe, incomplete or does not fit itself; a key it should or should not have;
            an encoder config that does not fit the weights; an `output_dir` that holds something.
    """
    source, target = Path(archive), Path(output_dir)
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is not empty. Choose another folder, or pass overwrite=True.")
    content = read_archive(source)
    where = str(tokenizer) if tokenizer is not None else _model_name(content)
    try:
        words = AutoTokenizer.from_pretrained(where, revision=tokenizer_revision or "main")
    except OSError as error:
        raise ValueError(
            f"The encoder's tokenizer {where!r} is neither a folder nor to be had from the Hub now ({error}). Pass "
            "`tokenizer`, a folder with its files and the encoder's config.json."
        ) from error
    if encoder_config is None:
        encoder_config = _json_beside(where, "config.json", tokenizer_revision)
    encoder_weights = {
        key.removeprefix(_ENCODER): value for key, value in content.weights.items() if key.startswith(_ENCODER)
    }
    encoder = _fitted_encoder(encoder_weights, encoder_config)
    stated_class = (_json_beside(where, "tokenizer_config.json", tokenizer_revision) or {}).get("tokenizer_class")
    segments = _segments(stated_class, encoder)
    config = _config(content, namespace, preprocessing, segments, encoder)
    if len(words) > config.encoder_config.vocab_size:
        raise ValueError(
            f"The tokenizer of {where} has {len(words)} entries, but the encoder {config.encoder_config.vocab_size} "
            "embeddings. Give the tokenizer that the archive was trained with."
        )
    model, dropped = _model(config, content)
    _write(model, words, target, {**_provenance(source), "tokenizer": Path(where).name, "dropped_weights": dropped})
    logger.info(f"Converted {source.name}; weights left out: {dropped}.")
    return target


def _model_name(content: RadGraphArchive) -> str:
    name = _section(content.config, "model", "embedder", "token_embedders", "bert").get("model_name")
    if not isinstance(name, str):
        raise ValueError("The archive does not name its encoder. Pass `tokenizer`, a folder or a Hub id.")
    return name


def _section(config: dict[str, Any], *path: str) -> dict[str, Any]:
    section: Any = config
    for name in path:
        section = section.get(name) if isinstance(section, dict) else None
    if not isinstance(section, dict):
        raise ValueError(f"config.json of the archive has no section {' > '.join(path)}.")
    return section


def _required(section: dict[str, Any], name: str, of: str) -> Any:
    if name not in section:
        raise ValueError(f"config.json of the archive has no {of} > {name}.")
    return section[name]


def _segments(tokenizer_class: str | None, encoder: BertConfig | ModernBertConfig) -> str:
    if tokenizer_class is None:
        return "bare" if isinstance(encoder, ModernBertConfig) else "enclosed"
    return "enclosed" if _ENCLOSING_CLASSES.fullmatch(tokenizer_class) else "bare"


def _config(
    content: RadGraphArchive,
    namespace: str | None,
    preprocessing: str | None,
    segments: str,
    encoder: BertConfig | ModernBertConfig,
) -> RadGraphConfig:
    model = _section(content.config, "model")
    weights = model.get("loss_weights", {})
    if any(weights.get(task) == 0 for task in ("ner", "relation")):
        raise ValueError(f"The archive was trained without entities or relations: its loss weights are {weights}.")
    coreference = model.get("modules", {}).get("coref", {}).get("coref_prop", 0)
    if coreference:
        raise ValueError(f"The archive passes spans through coreference (coref_prop {coreference}); unsupported here.")
    relation = _section(content.config, "model", "modules", "relation")
    layers = _section(content.config, "model", "feedforward_params")
    hidden = _required(layers, "hidden_dims", "feedforward_params")
    if not isinstance(hidden, list):
        hidden = [hidden] * _required(layers, "num_layers", "feedforward_params")
    dropout = layers.get("dropout", 0.0)
    reader = _section(content.config, "dataset_reader")
    chosen = _namespace(content, namespace)
    if preprocessing is None:
        if chosen not in _PREPROCESSING:
            raise ValueError(
                f"The archive's label set is called {chosen!r}, which does not tell how its reports were split into "
                "words. Pass preprocessing='v1', 'xl' or 'echograph'."
            )
        preprocessing = _PREPROCESSING[chosen]
    return RadGraphConfig(
        encoder_config=encoder,
        ner_labels=content.vocabulary[chosen + _NER],
        relation_labels=content.vocabulary[chosen + _RELATION],
        max_span_width=_required(reader, "max_span_width", "dataset_reader"),
        num_width_embeddings=_required(model, "max_span_width", "model"),
        feature_size=_required(model, "feature_size", "model"),
        ner_hidden_sizes=hidden,
        mention_hidden_sizes=hidden,
        relation_hidden_sizes=hidden,
        head_dropout=max(dropout) if isinstance(dropout, list) else dropout,
        spans_per_word=_required(relation, "spans_per_word", "model > modules > relation"),
        max_length=_max_length(content.config, encoder),
        segments=segments,
        preprocessing=preprocessing,
        namespace=chosen,
    )


def _max_length(config: dict[str, Any], encoder: BertConfig | ModernBertConfig) -> int:
    """Pieces per segment. The archive states it twice; two values would cut and re-join texts differently."""
    stated = {
        _section(config, "dataset_reader", "token_indexers", "bert").get("max_length"),
        _section(config, "model", "embedder", "token_embedders", "bert").get("max_length"),
    }
    if len(stated) > 1:
        raise ValueError(f"The archive states two values of max_length, {sorted(map(str, stated))}.")
    length = stated.pop() or encoder.max_position_embeddings
    if length > encoder.max_position_embeddings:
        raise ValueError(
            f"The archive's max_length is {length}, but its encoder has {encoder.max_position_embeddings} positions."
        )
    return length


def _namespace(content: RadGraphArchive, wanted: str | None) -> str:
    found = sorted(
        name.removesuffix(_NER)
        for name in content.vocabulary
        if name.endswith(_NER) and name.removesuffix(_NER) + _RELATION in content.vocabulary
    )
    if wanted is None and len(found) == 1:
        return found[0]
    if wanted not in found:
        raise ValueError(
            f"The archive's vocabulary files hold the label sets {found}. "
            + ("Say which with `namespace`." if wanted is None else f"There is none called {wanted!r}.")
        )
    return str(wanted)


def _json_beside(where: str, name: str, revision: str | None) -> dict[str, Any] | None:
    """A JSON file of the tokenizer's folder or repository, if it is there."""
    file = cached_file(
        where,
        name,
        revision=revision or "main",
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return json.loads(Path(file).read_text(encoding="utf-8")) if file else None


def _fitted_encoder(weights: dict[str, torch.Tensor], stated: dict[str, Any] | None) -> BertConfig | ModernBertConfig:
    """The encoder's configuration: shapes from the weights, the rest from its own config.json."""
    if not weights:
        raise ValueError(f"The archive's weights hold no encoder: no key starts with {_ENCODER!r}.")
    modern = "embeddings.tok_embeddings.weight" in weights
    try:
        shapes = _modernbert_shapes(weights) if modern else _bert_shapes(weights)
    except KeyError as error:
        raise ValueError(f"The archive's encoder lacks {error}. It is neither BERT nor ModernBERT.") from error
    config_class: Any = ModernBertConfig if modern else BertConfig
    if stated is None:
        if shapes["hidden_size"] % _PLAIN_HEAD_SIZE:
            raise ValueError(
                f"The weights do not tell the number of attention heads (hidden size {shapes['hidden_size']}). Pass "
                "`encoder_config`, or a tokenizer folder that has the encoder's config.json."
            )
        logger.warning("The tokenizer has no config.json beside it: the encoder gets 64 channels per attention head.")
        return config_class(**shapes, num_attention_heads=shapes["hidden_size"] // _PLAIN_HEAD_SIZE)
    wrong = {name: (stated[name], size) for name, size in shapes.items() if stated.get(name, size) != size}
    if wrong:
        differences = ", ".join(f"{name} {says} but weights for {size}" for name, (says, size) in wrong.items())
        raise ValueError(f"The encoder's config.json does not fit the archive: {differences}.")
    if stated.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(f"Unsupported position_embedding_type {stated['position_embedding_type']!r}.")
    known = {name for name in config_class().to_dict() if not name.startswith("_")}
    known -= {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "is_decoder"}
    settings = {name: value for name, value in stated.items() if name in known} | shapes
    if modern:
        settings |= _modernbert_attention(stated, shapes["num_hidden_layers"])
    return config_class(**settings)


def _layers(weights: dict[str, torch.Tensor], pattern: str) -> int:
    return 1 + max((int(found[1]) for key in weights if (found := re.match(pattern, key))), default=-1)


def _bert_shapes(weights: dict[str, torch.Tensor]) -> dict[str, int]:
    vocabulary, hidden = weights["embeddings.word_embeddings.weight"].shape
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": _layers(weights, r"encoder\.layer\.(\d+)\."),
        "intermediate_size": weights["encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": weights["embeddings.position_embeddings.weight"].shape[0],
        "type_vocab_size": weights["embeddings.token_type_embeddings.weight"].shape[0],
    }


def _modernbert_shapes(weights: dict[str, torch.Tensor]) -> dict[str, int]:
    vocabulary, hidden = weights["embeddings.tok_embeddings.weight"].shape
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": _layers(weights, r"layers\.(\d+)\."),
        "intermediate_size": weights["layers.0.mlp.Wo.weight"].shape[1],
    }


def _modernbert_attention(stated: dict[str, Any], layers: int) -> dict[str, Any]:
    """Which layers attend globally, and the rotary base of either kind, in today's names.

    Older configs have `global_attn_every_n_layers`, `global_rope_theta` and `local_rope_theta`, where a local base of
    None means the global one.
    """
    kinds = stated.get("layer_types")
    if kinds is None:
        every = stated.get("global_attn_every_n_layers", 3)
        kinds = ["sliding_attention" if index % every else "full_attention" for index in range(layers)]
    rope = stated.get("rope_parameters")
    if rope is None:
        everywhere = stated.get("global_rope_theta", ModernBertConfig.default_theta["global"])
        nearby = stated.get("local_rope_theta", ModernBertConfig.default_theta["local"])
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": everywhere},
            "sliding_attention": {"rope_type": "default", "rope_theta": everywhere if nearby is None else nearby},
        }
    return {"layer_types": kinds, "rope_parameters": rope}


def _key_map(config: RadGraphConfig) -> dict[str, str]:
    """Name in our model -> name in the archive, for everything after the encoder."""
    ner, relation = config.namespace + _NER, config.namespace + _RELATION
    names = {"width_embedding.weight": "_endpoint_span_extractor._span_width_embedding.weight"}
    heads = {
        "ner_scorer": (
            f"_ner._ner_scorers.{ner}.0._module._linear_layers.",
            f"_ner._ner_scorers.{ner}.1._module.",
            config.ner_hidden_sizes,
        ),
        "mention_scorer": (
            f"_relation._mention_pruners.{relation}._scorer.0._module._linear_layers.",
            f"_relation._mention_pruners.{relation}._scorer.1._module.",
            config.mention_hidden_sizes,
        ),
        "relation_scorer": (
            f"_relation._relation_feedforwards.{relation}._linear_layers.",
            f"_relation._relation_scorers.{relation}.",
            config.relation_hidden_sizes,
        ),
    }
    for head, (hidden, output, sizes) in heads.items():
        for kind in ("weight", "bias"):
            names[f"{head}.first.{kind}"] = f"{hidden}0.{kind}"
            for layer in range(1, len(sizes)):
                names[f"{head}.layers.{layer - 1}.{kind}"] = f"{hidden}{layer}.{kind}"
            names[f"{head}.output.{kind}"] = output + kind
    return names


def _unused(key: str, config: RadGraphConfig) -> str | None:
    """Why a key of the archive has no place in our model, or None if it should have one."""
    for prefix in ("_coref.", "_events."):
        if key.startswith(prefix):
            return prefix.strip("._")
    if key.startswith(_ENCODER + "pooler."):
        return "pooler"
    if key == _ENCODER + "embeddings.position_ids":
        return "position_ids"
    label_set = re.match(r"_(?:ner|relation)\.\w+\.(.+?)__(?:ner|relation)_labels\.", key)
    if label_set and label_set[1] != config.namespace:
        return f"label set {label_set[1]}"
    return None


def _model(config: RadGraphConfig, content: RadGraphArchive) -> tuple[RadGraphModel, dict[str, int]]:
    """The model with the archive's weights, and how many tensors were left out, by reason."""
    with torch.device("meta"):
        model = RadGraphModel(config)
    heads = _key_map(config)
    wanted = {
        name: heads.get(name, _ENCODER + name.removeprefix("encoder."))
        for name in model.state_dict()
        if not name.endswith(".position_ids")
    }
    taken = set(wanted.values())
    missing = sorted(key for key in taken if key not in content.weights)
    dropped: Counter[str] = Counter()
    unexpected = []
    for key in content.weights:
        if key not in taken:
            reason = _unused(key, config)
            dropped.update([reason] if reason else [])
            unexpected += [] if reason else [key]
    if missing or unexpected:
        raise ValueError(
            f"The archive does not fit its own config.json: missing weights {missing}, unexpected weights "
            f"{sorted(unexpected)}."
        )
    state = {name: content.weights[key] for name, key in wanted.items()}
    wrong = [
        f"{wanted[name]} is {tuple(state[name].shape)}, not {tuple(parameter.shape)}"
        for name, parameter in model.state_dict().items()
        if name in state and state[name].shape != parameter.shape
    ]
    if wrong:
        raise ValueError(f"The archive's weights do not fit its config.json and vocabulary: {'; '.join(wrong)}.")
    if not all(tensor.is_floating_point() and bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise ValueError("The archive's weights hold values that are no finite numbers.")
    model = RadGraphModel(config)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
    return model.eval(), dict(dropped)


def _provenance(source: Path) -> dict[str, Any]:
    if not source.is_file():
        return {"archive": source.name}
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"archive": source.name, "sha256": digest.hexdigest()}


def _write(model: RadGraphModel, tokenizer: Any, target: Path, about: dict[str, Any]) -> None:
    """Write the folder under another name and rename it, so that a half-written one is never found."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        (new / "conversion.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.replace(old)
        new.replace(target)
        shutil.rmtree(old, ignore_errors=True)


__all__ = ["convert_radgraph"]
