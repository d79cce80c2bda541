"""Conversion of archives: values from the archive, every key accounted for, and the parity case."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rrg_hf.modeling.radgraph import RadGraphModel, convert_radgraph
from rrg_hf.modeling.radgraph.archive_radgraph import RadGraphArchive, read_archive
from tests.tiny_radgraph import SHAPES, bert_config, converted, make_archive

Edit = Callable[[RadGraphArchive], object]


def test_parity_with_the_published_package(shared_dir: Path, tmp_path: Path) -> None:
    case = shared_dir / "cases" / "parity_radgraph_xl"
    folder = convert_radgraph(case / "archive.tar.gz", case / "tokenizer", tmp_path / "radgraph-xl")
    model, tokenizer = RadGraphModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    inputs = json.loads((case / "inputs.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    assert model.annotate(inputs["refs"], tokenizer) == expected["ref_annotations"]
    assert model.annotate(inputs["hyps"], tokenizer) == expected["hyp_annotations"]


@pytest.mark.parametrize("name", SHAPES)
def test_values_come_from_the_archive(name: str) -> None:
    shape, config = SHAPES[name], converted(name)[0].config
    assert config.ner_labels == ["", *shape.labels]
    assert config.relation_labels == ["modify", "located_at", "suggestive_of"]
    assert (config.max_span_width, config.feature_size) == (shape.max_span_width, shape.feature_size)
    assert config.ner_hidden_sizes == [shape.ffn_size] * shape.ffn_layers
    assert (config.spans_per_word, config.max_length) == (shape.spans_per_word, shape.max_length)
    assert config.preprocessing == ("v1" if name.startswith("v1") else "xl")
    assert config.namespace == shape.namespace
    encoder = config.encoder_config
    assert (encoder.hidden_size, encoder.num_hidden_layers) == (shape.hidden, shape.layers)
    assert encoder.num_attention_heads == shape.heads
    assert config.segments == ("bare" if shape.encoder == "modernbert" else "enclosed")


def test_modernbert_keeps_its_rotary_bases_and_layers() -> None:
    """Older configs name them differently; defaults would load without a word and read wrongly."""
    encoder = converted("modern")[0].config.encoder_config
    assert encoder.rope_parameters["full_attention"]["rope_theta"] == 500.0
    assert encoder.rope_parameters["sliding_attention"]["rope_theta"] == 70.0
    assert encoder.layer_types == ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert encoder.local_attention == 16


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"local_rope_theta": None}, 500.0),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 9.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 8.0},
                }
            },
            8.0,
        ),
    ],
)
def test_modernbert_config_of_either_time(tmp_path: Path, changes: dict[str, Any], theta: float) -> None:
    archive, tokenizer = make_archive(tmp_path, SHAPES["modern"])
    config = json.loads((tokenizer / "config.json").read_text()) | changes
    (tokenizer / "config.json").write_text(json.dumps(config))
    model = RadGraphModel.from_pretrained(convert_radgraph(archive, tokenizer, tmp_path / "out"))
    rotary = model.config.encoder_config.rope_parameters
    assert rotary["sliding_attention"]["rope_theta"] == theta


def test_unused_weights_are_dropped_and_counted(tmp_path: Path) -> None:
    archive, tokenizer = make_archive(tmp_path, SHAPES["v1"])
    folder = convert_radgraph(archive, tokenizer, tmp_path / "out")
    about = json.loads((folder / "conversion.json").read_text())
    assert about["dropped_weights"] == {"coref": 15, "events": 1, "pooler": 2}
    assert about["archive"] == "radgraph.tar.gz" and len(about["sha256"]) == 64
    assert not [key for key in RadGraphModel.from_pretrained(folder).state_dict() if "coref" in key or "pooler" in key]
    assert str(tmp_path) not in (folder / "conversion.json").read_text()


def convert_edited(tmp_path: Path, edit: Edit, name: str = "v1", **settings: Any) -> Path:
    archive, tokenizer = make_archive(tmp_path, SHAPES[name])
    content = read_archive(archive)
    edit(content)
    unpacked = tmp_path / "unpacked"
    (unpacked / "vocabulary").mkdir(parents=True)
    (unpacked / "config.json").write_text(json.dumps(content.config))
    torch.save(content.weights, unpacked / "weights.th")
    for namespace, lines in content.vocabulary.items():
        (unpacked / "vocabulary" / f"{namespace}.txt").write_text("".join(f"{line}\n" for line in lines))
    return convert_radgraph(unpacked, tokenizer, tmp_path / "out", **settings)


def second_label_set(content: RadGraphArchive) -> None:
    for kind in ("ner", "relation"):
        content.vocabulary[f"genia__{kind}_labels"] = content.vocabulary[f"radgraph__{kind}_labels"]
    for key in [key for key in content.weights if "radgraph__" in key]:
        content.weights[key.replace("radgraph__", "genia__")] = content.weights[key]


def test_several_label_sets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\['genia', 'radgraph'\].*Say which"):
        convert_edited(tmp_path / "a", second_label_set)
    folder = convert_edited(tmp_path / "b", second_label_set, namespace="radgraph")
    assert json.loads((folder / "conversion.json").read_text())["dropped_weights"]["label set genia"] == 18
    with pytest.raises(ValueError, match="There is none called 'ace'"):
        convert_edited(tmp_path / "c", second_label_set, namespace="ace")
    with pytest.raises(ValueError, match="Pass preprocessing="):
        convert_edited(tmp_path / "d", second_label_set, namespace="genia")
    folder = convert_edited(tmp_path / "e", second_label_set, namespace="genia", preprocessing="echograph")
    assert json.loads((folder / "config.json").read_text())["preprocessing"] == "echograph"


WIDTHS = "_endpoint_span_extractor._span_width_embedding.weight"


def rename(content: RadGraphArchive) -> None:
    content.weights["_ner.surprise"] = content.weights.pop(WIDTHS)


def model_of(content: RadGraphArchive) -> dict[str, Any]:
    return content.config["model"]


def bert_of(content: RadGraphArchive) -> dict[str, Any]:
    return model_of(content)["embedder"]["token_embedders"]["bert"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (rename, rf"missing weights \['{WIDTHS}'\], unexpected weights \['_ner.surprise'\]"),
        (lambda c: c.weights.update({WIDTHS: torch.ones(6, 7)}), r"is \(6, 7\), not \(5, 7\)"),
        (lambda c: c.weights.update({WIDTHS: torch.full((5, 7), float("inf"))}), "no finite numbers"),
        (lambda c: c.vocabulary["radgraph__ner_labels"].append("EXTRA"), r"is \(4, 16\), not \(5, 16\)"),
        (lambda c: c.vocabulary["radgraph__ner_labels"].reverse(), "must start with the null label"),
        (lambda c: c.vocabulary.pop("radgraph__relation_labels"), r"hold the label sets \[\]"),
        (lambda c: model_of(c)["modules"]["coref"].update(coref_prop=2), "coref_prop 2"),
        (lambda c: model_of(c)["loss_weights"].update(relation=0), "without entities or relations"),
        (lambda c: model_of(c).pop("feature_size"), "has no model > feature_size"),
        (lambda c: model_of(c)["modules"].pop("relation"), "no section model > modules > relation"),
        (lambda c: c.config["dataset_reader"].update(max_span_width=9), "span width table has only 5 rows"),
        (lambda c: bert_of(c).update(max_length=32), "two values of max_length"),
        (lambda c: [c.weights.pop(k) for k in list(c.weights) if k.startswith("_embedder")], "hold no encoder"),
        (
            lambda c: [c.weights.pop(k) for k in list(c.weights) if "embeddings.word" in k],
            "neither BERT nor ModernBERT",
        ),
        (lambda c: [c.weights.pop(k) for k in list(c.weights) if "encoder.layer.1.output" in k], "missing weights"),
    ],
)
def test_archives_that_do_not_fit_themselves(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_edited(tmp_path, edit)
    assert not (tmp_path / "out").exists()


def test_narrower_reader_and_listed_sizes(tmp_path: Path) -> None:
    """The reader's span width counts, the table may be larger; hidden sizes may be a list; both limits may be null."""

    def edit(content: RadGraphArchive) -> None:
        content.config["dataset_reader"]["max_span_width"] = 3
        content.config["dataset_reader"]["token_indexers"]["bert"]["max_length"] = None
        bert_of(content)["max_length"] = None
        model_of(content)["feedforward_params"]["hidden_dims"] = [16, 16]

    config = RadGraphModel.from_pretrained(convert_edited(tmp_path, edit)).config
    assert (config.max_span_width, config.num_width_embeddings, config.max_length) == (3, 5, 512)


def test_original_checkpoint_with_position_ids(tmp_path: Path) -> None:
    def edit(content: RadGraphArchive) -> None:
        prefix = "_embedder.token_embedder_bert._matched_embedder.transformer_model."
        content.weights[f"{prefix}embeddings.position_ids"] = torch.arange(512)[None]

    folder = convert_edited(tmp_path, edit)
    assert json.loads((folder / "conversion.json").read_text())["dropped_weights"]["position_ids"] == 1


def test_encoder_config_must_fit(tmp_path: Path) -> None:
    archive, tokenizer = make_archive(tmp_path, SHAPES["v1"])
    config = json.loads((tokenizer / "config.json").read_text())
    (tokenizer / "config.json").write_text(json.dumps({**config, "hidden_size": 768}))
    with pytest.raises(ValueError, match="hidden_size 768 but weights for 32"):
        convert_radgraph(archive, tokenizer, tmp_path / "out")
    (tokenizer / "config.json").write_text(json.dumps({**config, "position_embedding_type": "relative_key"}))
    with pytest.raises(ValueError, match="relative_key"):
        convert_radgraph(archive, tokenizer, tmp_path / "out")
    (tokenizer / "config.json").unlink()
    with pytest.raises(ValueError, match="number of attention heads"):
        convert_radgraph(archive, tokenizer, tmp_path / "out")
    folder = convert_radgraph(archive, tokenizer, tmp_path / "out", encoder_config=bert_config(SHAPES["v1"]))
    assert RadGraphModel.from_pretrained(folder).config.encoder_config.num_attention_heads == 4


def test_wrong_tokenizers(tmp_path: Path) -> None:
    archive, tokenizer = make_archive(tmp_path, SHAPES["v1"])
    with pytest.raises(ValueError, match="neither a folder nor"):
        convert_radgraph(archive, tmp_path / "nowhere", tmp_path / "out")
    with (tokenizer / "vocab.txt").open("a") as file:
        file.write("another\n")
    with pytest.raises(ValueError, match=r"has \d+ entries, but the encoder"):
        convert_radgraph(archive, tokenizer, tmp_path / "out")


def test_tokenizer_named_by_the_archive(tmp_path: Path) -> None:
    archive, _ = make_archive(tmp_path, SHAPES["v1"])
    folder = convert_radgraph(archive, output_dir=tmp_path / "out")
    assert AutoTokenizer.from_pretrained(folder).tokenize("effusion")


def test_output_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, tokenizer = make_archive(tmp_path, SHAPES["v1"])
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ValueError, match="not empty"):
        convert_radgraph(archive, tokenizer, out)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(RadGraphModel, "save_pretrained", fail)
        with pytest.raises(OSError, match="disk full"):
            convert_radgraph(archive, tokenizer, out, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["mine"]
    convert_radgraph(archive, tokenizer, out, overwrite=True)
    assert not (out / "mine").exists() and (out / "model.safetensors").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "tokenizer", archive.name}, "no leftovers"
    shutil.rmtree(out)
    out.mkdir()
    assert convert_radgraph(archive, tokenizer, out) == out, "an empty folder is fine"
