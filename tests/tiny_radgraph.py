"""Tiny RadGraph archives in the published layout, with weights from a seed, and texts that are hard to read."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

V1_LABELS = ("ANAT-DP", "OBS-DP", "OBS-DA", "OBS-U")
XL_LABELS = (
    "Anatomy::definitely present",
    "Observation::definitely present",
    "Observation::definitely absent",
    "Observation::uncertain",
    "Observation::measurement::definitely present",
    "Anatomy::uncertain",
)
RELATIONS = ("modify", "located_at", "suggestive_of")

WORDS = [
    "no", "small", "large", "mild", "moderate", "left", "right", "lower", "upper", "lobe", "lung", "lungs",
    "heart", "size", "normal", "pleural", "effusion", "effusions", "pneumothorax", "edema", "opacity",
    "consolidation", "atelectasis", "pneumonia", "likely", "possible", "may", "be", "seen", "is", "are", "the",
    "of", "and", "in", "with", "without", "clear", "unchanged", "tube", "terminates", "above", "carina", "cm",
    "mm", "noted", "acute", "chronic", "fracture", "rib", "ribs", "there",
]  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Geometry of an archive. The shifts make most spans no entities and most pairs no relations, as in reports."""

    namespace: str = "radgraph"
    encoder: str = "bert"
    seed: int = 0
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    intermediate: int = 48
    max_length: int = 64
    max_span_width: int = 5
    feature_size: int = 7
    ffn_layers: int = 2
    ffn_size: int = 16
    spans_per_word: float = 0.5
    labels: tuple[str, ...] = V1_LABELS
    cased: bool = False
    entity_shift: float = 0.0
    relation_shift: float = 0.0


SHAPES = {
    "v1": Shape(seed=10, entity_shift=3.61, relation_shift=1.74),
    "v1_segments": Shape(
        seed=1,
        max_length=24,
        spans_per_word=0.6,
        max_span_width=8,
        feature_size=20,
        ffn_size=24,
        entity_shift=1.71,
        relation_shift=2.9,
    ),
    "xl_one_layer": Shape(
        "radgraph-xl",
        seed=2,
        ffn_layers=1,
        labels=XL_LABELS,
        max_length=40,
        heads=2,
        entity_shift=1.74,
        relation_shift=3.79,
    ),
    "xl_deep": Shape(
        "radgraph-xl",
        seed=3,
        ffn_layers=3,
        labels=XL_LABELS,
        spans_per_word=0.3,
        cased=True,
        entity_shift=2.74,
        relation_shift=4.18,
    ),
    "modern": Shape(
        "modern-radgraph-xl",
        "modernbert",
        seed=4,
        layers=4,
        labels=XL_LABELS,
        max_length=128,
        entity_shift=3.02,
        relation_shift=6.53,
    ),
    "modern_segments": Shape(
        "modern-radgraph-xl",
        "modernbert",
        seed=5,
        layers=3,
        labels=XL_LABELS,
        max_length=20,
        entity_shift=4.65,
        relation_shift=4.76,
    ),
    "echograph": Shape(
        "echograph", seed=6, labels=V1_LABELS, max_span_width=3, entity_shift=3.06, relation_shift=4.82
    ),
}


def texts() -> list[str]:
    """Reports and what else a file of reports may hold. Made up, no patient's."""
    rng = np.random.RandomState(7)
    sentences = [" ".join(rng.choice(WORDS, size=rng.randint(4, 14))).capitalize() + "." for _ in range(400)]
    return [
        "",
        "effusion",
        "Effusion.",
        ".",
        "No acute cardiopulmonary abnormality.",
        "The heart size is normal. Lungs are clear, without effusion/edema (or pneumothorax). ET-tube 2.5cm above!",
        'Opacity in left lower lobe: 50%, likely atelectasis; pneumonia can\'t be excluded?? "Mild" edema (small).',
        "Written \\n breaks \\f and \\u2122 and \\\"quotes\\\" with 40%. and (30%) and (20%).'end' ... !! -- /. /?",
        "\n\tTabs\tand\r\nlines\n\n  and \u00a0 no-break blanks \u2003 em blanks.\n",
        "Kein Erguß. Épanchement pleural – 2 × 3 cm, naïve “quotes” … \u2265 µm, \u80ba\u708e \U0001fac1 \u200bzero.",
        "XXXX is in the ____ . [SEP] <s> [MASK] {x} a=b&c @#$ ^~| 1,234.56 >5mm <3 mm",
        "e\u0301 combined \u0130stanbul \uff11\uff12 \u216b ligature \ufb01 soft\u00adhyphen",
        " ".join(sentences[:3]),
        " ".join(sentences[3:9]),
        "pneumonoultramicroscopicsilicovolcanoconiosis " * 3,
        "x" * 150 + " effusion",
        "/".join(WORDS[:30]) + " >left>right a>b.",
        " ".join(sentences[9:40]),
        " ".join(sentences[40:])[:10_000],
    ]


def wordpiece_folder(folder: Path, cased: bool, config: dict[str, Any] | None) -> int:
    """A BERT tokenizer whose vocabulary has some words, their beginnings, and all single characters it needs."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(33, 127)] + list("ßéïµ×–…≥肺炎™")
    known = [word for word in WORDS if len(word) > 2][::2]
    pieces = [*letters, *known, "car", "pne", "ate", "con", "##mo", "##tho", "##ax", "##lectasis", "##sion", "##nia"]
    pieces += ["No", "The", "Lung", "Opacity"] if cased else []
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *(f"##{letter}" for letter in letters)]
    vocabulary = list(dict.fromkeys(vocabulary))
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": not cased, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if config is not None:
        (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(vocabulary)}))
    return len(vocabulary)


def byte_level_folder(folder: Path, config: dict[str, Any]) -> int:
    """A byte-level BPE tokenizer in ModernBERT's layout, with merges that build some words with and without blank."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    vocabulary = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in [word for word in WORDS if len(word) > 2][::2]:
        for whole in (word, "\u0120" + word):
            built = whole[0]
            for letter in whole[1:]:
                merges.append((built, letter))
                built += letter
                vocabulary.append(built)
    vocabulary, merges = list(dict.fromkeys(vocabulary)), list(dict.fromkeys(merges))
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=None))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    token_ids = {f"{name}_token_id": ids[f"[{name.upper()}]"] for name in ("cls", "sep", "pad")}
    token_ids |= {"bos_token_id": ids["[CLS]"], "eos_token_id": ids["[SEP]"]}
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(vocabulary), **token_ids}))
    return len(vocabulary)


def bert_config(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "hidden_act": "gelu",
        "intermediate_size": shape.intermediate, "max_position_embeddings": 512, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "pad_token_id": 0, "position_embedding_type": "absolute",
    }  # fmt: skip


def modernbert_config(shape: Shape) -> dict[str, Any]:
    """With the names that the published encoder's config.json has: no layer types, no rope_parameters."""
    return {
        "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "hidden_activation": "gelu",
        "intermediate_size": shape.intermediate, "max_position_embeddings": 8192, "norm_eps": 1e-5,
        "global_attn_every_n_layers": 3, "local_attention": 16, "global_rope_theta": 500.0, "local_rope_theta": 70.0,
        "position_embedding_type": "absolute", "reference_compile": False, "norm_bias": False,
    }  # fmt: skip


class _Weights(dict[str, torch.Tensor]):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.RandomState(seed)

    def draw(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> None:
        values = self.rng.standard_normal(shape) * scale + mean
        self[name] = torch.from_numpy(values.astype(np.float32))

    def linear(self, name: str, inputs: int, outputs: int, bias: float | None = 0.0, gain: float = 1.5) -> None:
        self.draw(f"{name}.weight", outputs, inputs, scale=gain / inputs**0.5)
        if bias is not None:
            self.draw(f"{name}.bias", outputs, scale=0.1, mean=bias)

    def norm(self, name: str, size: int, bias: bool = True) -> None:
        self.draw(f"{name}.weight", size, scale=0.1, mean=1.0)
        if bias:
            self.draw(f"{name}.bias", size, scale=0.1)

    def feed_forward(self, name: str, inputs: int, shape: Shape) -> None:
        for layer in range(shape.ffn_layers):
            self.linear(f"{name}._linear_layers.{layer}", shape.ffn_size if layer else inputs, shape.ffn_size)


def archive_weights(shape: Shape, vocabulary: int) -> dict[str, torch.Tensor]:
    """A state dict with the published names, coreference and event modules included."""
    weights = _Weights(shape.seed)
    encoder, hidden = "_embedder.token_embedder_bert._matched_embedder.transformer_model", shape.hidden
    if shape.encoder == "bert":
        for name, rows in (("word", vocabulary), ("position", 512), ("token_type", 2)):
            weights.draw(f"{encoder}.embeddings.{name}_embeddings.weight", rows, hidden)
        weights.norm(f"{encoder}.embeddings.LayerNorm", hidden)
        for layer in range(shape.layers):
            base = f"{encoder}.encoder.layer.{layer}"
            for name in ("query", "key", "value"):
                weights.linear(f"{base}.attention.self.{name}", hidden, hidden)
            weights.linear(f"{base}.attention.output.dense", hidden, hidden)
            weights.norm(f"{base}.attention.output.LayerNorm", hidden)
            weights.linear(f"{base}.intermediate.dense", hidden, shape.intermediate)
            weights.linear(f"{base}.output.dense", shape.intermediate, hidden)
            weights.norm(f"{base}.output.LayerNorm", hidden)
        weights.linear(f"{encoder}.pooler.dense", hidden, hidden)
    else:
        weights.draw(f"{encoder}.embeddings.tok_embeddings.weight", vocabulary, hidden)
        weights.norm(f"{encoder}.embeddings.norm", hidden, bias=False)
        for layer in range(shape.layers):
            base = f"{encoder}.layers.{layer}"
            if layer:
                weights.norm(f"{base}.attn_norm", hidden, bias=False)
            weights.linear(f"{base}.attn.Wqkv", hidden, 3 * hidden, bias=None)
            weights.linear(f"{base}.attn.Wo", hidden, hidden, bias=None)
            weights.norm(f"{base}.mlp_norm", hidden, bias=False)
            weights.linear(f"{base}.mlp.Wi", hidden, 2 * shape.intermediate, bias=None)
            weights.linear(f"{base}.mlp.Wo", shape.intermediate, hidden, bias=None)
        weights.norm(f"{encoder}.final_norm", hidden, bias=False)

    span = 2 * hidden + shape.feature_size
    weights.draw("_endpoint_span_extractor._span_width_embedding.weight", shape.max_span_width, shape.feature_size)
    ner, relation = f"{shape.namespace}__ner_labels", f"{shape.namespace}__relation_labels"
    ner_hidden, ner_output = f"_ner._ner_scorers.{ner}.0._module", f"_ner._ner_scorers.{ner}.1._module"
    pruner = f"_relation._mention_pruners.{relation}._scorer"
    pair_hidden, pair_output = (f"_relation._relation_{part}.{relation}" for part in ("feedforwards", "scorers"))
    weights.feed_forward(ner_hidden, span, shape)
    weights.linear(ner_output, shape.ffn_size, len(shape.labels))
    weights.feed_forward(f"{pruner}.0._module", span, shape)
    weights.linear(f"{pruner}.1._module", shape.ffn_size, 1)
    weights.feed_forward(pair_hidden, 3 * span, shape)
    weights.linear(pair_output, shape.ffn_size, len(RELATIONS))

    weights[f"{ner_output}.bias"] -= shape.entity_shift
    weights[f"{pair_output}.bias"] -= shape.relation_shift

    weights.draw("_coref._distance_embedding.weight", 10, shape.feature_size)
    weights.feed_forward("_coref._antecedent_feedforward._module", 3 * span + shape.feature_size, shape)
    weights.feed_forward("_coref._mention_pruner._scorer.0._module", span, shape)
    weights.linear("_coref._mention_pruner._scorer.1._module", shape.ffn_size, 1)
    weights.linear("_coref._antecedent_scorer._module", shape.ffn_size, 1)
    weights.linear("_coref._f_network._linear_layers.0", 2 * span, span)
    weights.draw("_events._distance_embedding.weight", 10, shape.feature_size)
    return dict(weights)


def archive_config(shape: Shape, model_name: str) -> dict[str, Any]:
    embedder = {
        "type": "pretrained_transformer_mismatched", "max_length": shape.max_length, "model_name": model_name,
    }  # fmt: skip
    return {
        "dataset_reader": {
            "type": "dygie", "max_span_width": shape.max_span_width, "token_indexers": {"bert": dict(embedder)},
        },
        "model": {
            "type": "dygie",
            "embedder": {"token_embedders": {"bert": dict(embedder)}},
            "initializer": {"regexes": []},
            "module_initializer": {"regexes": []},
            "feature_size": shape.feature_size,
            "max_span_width": shape.max_span_width,
            "target_task": "relation",
            "feedforward_params": {"num_layers": shape.ffn_layers, "hidden_dims": shape.ffn_size, "dropout": 0.4},
            "loss_weights": {"ner": 0.2, "relation": 1.0, "coref": 0.0, "events": 0.0},
            "modules": {
                "coref": {"spans_per_word": 0.3, "max_antecedents": 100, "coref_prop": 0},
                "ner": {},
                "relation": {"spans_per_word": shape.spans_per_word},
                "events": {
                    "trigger_spans_per_word": 0.3,
                    "argument_spans_per_word": 0.8,
                    "loss_weights": {"trigger": 0.2, "arguments": 1.0},
                },
            },
        },
    }  # fmt: skip


def make_archive(folder: Path, shape: Shape, tokenizer: Path | None = None) -> tuple[Path, Path]:
    """Write an archive and, unless a folder with one and an encoder's config.json is given, its tokenizer.

    Returns:
        The tar.gz file and the tokenizer folder, which also holds the encoder's config.json.
    """
    if tokenizer is not None:
        vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    elif shape.encoder == "bert":
        tokenizer = folder / "tokenizer"
        vocabulary = wordpiece_folder(tokenizer, shape.cased, bert_config(shape))
    else:
        tokenizer = folder / "tokenizer"
        vocabulary = byte_level_folder(tokenizer, modernbert_config(shape))
    buffer = io.BytesIO()
    torch.save(archive_weights(shape, vocabulary), buffer)
    files = {
        "config.json": json.dumps(archive_config(shape, str(tokenizer))).encode(),
        "weights.th": buffer.getvalue(),
        "vocabulary/non_padded_namespaces.txt": b"*labels\n*tags\n",
        f"vocabulary/{shape.namespace}__ner_labels.txt": "\n".join(["", *shape.labels, ""]).encode(),
        f"vocabulary/{shape.namespace}__relation_labels.txt": "\n".join([*RELATIONS, ""]).encode(),
    }
    archive = folder / f"{shape.namespace}.tar.gz"
    write_tar(archive, files)
    return archive, tokenizer


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@cache
def converted(name: str) -> tuple[Any, Any]:
    """The converted network of one of `SHAPES` and its tokenizer, built once a session."""
    from transformers import AutoTokenizer

    from rrg_hf.modeling.radgraph import RadGraphModel, convert_radgraph

    with tempfile.TemporaryDirectory() as folder:
        archive, tokenizer = make_archive(Path(folder), SHAPES[name])
        output = convert_radgraph(archive, tokenizer, Path(folder) / "converted")
        return RadGraphModel.from_pretrained(output).eval(), AutoTokenizer.from_pretrained(tokenizer)
