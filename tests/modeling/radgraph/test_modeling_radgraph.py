"""RadGraph's network against the published package, against loops, and against itself in other batches."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from rrg_hf.modeling.radgraph import RadGraphModel
from rrg_hf.modeling.radgraph.layers_radgraph import enumerate_spans
from rrg_hf.modeling.radgraph.words_radgraph import split_words
from tests.tiny_radgraph import (
    RELATIONS,
    SHAPES,
    Shape,
    archive_weights,
    bert_config,
    converted,
    make_archive,
    texts,
    wordpiece_folder,
)

EXPECTED = json.loads((Path(__file__).parent / "data" / "radgraph_expected.json").read_text())


def digest(annotation: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(annotation, sort_keys=True).encode()).hexdigest()[:16]


def relations_of(annotation: dict[str, Any]) -> int:
    return sum(len(entity["relations"]) for entity in annotation["entities"].values())


@pytest.mark.parametrize("name", SHAPES)
def test_same_graphs_as_the_published_package(name: str) -> None:
    """Every word, entity and relation of 20 texts, of seven archives in the published layout."""
    model, tokenizer = converted(name)
    expected = EXPECTED["graphs"][name]
    reports = [text[: expected["max_characters"]] for text in texts()]
    for index, annotation in enumerate(model.annotate(reports, tokenizer)):
        counts = len(annotation["text"].split()), len(annotation["entities"]), relations_of(annotation)
        assert list(counts) == expected["words_entities_relations"][index], f"text {index}"
        assert digest(annotation) == expected["sha256"][index], f"text {index}"
    assert sum(row[1] for row in expected["words_entities_relations"]) > 100
    assert sum(row[2] for row in expected["words_entities_relations"]) > 5


@pytest.mark.parametrize("name", ["v1_segments", "xl_deep", "modern_segments"])
def test_batches_change_nothing(name: str) -> None:
    model, tokenizer = converted(name)
    reports = [*texts(), *(" ".join(text.split()[::-1]) for text in texts()[:-1]), "  \n", "\u200b"] * 2
    alone = [model.annotate([text], tokenizer)[0] for text in reports[: len(reports) // 2]] * 2
    assert model.annotate(reports, tokenizer) == alone
    for ids in (1, 40, 512):  # one segment always goes in
        assert model.annotate(reports, tokenizer, ids_per_pass=ids) == alone


def test_no_words_no_graph() -> None:
    model, tokenizer = converted("v1")
    blank, zero_width = model.annotate([" \n\t", "\u200b"], tokenizer)
    assert blank == {"text": "", "entities": {}, "data_source": None, "data_split": "inference"}
    assert zero_width["text"] == "\u200b"  # one word without pieces
    assert model.annotate([], tokenizer) == []


def test_relations_of_entities_only_lose_nothing() -> None:
    """Leaving out pairs that are no entities gives the relations that the annotation needs, and no other."""
    model, tokenizer = converted("echograph")
    encoder = model.report_encoder(tokenizer)
    inputs = encoder.collate(encoder(texts()[:-2]))
    with torch.no_grad():
        short, full = model(**inputs), model(**inputs, entities_only=False)
    entity = full.ner_logits.argmax(1) != 0
    both = entity[full.relations[:, 0]] & entity[full.relations[:, 1]]
    assert torch.equal(full.relations[both], short.relations)
    assert len(full.relations) > len(short.relations) > 0
    budget = model.relation_budget(inputs["num_words"])
    kept = [int(part.sum()) for part in full.relation_candidates.split(full.span_counts.tolist())]
    assert kept == [min(pair) for pair in zip(budget, full.span_counts.tolist(), strict=True)]


def loop_graph(text: str, shape: Shape, weights: dict[str, torch.Tensor], tokenizer: Any) -> dict[str, Any]:
    """The network as the papers describe it, one span and one pair at a time, from the archive's own tensors."""
    prefix = "_embedder.token_embedder_bert._matched_embedder.transformer_model."
    encoder = BertModel(BertConfig(**bert_config(shape), vocab_size=len(tokenizer)))
    encoder.load_state_dict(
        {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    )
    encoder.eval()
    words = split_words(text, "v1")
    pieces = [tokenizer.encode(word, add_special_tokens=False) for word in words]
    flat = [piece for ids in pieces for piece in ids]
    hidden = []
    for start in range(0, len(flat), shape.max_length - 2):
        segment = flat[start : start + shape.max_length - 2]
        ids = [tokenizer.cls_token_id, *segment, tokenizer.sep_token_id]
        hidden += list(encoder(torch.tensor([ids])).last_hidden_state[0, 1:-1])
    vectors = []
    for ids in pieces:
        own, hidden = hidden[: len(ids)], hidden[len(ids) :]
        vectors.append(torch.stack(own).mean(0) if own else torch.zeros(shape.hidden))

    def feed_forward(name: str, output: str, vector: torch.Tensor) -> torch.Tensor:
        for layer in range(shape.ffn_layers):
            base = f"{name}._linear_layers.{layer}"
            vector = torch.relu(weights[f"{base}.weight"] @ vector + weights[f"{base}.bias"])
        return weights[f"{output}.weight"] @ vector + weights[f"{output}.bias"]

    ner, relation = f"{shape.namespace}__ner_labels", f"{shape.namespace}__relation_labels"
    width_table = weights["_endpoint_span_extractor._span_width_embedding.weight"]
    spans, span_vectors, entities, mention = [], {}, {}, {}
    for start in range(len(words)):
        for end in range(start, min(start + shape.max_span_width, len(words))):
            span = (start, end)
            spans.append(span)
            span_vectors[span] = torch.cat([vectors[start], vectors[end], width_table[end - start]])
            scores = feed_forward(
                f"_ner._ner_scorers.{ner}.0._module", f"_ner._ner_scorers.{ner}.1._module", span_vectors[span]
            )
            if scores.max() > 0:
                entities[span] = shape.labels[int(scores.argmax())]
            pruner = f"_relation._mention_pruners.{relation}._scorer"
            mention[span] = feed_forward(f"{pruner}.0._module", f"{pruner}.1._module", span_vectors[span])[0]
    budget = math.ceil(torch.tensor(float(len(words))) * shape.spans_per_word)
    best = set(sorted(spans, key=lambda span: -float(mention[span]))[:budget])
    numbers = {span: str(index) for index, span in enumerate(entities, start=1)}
    graph: dict[str, Any] = {}
    for a in entities:
        found = []
        for b in entities:
            if a in best and b in best:
                pair = torch.cat([span_vectors[a], span_vectors[b], span_vectors[a] * span_vectors[b]])
                scores = feed_forward(
                    f"_relation._relation_feedforwards.{relation}", f"_relation._relation_scorers.{relation}", pair
                )
                scores = scores + mention[a] + mention[b]
                if scores.max() > 0:
                    found.append([RELATIONS[int(scores.argmax())], numbers[b]])
        graph[numbers[a]] = {
            "tokens": " ".join(words[a[0] : a[1] + 1]), "label": entities[a], "start_ix": a[0], "end_ix": a[1],
            "relations": found,
        }  # fmt: skip
    return {"text": " ".join(words), "entities": graph, "data_source": None, "data_split": "inference"}


def test_same_graphs_as_loops(tmp_path: Path) -> None:
    shape = SHAPES["v1_segments"]
    model, tokenizer = converted("v1_segments")
    weights = archive_weights(shape, wordpiece_folder(tmp_path, shape.cased, None))
    reports = [text for text in texts() if 0 < len(text) < 500]
    with torch.no_grad():
        expected = [loop_graph(text, shape, weights, tokenizer) for text in reports]
    assert model.annotate(reports, tokenizer) == expected
    assert sum(map(relations_of, expected)) > 0


def test_spans() -> None:
    spans = enumerate_spans(torch.tensor([3, 0, 1, 2]), 2)
    pairs = list(zip(spans.start.tolist(), spans.end.tolist(), strict=True))
    assert pairs == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (3, 3), (4, 4), (4, 5), (5, 5)]
    assert spans.counts == [5, 0, 1, 3]


def test_relation_budget_is_counted_in_float32() -> None:
    """As published: float32(words) x float32(spans per word) may round to either side of a whole number."""
    model, _ = converted("v1_segments")
    words = torch.arange(1, 3000)
    product = words.to(torch.float32).numpy() * torch.tensor(0.6).numpy()
    assert model.relation_budget(words) == [math.ceil(value) for value in product]
    assert model.relation_budget(torch.tensor([1, 5])) == [1, 3]


def test_save_and_load(tmp_path: Path) -> None:
    for name in ("xl_one_layer", "modern"):
        model, tokenizer = converted(name)
        model.save_pretrained(tmp_path / name)
        again = RadGraphModel.from_pretrained(tmp_path / name).eval()
        assert again.config.to_diff_dict() == model.config.to_diff_dict()
        state = again.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        assert again.annotate(texts()[:9], tokenizer) == model.annotate(texts()[:9], tokenizer)


def test_gradients_reach_every_weight() -> None:
    """It is a network one can train on: nothing is cut off by indexing."""
    model, tokenizer = converted("v1")
    encoder = model.report_encoder(tokenizer)
    output = model(**encoder.collate(encoder(texts()[4:8])))
    (output.ner_logits.square().sum() + output.mention_scores.square().sum()).backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert {name.split(".")[0] for name in without} == {"relation_scorer"}
    vectors = torch.randn(5, 2 * 32 + 7, requires_grad=True)
    model.relation_scorer.score(vectors).sum().backward()
    assert all(parameter.grad is not None for parameter in model.relation_scorer.parameters())
    model.zero_grad(set_to_none=True)


def test_pairs_in_small_pieces_are_the_same_pairs() -> None:
    model, _ = converted("v1")
    torch.manual_seed(0)
    vectors = torch.randn(9, 2 * 32 + 7)
    a, b = torch.meshgrid(torch.arange(9), torch.arange(9), indexing="ij")
    with torch.no_grad():
        direct = model.relation_scorer(torch.cat([vectors[a], vectors[b], vectors[a] * vectors[b]], dim=-1))
        for elements in (1, 500, 10**6):
            torch.testing.assert_close(model.relation_scorer.score(vectors, elements), direct)


def test_scores_that_are_no_numbers_are_an_error() -> None:
    model, tokenizer = converted("v1")
    bias = model.ner_scorer.output.bias
    with torch.no_grad():
        kept = bias.clone()
        bias[0] = float("nan")
        try:
            with pytest.raises(ValueError, match="no finite numbers"):
                model.annotate(["Effusion."], tokenizer)
        finally:
            bias.copy_(kept)


def test_nameless_label_set_reads_alike(tmp_path: Path) -> None:
    """The original checkpoint calls its label set "None"."""
    from rrg_hf.modeling.radgraph import convert_radgraph

    model, tokenizer = converted("v1")
    nameless = Shape(**{**SHAPES["v1"].__dict__, "namespace": "None"})
    output = convert_radgraph(*make_archive(tmp_path, nameless), tmp_path / "converted")
    other = RadGraphModel.from_pretrained(output).eval()
    assert (other.config.namespace, other.config.preprocessing) == ("None", "v1")
    assert other.annotate(texts()[:12], tokenizer) == model.annotate(texts()[:12], tokenizer)
