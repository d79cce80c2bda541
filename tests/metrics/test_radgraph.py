"""RadGraph-F1: readers, scores, what empty reports do, and the protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.metrics.graph_rewards import combined_f1, graph_reward
from rrg_hf.metrics.radgraph import (
    NETWORKS,
    RadGraphF1,
    RadGraphReader,
    RulesGraphReader,
    load_graph_reader,
    load_radgraph_f1,
)
from rrg_hf.metrics.reading import ReadingCache
from rrg_hf.modeling.radgraph import convert_radgraph
from tests.tiny_radgraph import SHAPES, make_archive, texts

PUBLISHED = Path(__file__).parents[1] / "modeling" / "radgraph" / "data" / "radgraph_expected.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("radgraph")
    return convert_radgraph(*make_archive(path, SHAPES["xl_one_layer"]), path / "radgraph-xl")


@pytest.fixture(scope="module")
def reader(folder: Path) -> RadGraphReader:
    return RadGraphReader(folder, device="cpu")


def test_rewards_of_the_published_package(reader: RadGraphReader) -> None:
    expected = json.loads(PUBLISHED.read_text())
    limit = expected["graphs"]["xl_one_layer"]["max_characters"]
    references = [text[:limit] for text in texts()]
    hypotheses = references[1:] + references[:1]
    scores = RadGraphF1(reader, lowercase=False).compute(hypotheses, references, per_sample=True)
    for level, values in expected["rewards_of_neighbours"]["xl_one_layer"].items():
        assert scores["per_sample"][f"radgraph_{level}"] == values
        assert scores[f"radgraph_{level}"] == pytest.approx(sum(values) / len(values))
    assert scores["radgraph_simple"] > 0


def test_parity_case(shared_dir: Path, tmp_path: Path) -> None:
    case = shared_dir / "cases" / "parity_radgraph_xl"
    model = convert_radgraph(case / "archive.tar.gz", case / "tokenizer", tmp_path / "radgraph-xl")
    inputs = json.loads((case / "inputs.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    metric = load_radgraph_f1("radgraph-xl", model=model, device="cpu", lowercase=False)
    scores = metric.compute(inputs["hyps"], inputs["refs"], per_sample=True)
    for level, values in expected["rewards_per_pair"].items():
        assert scores["per_sample"][f"radgraph_{level}"] == values
    assert len(inputs["refs"]) == len(inputs["hyps"]) == 12
    for side in ("ref", "hyp"):
        graphs = metric.reader(inputs[f"{side}s"])
        assert graphs == expected[f"{side}_annotations"]
        assert any(entity["relations"] for graph in graphs for entity in graph["entities"].values())
    for batch_size in (1, 64):
        metric = load_radgraph_f1(model=model, device="cpu", lowercase=False, batch_size=batch_size)
        assert metric.reader(inputs["refs"]) == expected["ref_annotations"]


def test_one_pass_over_distinct_texts(reader: RadGraphReader, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = RadGraphReader.__new__(RadGraphReader)
    fresh.__dict__.update({**reader.__dict__, "_memory": type(reader._memory)()})
    read: list[str] = []
    original = RadGraphReader.read_batch
    monkeypatch.setattr(RadGraphReader, "read_batch", lambda self, batch: read.extend(batch) or original(self, batch))
    reports = texts()
    RadGraphF1(fresh).compute([*reports, *reports], [*reports, *reports[::-1]])
    assert sorted(read) == sorted(set(reports))
    assert fresh._encoded == {}, "nothing of the texts stays behind"


def test_batch_size_changes_nothing(folder: Path, reader: RadGraphReader) -> None:
    reports = [*texts(), *(text[::-1] for text in texts()[3:9])]
    small = RadGraphReader(folder, device="cpu", batch_size=1)
    tight = RadGraphReader(folder, device="cpu", max_tokens=300)
    assert small(reports) == tight(reports) == reader(reports)


def test_empty_and_blank_reports(reader: RadGraphReader) -> None:
    """Every pair keeps its row and counts; blanks are no error."""
    predictions = ["", "Effusion.", "", " \n ", texts()[5]]
    references = ["Effusion.", "", "", "Effusion.", texts()[5]]
    scores = RadGraphF1(reader).compute(predictions, references, per_sample=True)
    assert scores["per_sample"]["radgraph_simple"] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert scores["per_sample"]["radgraph_combined"][:4] == [0.0] * 4
    assert scores["radgraph_simple"] == pytest.approx(0.2)
    assert scores["radgraph_predictions_without_entities"] >= 3
    assert reader([" \n "])[0]["entities"] == {}
    assert reader([""])[0]["text"] == "None", "as the published package reads it"


def test_scores_are_those_of_the_pure_functions(reader: RadGraphReader) -> None:
    predictions, references = texts()[5:9], texts()[6:10]
    per_sample = RadGraphF1(reader).compute(predictions, references, per_sample=True)["per_sample"]
    for row, pair in enumerate(zip(reader(predictions), reader(references), strict=True)):
        reward = graph_reward(*pair, "complete")
        assert per_sample["radgraph_complete"][row] == reward.f1
        assert per_sample["radgraph_complete_precision"][row] == reward.precision
        assert per_sample["radgraph_complete_recall"][row] == reward.recall
        parts = [per_sample[f"radgraph_{name}"][row] for name in ("entity_f1", "relation_f1", "combined")]
        assert parts == list(combined_f1(*pair))


def test_rules_backend_has_its_own_names() -> None:
    metric = load_radgraph_f1("rules")
    scores = metric.compute(["No pleural effusion."], ["No pleural effusion."])
    assert metric.primary_key == "rules_radgraph_partial" and metric.higher_is_better
    assert scores["rules_radgraph_partial"] == 1.0
    assert not [name for name in scores if name.startswith("radgraph")]
    assert scores["protocol"]["backend"] == "rules"
    assert isinstance(metric.reader, RulesGraphReader)


def test_protocol(reader: RadGraphReader, tmp_path: Path) -> None:
    protocol = RadGraphF1(reader, lowercase=False).protocol()
    assert protocol["backend"] == "radgraph-xl" and protocol["lowercase"] is False
    assert protocol["preprocessing"] == "xl" and protocol["model"] == "radgraph-xl"
    assert str(tmp_path.parent) not in json.dumps(protocol), "names, no paths"


def test_revision_follows_the_weights(folder: Path, reader: RadGraphReader, tmp_path: Path) -> None:
    again = RadGraphReader(folder, device="cpu")
    assert again.revision == reader.revision
    assert RadGraphReader(folder, device="cpu", dtype="bfloat16").revision != reader.revision
    reader._model.save_pretrained(tmp_path)
    reader._tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "spans_per_word": 0.1}))
    assert RadGraphReader(tmp_path, device="cpu").revision != reader.revision


def test_references_are_kept_on_disk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RadGraphReader(folder, device="cpu", cache=ReadingCache(tmp_path))
    expected = first(texts(), persist=True)
    second = RadGraphReader(folder, device="cpu", cache=ReadingCache(tmp_path))
    monkeypatch.setattr(second, "read_batch", lambda batch: pytest.fail("read again"))
    assert second(texts(), persist=True) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "radgraph-xxl"}, "Unknown backend 'radgraph-xxl'"),
        ({"backend": "rules", "model": "somewhere"}, "'model': 'somewhere'.*Drop one"),
        ({"backend": "rules", "revision": "main"}, "'revision': 'main'.*Drop one"),
        ({"backend": "radgraph-xl", "lowercase": "no"}, "lowercase is 'no'"),
        ({"backend": "radgraph-xl", "dtype": "int8"}, "dtype is 'int8'"),
        ({"backend": "radgraph-xl", "batch_size": 0}, "batch_size is 0"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_radgraph_f1(**settings)


def test_the_wrong_network_is_named(folder: Path, tmp_path: Path) -> None:
    assert RadGraphReader(folder, device="cpu").name == "radgraph-xl"
    with pytest.raises(ConfigError, match=r"holds 'radgraph-xl', not 'radgraph'"):
        RadGraphReader(folder, backend="radgraph", device="cpu")
    with pytest.raises(ConfigError, match="Unknown RadGraph network 'rules'"):
        RadGraphReader(folder, backend="rules")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="holds a 'bert' model"):
        load_graph_reader(model=tmp_path)
    assert "radgraph" in NETWORKS


def test_incomplete_folders(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CheckpointError, match="is incomplete"):
        RadGraphReader(tmp_path, device="cpu")
    weights = load_file(folder / "model.safetensors")
    weights.pop("width_embedding.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing or unexpected: \['width_embedding.weight'\]"):
        RadGraphReader(tmp_path, device="cpu")


def test_bad_pairs(reader: RadGraphReader) -> None:
    metric = RadGraphF1(reader)
    for pair in ((["a"], ["a", "b"]), ([], []), ("a", ["a"]), ([None], ["a"])):
        with pytest.raises(DataError):
            metric.compute(*pair)
