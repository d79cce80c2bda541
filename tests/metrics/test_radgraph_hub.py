"""Stated outputs of the published networks: they run where converted weights are prepared, and skip elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import RrgError
from rrg_hf.metrics.graph_summary import summarize_graph, summary_lines
from rrg_hf.metrics.radgraph import RadGraphF1, RadGraphReader

pytestmark = pytest.mark.hub


def cases(shared_dir: Path, metric: str) -> list[dict[str, Any]]:
    path = shared_dir / "cases" / "metric_golden.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return [case for case in json.loads(path.read_text())["cases"] if case["metric"] == metric]


def prepared(backend: str) -> RadGraphReader:
    try:
        return RadGraphReader(backend=backend)
    except RrgError as error:
        pytest.skip(f"the weights of {backend} are not here: {error}")


def test_rewards(shared_dir: Path) -> None:
    for case in cases(shared_dir, "radgraph_f1"):
        reader, inputs, expected = prepared(case["inputs"]["model_type"]), case["inputs"], case["expected"]
        for lowercase in (True, False):  # the texts are in lower case
            scores = RadGraphF1(reader, lowercase=lowercase).compute(inputs["hyps"], inputs["refs"], per_sample=True)
            for level, mean in zip(("simple", "partial", "complete"), expected["mean"], strict=True):
                assert scores["per_sample"][f"radgraph_{level}"] == expected[level]
                assert scores[f"radgraph_{level}"] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("metric", ["radgraph_annotations", "radgraph_processed_annotations"])
def test_annotations(shared_dir: Path, metric: str) -> None:
    for case in cases(shared_dir, metric):
        reader, expected = prepared(case["inputs"]["model_type"]), case["expected"]
        annotations = reader(case["inputs"]["reports"])
        graphs = expected.get("radgraph_annotations", expected)
        assert annotations == [graphs[str(index)] for index in range(len(annotations))]
        if metric == "radgraph_processed_annotations":
            assert summarize_graph(annotations[0]) == expected["processed_annotations"]


def test_processed_text(shared_dir: Path) -> None:
    for case in cases(shared_dir, "radgraph_processed_text"):
        [annotation] = prepared(case["inputs"]["model_type"])(case["inputs"]["reports"])
        assert summary_lines(summarize_graph(annotation)) == case["expected"]


def test_example_annotations(shared_dir: Path) -> None:
    examples = json.loads((shared_dir / "data" / "radgraph" / "radgraph_example_annotations.json").read_text())
    for backend, graphs in examples.items():
        reader = prepared(backend)
        for graph in graphs.values():
            assert reader([graph["text"]]) == [graph]
