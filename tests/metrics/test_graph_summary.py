"""Graphs in words, against the published package and its documented examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.metrics.graph_summary import summarize_graph, summarize_graphs, summary_lines

EXPECTED = json.loads((Path(__file__).parent / "data" / "graph_expected.json").read_text())


def test_records_of_the_published_package() -> None:
    """Cycles, overlapping entities, repeated words, several places: 24 made-up graphs."""
    for graph, records in zip(EXPECTED["graphs"], EXPECTED["records"], strict=True):
        assert summarize_graph(graph) == records


def test_published_examples(shared_dir: Path) -> None:
    path = shared_dir / "cases" / "metric_golden.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    cases = [c for c in json.loads(path.read_text())["cases"] if c["metric"] == "radgraph_processed_annotations"]
    assert cases
    for case in cases:
        expected = case["expected"]
        [summary] = summarize_graphs([expected["radgraph_annotations"]["0"]])
        assert summary["processed_annotations"] == expected["processed_annotations"]
        assert summary["start_ix_to_label"] == expected["start_ix_to_label"]
        assert summary["radgraph_text"] == expected["radgraph_text"]


def entity(tokens: str, label: str, start: int, *relations: list[str]) -> dict[str, Any]:
    end = start + len(tokens.split()) - 1
    return {"tokens": tokens, "label": label, "start_ix": start, "end_ix": end, "relations": list(relations)}


def report(*entities: dict[str, Any]) -> dict[str, Any]:
    return {"text": "", "entities": {str(number): value for number, value in enumerate(entities, start=1)}}


OPACITIES = report(
    entity("focal", "OBS-DP", 1, ["modify", "2"]),
    entity("opacities", "OBS-DP", 2, ["located_at", "4"], ["suggestive_of", "5"], ["suggestive_of", "6"]),
    entity("lung", "ANAT-DP", 4, ["modify", "4"]),
    entity("bases", "ANAT-DP", 5),
    entity("atelectasis", "OBS-U", 8),
    entity("infection", "OBS-U", 10),
)


def test_labels_of_version_one_and_lines() -> None:
    assert summary_lines(summarize_graph(OPACITIES)) == [
        "Observation: focal opacities [Location: lung bases] [Suggestive of: opacities suggestive of atelectasis, "
        "opacities suggestive of infection] [Tag: definitely present]",
        "Observation: atelectasis [Tag: uncertain]",
        "Observation: infection [Tag: uncertain]",
    ]
    absent = report(entity("small", "OBS-U", 0, ["modify", "2"]), entity("effusion", "OBS-DA", 1))
    assert summarize_graph(absent)[0]["tags"] == ["definitely absent"]


def test_many_reports_and_none() -> None:
    summaries = summarize_graphs([OPACITIES, report(), OPACITIES])
    assert [len(summary["processed_annotations"]) for summary in summaries] == [3, 0, 3]
    assert summarize_graphs([]) == []


def test_long_chains_of_modifiers() -> None:
    """A run-on report may nest thousands deep."""
    count = 5_000
    chain = [entity(f"w{n}", "OBS-DP", n, ["modify", str(n + 2)]) for n in range(count)]
    [record] = summarize_graph(report(*chain, entity("effusion", "OBS-DP", count)))
    assert len(record["observation"].split()) == count + 1
