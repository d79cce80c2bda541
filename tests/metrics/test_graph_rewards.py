"""RadGraph's rewards on given graphs, against the published package and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.metrics.graph_rewards import LEVELS, combined_f1, graph_facts, graph_reward, overlap

EXPECTED = json.loads((Path(__file__).parent / "data" / "graph_expected.json").read_text())
LARGE = {"1": ("Large", "OBS-DP", [["modify", "2"]]), "2": ("effusion", "OBS-DP", [])}


def graph(entities: dict[str, tuple[str, str, list[list[str]]]]) -> dict[str, Any]:
    return {
        "entities": {
            number: {"tokens": tokens, "label": label, "relations": relations}
            for number, (tokens, label, relations) in entities.items()
        }
    }


@pytest.mark.parametrize(("lowercase", "expected"), [(False, "rewards_case_kept"), (True, "rewards_lower")])
def test_rewards_of_the_published_package(lowercase: bool, expected: str) -> None:
    references = EXPECTED["graphs"]
    hypotheses = references[1:] + references[:1]
    for hypothesis, reference, values in zip(hypotheses, references, EXPECTED[expected], strict=True):
        rewards = [graph_reward(hypothesis, reference, level, lowercase=lowercase).f1 for level in LEVELS]
        assert rewards == values
    assert EXPECTED["rewards_case_kept"] != EXPECTED["rewards_lower"]


def test_parity_rewards(shared_dir: Path) -> None:
    """Published annotations and their rewards, from an archive with random weights."""
    case = json.loads((shared_dir / "cases" / "parity_radgraph_xl" / "expected.json").read_text())
    pairs = list(zip(case["hyp_annotations"], case["ref_annotations"], strict=True))
    for level in LEVELS:
        rewards = [graph_reward(*pair, level, lowercase=False).f1 for pair in pairs]
        assert rewards == case["rewards_per_pair"][level]


def test_case_carries_no_meaning() -> None:
    """radgraph-case: a capital at the start of a sentence must not cost anything, in any level."""
    hypothesis = graph(LARGE)
    reference = graph({**LARGE, "1": ("large", "OBS-DP", [["modify", "2"]])})
    assert [graph_reward(hypothesis, reference, level).f1 for level in LEVELS] == [1.0, 1.0, 1.0]
    kept = [graph_reward(hypothesis, reference, level, lowercase=False).f1 for level in LEVELS]
    assert kept == [0.5, 0.5, 1.0]


def test_facts_of_each_level() -> None:
    report = graph({**LARGE, "3": ("Lung", "ANAT-DP", [["modify", "2"], ["located_at", "1"]])})
    assert graph_facts(report, "simple") == {("large", "OBS-DP"), ("effusion", "OBS-DP"), ("lung", "ANAT-DP")}
    assert graph_facts(report, "partial", lowercase=False) == {
        ("Large", "OBS-DP", True), ("effusion", "OBS-DP"), ("Lung", "ANAT-DP", True),
    }  # fmt: skip
    complete = {
        ("large", "OBS-DP", "modify", "effusion"),
        ("effusion", "OBS-DP"),
        ("lung", "ANAT-DP", "modify", "effusion"),
        ("lung", "ANAT-DP", "located_at", "large"),
    }
    assert graph_facts(report, "complete") == complete == graph_facts(report, "complete", lowercase=False)


def test_uncertain_is_a_label_of_its_own() -> None:
    unsure = graph({"1": ("effusion", "OBS-U", [])})
    assert graph_reward(unsure, graph({"1": ("effusion", "OBS-DP", [])}), "simple").f1 == 0.0


def test_precision_and_recall() -> None:
    assert overlap({1, 2, 3, 4}, {1, 2}) == (0.5, 1.0, 2 / 3)
    assert overlap(set(), {1}) == overlap({1}, set()) == overlap(set(), set()) == (0.0, 0.0, 0.0)
    assert graph_reward(graph({}), graph(LARGE)) == (0.0, 0.0, 0.0)


def test_combined() -> None:
    """Case counts; 0/0 is 0, so equal graphs without relations get one half."""
    report = graph(LARGE)
    assert combined_f1(report, report) == (1.0, 1.0, 1.0)
    alone = graph({"1": ("pleural", "ANAT-DP", []), "2": ("effusion", "OBS-DP", [])})
    assert combined_f1(alone, alone) == (1.0, 0.0, 0.5)
    assert combined_f1(graph({}), graph({})) == (0.0, 0.0, 0.0)
    lower = graph({**LARGE, "1": ("large", "OBS-DP", [["modify", "2"]])})
    assert combined_f1(report, lower) == (0.5, 0.0, 0.25)
    # one of two relations, two of three entities
    more = graph({**LARGE, "3": ("base", "ANAT-DP", [["modify", "2"]])})
    other = graph({**LARGE, "3": ("lung", "ANAT-DP", [["modify", "2"]])})
    assert combined_f1(more, other) == pytest.approx((2 / 3, 0.5, 7 / 12))


def test_unknown_level() -> None:
    with pytest.raises(ConfigError, match="'simple', 'partial', 'complete'"):
        graph_reward(graph(LARGE), graph(LARGE), "all")
