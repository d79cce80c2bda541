"""From a data set and a finished run to what the page shows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.data.study import study_features
from rrg_hf.errors import DataError
from rrg_hf.evaluation.heatmap import SentenceMaps
from rrg_hf.evaluation.page_studies import choose_cases, explain_with, run_curves, study_cases
from tests.report_model import make_report_model


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return phantom_dataset(12, seed=2, split="test", size=64, masks=())


def reports_of(rows: Dataset) -> dict[str, str | None]:
    return dict(zip(rows["study_id"], rows["findings"], strict=True))


def labels(*positive: str) -> dict[str, str | None]:
    return {name: ("positive" if name in positive else None) for name in ("Edema", "Fracture", "Cardiomegaly")}


def test_chosen_cases_show_different_findings() -> None:
    studies = [labels("Edema"), labels("Edema"), labels(), labels("Fracture", "Cardiomegaly"), labels("Edema")]
    assert choose_cases(studies, 2) == [0, 3]
    assert choose_cases(studies, 5) == [0, 1, 2, 3, 4]
    assert choose_cases(studies, 9) == [0, 1, 2, 3, 4]
    assert choose_cases(studies, 0) == [] == choose_cases([], 3)


def test_cases_hold_what_the_rows_hold(rows: Dataset) -> None:
    cases = study_cases(rows, reports_of(rows), count=4, split="test")
    by_id = {row["study_id"]: row for row in rows}
    assert len({case.study_id for case in cases}) == 4
    for case in cases:
        row = by_id[case.study_id]
        assert (case.reference, case.generated, case.split) == (row["findings"], row["findings"], "test")
        assert (case.source, case.maps, case.labels) == ("phantom", (), row["labels"])
        assert np.array_equal(np.asarray(case.image), np.asarray(row["images"][0]))
    found = [{name for name, state in by_id[case.study_id]["labels"].items() if state == "positive"} for case in cases]
    everything = {name for row in rows for name, state in row["labels"].items() if state == "positive"}
    assert len(set().union(*found)) >= 0.6 * len(everything)


def test_studies_that_lack_a_text_are_not_chosen(rows: Dataset) -> None:
    reports = reports_of(rows)
    ids = list(reports)
    changed = rows.map(lambda row: {"findings": None if row["study_id"] == ids[0] else row["findings"]})
    reports[ids[1]] = None
    del reports[ids[2]]
    shown = {case.study_id for case in study_cases(changed, reports, count=99)}
    assert shown == set(ids[3:])
    with pytest.raises(DataError, match="no case to show"):
        study_cases(rows, {}, count=3)
    assert study_cases(rows, {}, count=0) == []


def test_an_empty_report_is_a_result_to_show(rows: Dataset) -> None:
    def explain(image: Image.Image, report: str, indication: str | None) -> SentenceMaps:
        raise AssertionError("there is no sentence to explain")

    cases = study_cases(rows, dict.fromkeys(rows["study_id"], ""), count=2, explain=explain)
    assert [(case.generated, case.maps) for case in cases] == [("", ())] * 2


def test_unlabelled_studies_are_chosen_by_what_their_reports_say(rows: Dataset) -> None:
    texts = ["Clear lungs.", "Pulmonary edema.", "Pulmonary edema.", "Rib fracture and cardiomegaly."]
    plain = [
        {**row, "findings": text, "labels": dict.fromkeys(row["labels"]), "indication": " "}
        for row, text in zip(rows.select(range(4)), texts, strict=True)
    ]
    unlabelled = Dataset.from_list(plain, features=study_features())
    cases = study_cases(unlabelled, reports_of(unlabelled), count=3)
    assert [case.reference for case in cases] == [texts[0], texts[1], texts[3]]  # "No Finding" is one of the labels
    assert [(case.labels, case.indication) for case in cases] == [(None, None)] * 3


def test_a_case_is_explained_with_its_own_report_and_indication(rows: Dataset) -> None:
    asked: list[tuple[str, str | None]] = []

    def explain(image: Image.Image, report: str, indication: str | None) -> SentenceMaps:
        asked.append((report, indication))
        return SentenceMaps(((0, len(report)),), np.zeros((1, *np.asarray(image).shape), np.float32), "occlusion")

    cases = study_cases(rows, reports_of(rows), count=3, explain=explain)
    assert asked == [(case.generated, case.indication) for case in cases]
    assert all(len(case.maps) == 1 for case in cases)


def test_maps_of_a_large_image_are_no_larger_than_the_page_shows(tmp_path: Path) -> None:
    explain = explain_with(*make_report_model(tmp_path / "tiny", seed=1), grid=2)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 800), dtype=np.uint8))
    maps = explain(image, "The heart size is normal.", None)
    assert maps.maps.shape == (1, 720, 384) and maps.method == "occlusion"
    assert image.size == (800, 1500)


def log(*values: float) -> str:
    history: list[dict[str, Any]] = [{"step": step, "loss": value} for step, value in enumerate(values)]
    return json.dumps({"log_history": history})


def test_curves_of_all_stages_up_to_the_checkpoint(tmp_path: Path) -> None:
    for stage, values in (("mem", (3, 2)), ("align", (5, 4)), ("generate", (7, 6))):
        (tmp_path / stage).mkdir()
        (tmp_path / stage / "trainer_state.json").write_text(log(*values))
    stages = ("mem", "align", "generate")
    titles = [curve.title for curve in run_curves(tmp_path / "generate", stages)]
    assert titles == ["mem: loss", "align: loss", "generate: loss"]
    curves = run_curves(tmp_path / "align", stages)
    assert [curve.title for curve in curves] == ["mem: loss", "align: loss"]
    assert curves[1].series == {"train": [(0.0, 5.0), (1.0, 4.0)]}
    (tmp_path / "mem" / "trainer_state.json").unlink()
    assert [curve.title for curve in run_curves(tmp_path / "align", stages)] == ["align: loss"]


def test_a_checkpoint_outside_a_run_has_its_own_curves_only(tmp_path: Path) -> None:
    assert run_curves(tmp_path, ("mem",)) == [] == run_curves(tmp_path / "no such folder")
    (tmp_path / "trainer_state.json").write_text(log(2, 1))
    assert len(run_curves(tmp_path, ("mem", "align"))) == 1
    (tmp_path / "trainer_state.json").write_text('{"log_his')
    with pytest.raises(DataError, match=r"trainer_state\.json of .* is damaged"):
        run_curves(tmp_path)
