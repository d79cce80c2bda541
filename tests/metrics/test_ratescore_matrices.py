"""Type weights: the published numbers, the negation factors, and files of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.metrics.ratescore_matrices import MATRICES, TYPES, load_matrix


def published(matrix) -> dict[str, float]:
    cells = {
        f"{first}_{second}": float(matrix.weights[row, column])
        for row, first in enumerate(TYPES)
        for column, second in enumerate(TYPES)
    }
    return {**cells, "neg_weight": matrix.negation_weight}


def test_published_numbers_stand_where_they_belong() -> None:
    long, short = published(load_matrix()), published(load_matrix("short"))
    assert long["neg_weight"] == 0.8716553966489615 and short["neg_weight"] == 0.3611577852354489
    assert long["disease_anatomy"] == 0.9950209388542061 and long["anatomy_disease"] == 0.4592143222158069
    assert long["non-disease_abnormality"] == 0.7759420231214385
    assert short["abnormality_non-abnormality"] == 0.9479148658006686
    assert short["non-abnormality_disease"] == 0.00045065329822896076


def test_factors_cross_polarity_both_ways_and_spare_anatomy() -> None:
    matrix = MATRICES["long"]
    crossing = {(TYPES[row], TYPES[column]) for row, column in np.argwhere(matrix.factors != 1.0)}
    present, absent = ("abnormality", "disease"), ("non-abnormality", "non-disease")
    assert crossing == {pair for a in present for b in absent for pair in ((a, b), (b, a))}
    assert set(np.unique(matrix.factors)) == {1.0, matrix.negation_weight}


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    values = {key.upper(): value / 2 for key, value in published(MATRICES["short"]).items()}
    path.write_text(json.dumps(values))
    matrix = load_matrix(path)
    assert matrix.name == "weights.json" and matrix.negation_weight == MATRICES["short"].negation_weight / 2
    np.testing.assert_allclose(matrix.weights, MATRICES["short"].weights / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("anatomy_disease"), r"lack \['anatomy_disease'\]"),
        (lambda values: values.update(anatomy_organ=1.0), r"unknown keys \['anatomy_organ'\]"),
        (lambda values: values.update(neg_weight=-0.1), "neg_weight is -0.1"),
        (lambda values: values.update(neg_weight=True), "neg_weight is True"),
        (lambda values: values.update(anatomy_disease="1"), "anatomy_disease is '1'"),
        (lambda values: values.update(anatomy_disease=float("nan")), "anatomy_disease is nan"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change, message: str) -> None:
    values = published(MATRICES["long"])
    change(values)
    path = tmp_path / "weights.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message):
        load_matrix(str(path))


def test_what_is_no_file_of_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"matrix is 'middle'. Use one of \['long', 'short'\]"):
        load_matrix("middle")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ConfigError, match="hold a list"):
        load_matrix(tmp_path / "list.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        load_matrix(tmp_path / "broken.json")
