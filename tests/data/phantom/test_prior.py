"""The language prior: there in train, validation and test, gone in test_shifted."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from rrg_hf.data.phantom.facts import DRAWABLE, Fact
from rrg_hf.data.phantom.grammar import write_report
from rrg_hf.data.phantom.prior import SCENARIOS, place, prevalence, sample_case
from rrg_hf.data.phantom.wording import INDICATIONS

N = 6000


@pytest.fixture(scope="module")
def cases():
    return {
        split: [sample_case(np.random.default_rng([i, number]), split) for i in range(N)]
        for number, split in enumerate(("train", "test", "test_shifted"))
    }


def _matrix(cases):
    return np.array([[any(f.observation == name for f in case.facts) for name in DRAWABLE] for case in cases], float)


def test_scenarios_sum_to_one():
    assert sum(weight for weight, _ in SCENARIOS.values()) == pytest.approx(1.0)
    assert set(INDICATIONS) == set(SCENARIOS)


def test_every_finding_is_frequent_enough_to_learn_and_alike_in_every_split(cases):
    expected = np.array([prevalence()[name] for name in DRAWABLE])
    assert expected.min() >= 0.10
    assert expected.max() <= 0.27
    for split, part in cases.items():
        found = _matrix(part)
        # four standard errors of a share
        assert np.abs(found.mean(0) - expected).max() < 4 * np.sqrt(0.25 * 0.75 / N), split
        assert 0.22 < (found.sum(1) == 0).mean() < 0.36, split


def test_findings_keep_company_only_where_the_prior_holds(cases):
    """Correlation among findings of abnormal studies: strong pairs in train and test, none in test_shifted."""
    strongest = {}
    for split, part in cases.items():
        found = _matrix([case for case in part if case.facts])
        correlation = np.corrcoef(found.T)
        strongest[split] = {
            (DRAWABLE[i], DRAWABLE[j]): correlation[i, j] for i, j in combinations(range(len(DRAWABLE)), 2)
        }
    for pair in (("Cardiomegaly", "Edema"), ("Consolidation", "Pneumonia"), ("Pneumothorax", "Fracture")):
        assert strongest["train"][pair] > 0.35
        assert strongest["test"][pair] > 0.35
        assert abs(strongest["test_shifted"][pair]) < 0.12
    assert max(map(abs, strongest["test_shifted"].values())) < 0.12


def test_the_indication_gives_the_findings_away_only_where_the_prior_holds(cases):
    """Guess each finding from the indication alone, by the rates of train."""
    rates = {}
    for scenario in SCENARIOS:
        rates[scenario] = _matrix([case for case in cases["train"] if case.scenario == scenario]).mean(0) > 0.5
    score = {}
    for split in ("test", "test_shifted"):
        guess = np.array([rates[case.scenario] for case in cases[split]])
        truth = _matrix(cases[split]) > 0
        score[split] = 2 * (guess & truth).sum() / (guess.sum() + truth.sum())
    assert score["test"] > 0.6
    assert score["test_shifted"] < 0.3


def test_usual_sides_are_mirrored(cases):
    for name, split in (("Pneumothorax", "train"), ("Pleural Effusion", "train"), ("Consolidation", "train")):
        share = {}
        for part in (split, "test_shifted"):
            sides = Counter(f.side for case in cases[part] for f in case.facts if f.observation == name)
            share[part] = sides["right"] / (sides["right"] + sides["left"])
        assert (share[split] - 0.5) * (share["test_shifted"] - 0.5) < 0


def test_wording_follows_the_scenario_only_where_the_prior_holds(cases):
    """How much more often than chance the commonest phrasing of a denial is used within a scenario."""
    excess = {}
    for split in ("train", "test_shifted"):
        words: dict[str, Counter] = {name: Counter() for name in SCENARIOS}
        for number, case in enumerate(cases[split]):
            text = write_report(case, np.random.default_rng([7, number])).findings
            for phrase in ("The heart size is normal.", "Heart size is within", "The heart is not", "no cardiomegaly"):
                words[case.scenario][phrase] += phrase in text
        tops = [max(counter.values()) / max(1, sum(counter.values())) for counter in words.values()]
        excess[split] = np.mean(tops)
    assert excess["train"] > excess["test_shifted"] + 0.2


def test_placing_keeps_lung_findings_apart():
    names = ["Consolidation", "Pneumonia", "Lung Opacity", "Lung Lesion"]
    for i in range(200):
        facts = place(names, np.random.default_rng(i), mirrored=False)
        slots = [(side, fact.zone) for fact in facts for side in fact.sides]
        assert len(set(slots)) == min(len(slots), 6), "no zone is used twice while another one is free"


def test_placing_goes_around_given_facts():
    given = {"Consolidation": Fact("Consolidation", side="bilateral", zone="upper")}
    for i in range(100):
        facts = place(["Consolidation", "Lung Opacity"], np.random.default_rng(i), mirrored=False, given=given)
        first = next(f for f in facts if f.observation == "Consolidation")
        assert (first.side, first.zone) == ("bilateral", "upper")
        assert first.severity, "what the fact left open is drawn"
        assert next(f for f in facts if f.observation == "Lung Opacity").zone != "upper"
