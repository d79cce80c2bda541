"""Label scores against a slow reference written here, scikit-learn where installed, and published conventions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics.observation_scores import (
    SUBSETS,
    label_statistics,
    label_targets,
    observation_scores,
    per_observation,
    states_from_chexbert,
    states_from_chexpert,
)
from rrg_hf.observations import OBSERVATIONS, TOP_5, Labels, LabelState, empty_labels

POSITIVE, NEGATIVE = LabelState.POSITIVE, LabelState.NEGATIVE
UNCERTAIN, NOT_MENTIONED = LabelState.UNCERTAIN, LabelState.NOT_MENTIONED
STATES = list(LabelState)


def labels(**states: LabelState) -> Labels:
    return empty_labels() | {name.replace("_", " "): state for name, state in states.items()}


def random_labels(n: int, seed: int) -> list[Labels]:
    rng = random.Random(seed)
    return [{name: rng.choice(STATES) for name in OBSERVATIONS} for _ in range(n)]


def ratio(numerator: float, denominator: float, zero: float) -> float:
    return numerator / denominator if denominator else zero


def slow_scores(
    references: Sequence[Mapping[str, Any]], reports: Sequence[Mapping[str, Any]], policy: str, zero: float
) -> dict[str, float]:
    """Cell by cell, from the definitions."""
    positive = {POSITIVE, UNCERTAIN} if policy == "uncertain_as_positive" else {POSITIVE}
    scores: dict[str, float] = {}
    for suffix, names in (("", OBSERVATIONS), ("_top5", TOP_5)):
        cells = [
            (study, name, references[study][name] in positive, reports[study][name] in positive)
            for study in range(len(references))
            for name in names
            if not (policy == "uncertain_ignored" and references[study][name] == UNCERTAIN)
        ]

        def rates(chosen: list[Any]) -> tuple[float, float, float]:
            tp = sum(truth and claim for *_, truth, claim in chosen)
            fp = sum(claim and not truth for *_, truth, claim in chosen)
            fn = sum(truth and not claim for *_, truth, claim in chosen)
            return ratio(tp, tp + fp, zero), ratio(tp, tp + fn, zero), ratio(2 * tp, 2 * tp + fp + fn, zero)

        by_class = [rates([cell for cell in cells if cell[1] == name]) for name in names]
        supports = [sum(cell[2] for cell in cells if cell[1] == name) for name in names]
        by_study = [[cell for cell in cells if cell[0] == study] for study in range(len(references))]
        for index, rate in enumerate(("precision", "recall", "f1")):
            scores[f"rules_micro_{rate}{suffix}"] = rates(cells)[index]
            scores[f"rules_macro_{rate}{suffix}"] = sum(row[index] for row in by_class) / len(names)
            weighed = sum(row[index] * support for row, support in zip(by_class, supports, strict=True))
            scores[f"rules_weighted_{rate}{suffix}"] = ratio(weighed, sum(supports), zero)
            scores[f"rules_samples_{rate}{suffix}"] = sum(rates(study)[index] for study in by_study) / len(by_study)
        scores[f"rules_label_accuracy{suffix}"] = sum(truth == claim for *_, truth, claim in cells) / len(cells)
        exact = [all(truth == claim for *_, truth, claim in study) for study in by_study]
        scores[f"rules_exact_match{suffix}"] = sum(exact) / len(exact)
    return scores


@pytest.mark.parametrize("policy", ["uncertain_as_positive", "uncertain_as_negative", "uncertain_ignored"])
@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_equals_the_definitions(policy: str, zero: float) -> None:
    references, reports = random_labels(25, 1), random_labels(25, 2)
    for report in reports[:3]:  # some reports without any positive
        report |= dict.fromkeys(OBSERVATIONS, NEGATIVE)
    for reference in references:
        reference["Fracture"] = NOT_MENTIONED
    scores, _ = observation_scores(references, reports, policy=policy, zero_division=zero)
    expected = slow_scores(references, reports, policy, zero)
    assert scores.keys() == expected.keys()
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("zero", [0, 1])
def test_equals_scikit_learn(zero: int) -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is no dependency")
    references, reports = random_labels(40, 3), random_labels(40, 4)
    for side in (references, reports):
        for row in side:
            row["Fracture"] = NEGATIVE
    scores, table = observation_scores(references, reports, zero_division=zero)
    truth, claim = label_targets(references), label_targets(reports)
    for average in ("micro", "macro", "weighted", "samples"):
        for suffix, columns in SUBSETS.items():
            expected = sklearn.precision_recall_fscore_support(
                truth[:, columns], claim[:, columns], average=average, zero_division=zero
            )[:3]
            ours = [scores[f"rules_{average}_{rate}{suffix}"] for rate in ("precision", "recall", "f1")]
            assert ours == pytest.approx(expected, abs=1e-12)
    *rates, support = sklearn.precision_recall_fscore_support(truth, claim, zero_division=zero)
    for index, name in enumerate(OBSERVATIONS):
        assert [table[name][rate] for rate in ("precision", "recall", "f1")] == pytest.approx(
            [rate[index] for rate in rates]
        )
        assert table[name]["support"] == support[index]
    assert scores["rules_exact_match"] == pytest.approx(sklearn.accuracy_score(truth, claim))


def test_absent_classes_are_averaged_as_declared() -> None:
    """f1-absent-class (ysmiura/ifcc#9): perfect predictions, one class present; the key names the average."""
    rows = [labels(Cardiomegaly=POSITIVE), labels()]
    zero, table = observation_scores(rows, rows, zero_division=0)
    one, filled = observation_scores(rows, rows, zero_division=1)
    assert zero["rules_micro_f1_top5"] == zero["rules_weighted_f1_top5"] == 1.0
    assert zero["rules_macro_f1_top5"] == pytest.approx(1 / 5) and one["rules_macro_f1_top5"] == 1.0
    assert zero["rules_macro_f1"] == pytest.approx(1 / 14) and one["rules_macro_f1"] == 1.0
    assert zero["rules_samples_f1"] == 0.5 and one["rules_samples_f1"] == 1.0
    assert table["Cardiomegaly"]["support"] == 1 and table["Edema"]["support"] == 0
    three = ("Cardiomegaly", "Edema", "Fracture")  # the case as reported has three classes
    assert sum(table[name]["f1"] for name in three) / 3 == pytest.approx(1 / 3)
    assert sum(filled[name]["f1"] for name in three) / 3 == 1.0


def test_uncertain_under_named_policies_in_both_codings() -> None:
    """chexbert-uncertain: one label, four reports: reference pos, unc, neg, blank; report pos, neg, unc, blank."""
    head = ([1, 3, 2, 0], [1, 2, 3, 0])
    csv = ([1, -1, 0, None], [1.0, "0", "-1.0", ""])
    rest = [name for name in OBSERVATIONS if name != "Edema"]

    def from_head(code: int) -> Labels:
        return states_from_chexbert({"Edema": code, **dict.fromkeys(rest, 0)})

    def from_csv(code: Any) -> Labels:
        return states_from_chexpert({"Edema": code, **dict.fromkeys(rest, float("nan"))})

    for policy, expected in (("uncertain_as_negative", 1.0), ("uncertain_as_positive", 0.5)):
        by_head, _ = observation_scores([*map(from_head, head[0])], [*map(from_head, head[1])], policy=policy)
        by_csv, _ = observation_scores([*map(from_csv, csv[0])], [*map(from_csv, csv[1])], policy=policy)
        assert by_head == by_csv
        assert by_head["rules_micro_f1"] == expected


def test_ignored_cells_and_hedging() -> None:
    """An uncertain reference counts nowhere; an uncertain report does not escape a positive reference."""
    reference = [labels(Edema=UNCERTAIN, Fracture=POSITIVE)]
    hedged = [labels(Edema=POSITIVE, Fracture=UNCERTAIN)]
    scores, table = observation_scores(reference, hedged, policy="uncertain_ignored")
    assert table["Edema"]["evaluated"] == 0 and table["Fracture"]["fn"] == 1
    assert scores["rules_micro_recall"] == 0.0
    assert scores["rules_label_accuracy"] == pytest.approx(12 / 13)


def test_unlabelled_reference_cells_count_nowhere() -> None:
    reference = [{**labels(Edema=POSITIVE), "Fracture": None}]
    _, table = observation_scores(reference, [labels(Edema=POSITIVE, Fracture=POSITIVE)])
    assert table["Fracture"]["evaluated"] == 0 and table["Fracture"]["fp"] == 0


def test_micro_f1_follows_from_summed_counts_of_any_resample() -> None:
    references, reports = random_labels(30, 5), random_labels(30, 6)
    group = label_statistics(references, reports)
    chosen = [random.Random(7).randrange(30) for _ in range(30)]
    sums = group.values[chosen].sum(axis=0)
    again, table = observation_scores([references[i] for i in chosen], [reports[i] for i in chosen])
    for name, value in group.score(sums).items():
        assert float(value) == pytest.approx(again[name], abs=1e-12)
    assert per_observation(sums)["f1"].tolist() == pytest.approx([table[name]["f1"] for name in OBSERVATIONS])


def test_codings_round_trip() -> None:
    for state, code in zip((POSITIVE, NEGATIVE, UNCERTAIN, NOT_MENTIONED), (1, 0, -1, None), strict=True):
        assert states_from_chexpert(dict.fromkeys(OBSERVATIONS, code)) == dict.fromkeys(OBSERVATIONS, state)
    for state, code in itertools.product((POSITIVE, NOT_MENTIONED), (1, 0)):
        if (state == POSITIVE) == (code == 1):
            assert states_from_chexbert([code] * 14) == dict.fromkeys(OBSERVATIONS, state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: states_from_chexpert({"Edema": 1}), "no column"),
        (lambda: states_from_chexpert(dict.fromkeys(OBSERVATIONS, 2)), "code 2"),
        (lambda: states_from_chexpert(dict.fromkeys(OBSERVATIONS, "positive")), "code 'positive'"),
        (lambda: states_from_chexpert(dict.fromkeys(OBSERVATIONS, 0.5)), r"code 0\.5"),
        (lambda: states_from_chexbert([0] * 13), "13 CheXbert classes"),
        (lambda: states_from_chexbert([0] * 13 + [3]), "'No Finding' has the CheXbert class 3. Use 0 or 1"),
        (lambda: states_from_chexbert([4] + [0] * 13), "class 4"),
        (lambda: states_from_chexbert({"Edema": 1}), "No CheXbert class for"),
        (lambda: observation_scores([], []), "No labels"),
        (lambda: observation_scores([labels()], []), "1 reference labels but 0"),
    ],
)
def test_bad_labels_are_errors(call: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_bad_settings_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"'ones'.*uncertain_as_positive"):
        observation_scores([labels()], [labels()], policy="ones")
    with pytest.raises(ConfigError, match="zero_division is 2"):
        observation_scores([labels()], [labels()], zero_division=2)


def test_study_alone_equals_its_own_scores() -> None:
    references, reports = random_labels(5, 8), random_labels(5, 9)
    alone = label_statistics(references, reports).per_study()
    for index in range(5):
        scores, _ = observation_scores([references[index]], [reports[index]])
        assert float(alone["rules_micro_f1"][index]) == pytest.approx(scores["rules_micro_f1"])
    assert np.allclose(alone["rules_samples_f1"], alone["rules_micro_f1"])
