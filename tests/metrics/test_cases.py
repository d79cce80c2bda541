"""Every metric case that the sample data holds has a test of its own, and what a case states without weights holds."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.metrics.graph_rewards import LEVELS, graph_reward
from rrg_hf.metrics.ratescore import RaTEScore, RulesEntityReader
from rrg_hf.modeling.radgraph.words_radgraph import split_words

HERE = Path(__file__).parent

# metric of a case in metric_golden.json -> (tests that need no weights, tests with the published weights, how many)
GOLDEN = {
    "radgraph_f1": ("test_cases.py::test_words_of_stated_graphs", "test_radgraph_hub.py::test_rewards", 1),
    "radgraph_annotations": (
        "test_cases.py::test_stated_graphs_under_the_rewards", "test_radgraph_hub.py::test_annotations", 1),
    "radgraph_processed_annotations": (
        "test_graph_summary.py::test_published_examples", "test_radgraph_hub.py::test_annotations", 3),
    "radgraph_processed_text": (
        "test_graph_summary.py::test_labels_of_version_one_and_lines", "test_radgraph_hub.py::test_processed_text", 1),
    "chexbert_label_contains": (None, "test_chexbert_hub.py::test_probe_sentences", 5),
    "chexbert_labels_4class": (None, "test_chexbert_hub.py::test_published_rows", 2),
    "radcliq_linear": ("test_radcliq.py::test_published_linear_cases", None, 3),
    "radcliq_v1_reciprocal": ("test_radcliq.py::test_sign", "test_radcliq_hub.py::test_reported_reciprocals", 3),
    "bleu_rouge": ("test_nlg_scorer.py::test_published_bleu_and_rouge_table", None, 1),
    "coco_rougeL_cider": ("test_nlg_scorer.py::test_published_rouge_l_and_cider", None, 1),
    "ratescore": ("test_cases.py::test_ratescore_example", "test_ratescore_hub.py::test_example_of_the_authors", 1),
}  # fmt: skip
# id of a case in public_faults.jsonl -> its test
FAULTS = {
    "radgraph-case": "test_graph_rewards.py::test_case_carries_no_meaning",
    "radcliq-sign": "test_radcliq.py::test_sign",
    "chexbert-uncertain": "test_observation_scores.py::test_uncertain_under_named_policies_in_both_codings",
    "f1-absent-class": "test_observation_scores.py::test_absent_classes_are_averaged_as_declared",
    "iu-placeholder": "test_nlg_scorer.py::test_deidentification_marks",
    "nan-findings": "test_nlg_scorer.py::test_missing_sections_are_no_words",
    "ref-truncated": "test_nlg_scorer.py::test_reference_is_not_truncated",
    "green-parse": "test_green_parse.py::test_public_fault_green_parse",
    "bleu-blank": "test_nlg_scorer.py::test_blank_side",
    "rouge-period": "test_nlg_scorer.py::test_report_of_full_stops",
    "meteor-newline": "test_nlg_scorer.py::test_newlines_do_not_shift_meteor",
    "sinkhorn-underflow": "../modeling/palm/test_alignment_palm.py::test_large_costs_do_not_underflow",
}


@pytest.fixture(scope="module")
def golden(shared_dir: Path) -> list[dict[str, Any]]:
    path = shared_dir / "cases" / "metric_golden.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return json.loads(path.read_text())["cases"]


def named(golden: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    return [case for case in golden if case["metric"] == metric]


def stated_graphs(golden: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """(network, report, graph) of every annotation that a case states."""
    found = []
    for metric in ("radgraph_annotations", "radgraph_processed_annotations"):
        for case in named(golden, metric):
            graphs = case["expected"].get("radgraph_annotations", case["expected"])
            for index, report in enumerate(case["inputs"]["reports"]):
                found.append((case["inputs"]["model_type"], report, graphs[str(index)]))
    return found


def test_every_golden_case_has_a_test(golden: list[dict[str, Any]]) -> None:
    assert Counter(case["metric"] for case in golden) == {name: count for name, (_, _, count) in GOLDEN.items()}


def test_every_public_fault_of_a_metric_has_a_test(shared_dir: Path) -> None:
    path = shared_dir / "cases" / "public_faults.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    assert (
        {row["id"] for row in rows if row["area"].startswith("metrics/")} <= set(FAULTS) <= {row["id"] for row in rows}
    )


@pytest.mark.parametrize("test", sorted({*FAULTS.values(), *(t for row in GOLDEN.values() for t in row[:2] if t)}))
def test_the_named_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    source = (HERE / file).read_text()
    assert re.search(rf"^def {name}\(", source, re.MULTILINE)
    assert file.endswith("_hub.py") == bool(re.search(r"^pytestmark = pytest.mark.hub$", source, re.MULTILINE))


def test_words_of_stated_graphs(golden: list[dict[str, Any]]) -> None:
    """What the networks read, for every report of a RadGraph case whose words are stated; of the others the words
    that lower-case text without punctuation has anyway."""
    graphs = stated_graphs(golden)
    assert len(graphs) >= 4
    for network, report, graph in graphs:
        words = split_words(report, "v1" if network == "radgraph" else "xl")
        assert " ".join(words) == graph["text"]
        for entity in graph["entities"].values():
            assert " ".join(words[entity["start_ix"] : entity["end_ix"] + 1]) == entity["tokens"]
    for case in named(golden, "radgraph_f1"):
        for report in [*case["inputs"]["refs"], *case["inputs"]["hyps"]]:
            assert split_words(report, "v1") == report.split()


def test_stated_graphs_under_the_rewards(golden: list[dict[str, Any]]) -> None:
    """A graph against itself is 1; without its last entity it loses recall and no precision in `simple`."""
    for _, _, graph in stated_graphs(golden):
        entities = dict(graph["entities"])
        for level in LEVELS:
            assert graph_reward(graph, graph, level, lowercase=True).f1 == 1.0
        last = entities.pop(max(entities, key=int))
        part = {**graph, "entities": entities}
        reward = graph_reward(part, graph, "simple", lowercase=True)
        facts = {(entity["tokens"], entity["label"]) for entity in graph["entities"].values()}
        lost = (last["tokens"], last["label"]) not in {(e["tokens"], e["label"]) for e in entities.values()}
        assert reward.precision == 1.0 and reward.recall == pytest.approx(1 - lost / len(facts))


def test_ratescore_example(golden: list[dict[str, Any]]) -> None:
    """The authors state inputs only: one score per pair, and a report against itself is perfect."""
    (case,) = named(golden, "ratescore")
    scorer = RaTEScore(RulesEntityReader())
    scores = scorer.compute(case["inputs"]["hyps"], case["inputs"]["refs"], per_sample=True)
    assert len(scores["per_sample"]["rules_ratescore"]) == len(case["inputs"]["refs"])
    assert all(0.0 <= value <= 1.0 for value in scores["per_sample"]["rules_ratescore"])
