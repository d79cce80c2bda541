"""IU X-Ray from each form to a saved data set, with every drop named."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.data.sources.iu_xray import IuSummary, prepare_iu_xray
from rrg_hf.data.store import load_studies, split_of_patient
from rrg_hf.errors import ConfigError, DataError
from rrg_hf.observations import OBSERVATIONS

from .conftest import REPORTS, annotation_items, kaggle_name, report_xml, write_csv, write_picture, write_tgz

ALL_TRAIN = {"train": 1.0, "validation": 0.0, "test": 0.0}
MISSING = ["CXR3", "CXR4", "CXR5", "CXR6"]  # blank, "None", "N/A", "nan"


def load(out: Path) -> dict[str, dict[str, Any]]:
    rows = {item["study_id"]: item for part in load_studies(out).values() for item in part}
    for item in rows.values():
        assert item["source"] == "iu_xray" and item["patient_id"] == item["study_id"]
        assert len(item["images"]) == len(item["views"])
    return rows


def shades(item: dict[str, Any]) -> list[int]:
    return [int(np.asarray(image)[0, 0]) for image in item["images"]]


def test_xml_with_pictures(archive: Path, nlm_pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = prepare_iu_xray([archive], out, images=nlm_pictures)
    assert summary.studies.dropped == {"no findings": MISSING, "no image listed": ["CXR8"]}
    assert (summary.studies.read, summary.studies.kept) == (9, 4)
    assert summary.images is not None and (summary.images.read, summary.images.kept) == (10, 6)
    rows = load(out)
    assert set(rows) == {"CXR1", "CXR2", "CXR7", "CXR10"}
    assert rows["CXR1"]["views"] == ["unknown", "unknown"] and shades(rows["CXR1"]) == [10, 11]
    assert rows["CXR1"]["findings"] == "Clear lungs, no effusion." and rows["CXR1"]["comparison"] is None
    assert rows["CXR2"]["indication"] is None and rows["CXR10"]["impression"] is None
    assert rows["CXR7"]["findings"] == "XXXX opacity, left base."
    assert set(rows["CXR1"]["labels"].values()) == {None}
    assert json.loads((out / "tally.json").read_text()) == summary.to_dict()


def test_no_text_says_nan_or_none(archive: Path, tables: tuple[Path, Path], tmp_path: Path) -> None:
    for place, inputs in enumerate(([archive], list(tables))):
        out = tmp_path / str(place)
        summary = prepare_iu_xray(inputs, out, text_only=True, target="any")
        rows = load(out)
        assert "CXR6" in summary.studies.dropped["neither findings nor impression"]
        assert rows["CXR4"]["findings"] is None and rows["CXR5"]["findings"] is None
        words = {str(item[name]).strip().lower() for item in rows.values() for name in ("findings", "impression")
                 if item[name] is not None}  # fmt: skip
        assert words.isdisjoint({"nan", "none", "n/a", "na", ""})
        assert summary.sections["findings"] == {"blank": 1, "says_none": 3}
        assert summary.sections["impression"] == {"blank": 1, "says_none": 1}
        assert summary.sections["comparison"] == {"blank": 8, "says_none": 1}


def test_projections_give_views_and_put_the_frontal_picture_first(
    archive: Path, tables: tuple[Path, Path], nlm_pictures: Path, kaggle_pictures: Path, tmp_path: Path
) -> None:
    combinations = [
        ([archive, tables[1]], nlm_pictures),
        (list(tables), kaggle_pictures),
        (list(tables), nlm_pictures),
    ]
    results = []
    for place, (inputs, pictures) in enumerate(combinations):
        prepare_iu_xray(inputs, tmp_path / str(place), images=pictures)
        results.append(load(tmp_path / str(place)))
    for rows in results:
        assert rows["CXR1"]["views"] == ["frontal", "lateral"] and shades(rows["CXR1"]) == [11, 10]
        assert rows["CXR7"]["views"] == ["frontal", "unknown"] and rows["CXR10"]["views"] == ["lateral"]
        assert {name: (item["split"], item["findings"]) for name, item in rows.items()} == {
            name: (item["split"], item["findings"]) for name, item in results[0].items()
        }


def test_annotation_with_its_own_splits_and_pictures(
    annotation: Path, r2gen_pictures: Path, nlm_pictures: Path, tables: tuple[Path, Path], tmp_path: Path
) -> None:
    summary = prepare_iu_xray([annotation], tmp_path / "a", images=r2gen_pictures)
    assert summary.splits == {"train": 2, "validation": 1, "test": 1} and not summary.notes
    rows = load(tmp_path / "a")
    assert {name: item["split"] for name, item in rows.items()} == {
        "CXR1": "train", "CXR2": "train", "CXR7": "validation", "CXR10": "test",
    }  # fmt: skip
    assert shades(rows["CXR7"]) == [30, 31] and rows["CXR7"]["impression"] is None
    summary = prepare_iu_xray([annotation, tables[1]], tmp_path / "b", images=nlm_pictures)
    assert "4 studies took all pictures" in summary.notes[0]
    rows = load(tmp_path / "b")
    assert rows["CXR1"]["views"] == ["frontal", "lateral"] and shades(rows["CXR1"]) == [11, 10]


def test_splits_from_an_annotation(archive: Path, annotation: Path, tmp_path: Path) -> None:
    summary = prepare_iu_xray([archive], tmp_path / "out", text_only=True, splits_from=annotation)
    assert summary.splits == {"train": 2, "validation": 1, "test": 1}
    assert summary.studies.dropped["not in the file of splits"] == ["CXR8"]
    assert load(tmp_path / "out")["CXR10"]["split"] == "test"


def test_splits_by_patient_do_not_depend_on_form_seed_changes_them(
    archive: Path, tables: tuple[Path, Path], tmp_path: Path
) -> None:
    prepare_iu_xray([archive], tmp_path / "a", text_only=True, target="any", seed=5)
    for name, item in load(tmp_path / "a").items():
        assert item["split"] == split_of_patient(name, seed=5)
    summary = prepare_iu_xray([tables[0]], tmp_path / "b", text_only=True, fractions=ALL_TRAIN)
    assert summary.splits == {"train": 5}


def test_absent_and_unreadable_pictures_are_dropped_by_reason(
    archive: Path, nlm_pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (nlm_pictures / "CXR2_IM-0652-1001.png").unlink()
    (nlm_pictures / "CXR10_IM-0002-1001.png").write_bytes(b"damaged")
    (nlm_pictures / "CXR7_IM-2263-1001-0002.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        summary = prepare_iu_xray([archive], tmp_path / "out", images=nlm_pictures, fractions=ALL_TRAIN)
    assert summary.studies.dropped["image listed but absent"] == ["CXR2"]
    assert summary.studies.dropped["image unreadable"] == ["CXR10"]
    assert summary.images is not None
    assert summary.images.dropped == {
        "listed but absent": ["CXR2_IM-0652-1001"],
        "unreadable": ["CXR7_IM-2263-1001-0002", "CXR10_IM-0002-1001"],
        "its study was dropped": [
            "CXR3_IM-1384-1001",
            "CXR4_IM-2050-1001",
            "CXR5_IM-2117-1003002",
            "CXR6_IM-2192-1001",
        ],
    }
    assert "CXR10_IM-0002-1001.png" in caplog.text
    rows = load(tmp_path / "out")
    assert set(rows) == {"CXR1", "CXR7"} and shades(rows["CXR7"]) == [70]
    assert summary.splits == {"train": 2}


def test_repeated_studies_are_dropped_and_named(archive: Path, tmp_path: Path, annotation: Path) -> None:
    path = write_tgz(
        tmp_path / "twice.tgz", {"a/1.xml": report_xml(1), "b/1.xml": report_xml(1), "2.xml": report_xml(2)}
    )
    summary = prepare_iu_xray([path], tmp_path / "xml", text_only=True)
    assert summary.studies.dropped == {"study id repeated": ["CXR1"]} and summary.studies.kept == 2
    items = annotation_items()
    items["train"] += [items["test"][0], items["train"][0]]
    annotation.write_text(json.dumps(items))
    summary = prepare_iu_xray([annotation], tmp_path / "json", text_only=True)
    assert summary.studies.dropped == {"in another split as well": ["CXR10"], "study id repeated": ["CXR1"]}
    assert load(tmp_path / "json")["CXR10"]["split"] == "test"


def test_pictures_of_no_report_are_counted(tables: tuple[Path, Path], kaggle_pictures: Path, tmp_path: Path) -> None:
    with tables[1].open("a") as stream:
        stream.write("77,77_IM-2000-1001.dcm.png,Frontal\n")
    summary = prepare_iu_xray(tables, tmp_path / "out", images=kaggle_pictures)
    assert summary.images is not None
    assert summary.images.dropped["picture of no report"] == ["77_IM-2000-1001.dcm.png"]
    assert set(summary.images.dropped) == {"picture of no report", "its study was dropped"}


def test_dicom_pictures_are_stored_as_png(archive: Path, tmp_path: Path, dicom: Callable[..., bytes]) -> None:
    folder = tmp_path / "NLMCXR_dcm" / "2"
    folder.mkdir(parents=True)
    pixels = np.array([[0, 4095], [2048, 1024]], dtype=np.uint16)
    (folder / "2_IM-0652-1001.dcm").write_bytes(dicom(pixels, PhotometricInterpretation="MONOCHROME1"))
    prepare_iu_xray([archive], tmp_path / "out", images=tmp_path / "NLMCXR_dcm")
    image = load(tmp_path / "out")["CXR2"]["images"][0]
    assert np.asarray(image).tolist() == [[255, 0], [127, 191]]


def test_targets(archive: Path, tmp_path: Path) -> None:
    kept = {}
    for target in ("findings", "impression", "both", "any"):
        prepare_iu_xray([archive], tmp_path / target, text_only=True, target=target)
        kept[target] = {int(name.removeprefix("CXR")) for name in load(tmp_path / target)}
    assert kept == {
        "findings": {1, 2, 7, 8, 10},
        "impression": {1, 2, 3, 4, 5, 7, 8},
        "both": {1, 2, 7, 8},
        "any": {1, 2, 3, 4, 5, 7, 8, 10},
    }


def test_rule_labels_are_filled_and_recorded(archive: Path, tmp_path: Path) -> None:
    summary = prepare_iu_xray([archive], tmp_path / "out", text_only=True, label="rules", fractions=ALL_TRAIN)
    assert summary.labels == "rules" and summary.to_dict()["labels"] == "rules"
    rows = load(tmp_path / "out")
    assert rows["CXR2"]["labels"]["Cardiomegaly"] == "positive"
    assert rows["CXR1"]["labels"]["Pleural Effusion"] == "negative"
    assert set(rows["CXR1"]["labels"]) == set(OBSERVATIONS) and None not in rows["CXR1"]["labels"].values()
    assert "Labels: rules" in load_studies(tmp_path / "out", "train").info.description


def test_a_download_folder_is_enough(
    archive: Path, tables: tuple[Path, Path], nlm_pictures: Path, tmp_path: Path
) -> None:
    summary = prepare_iu_xray([tmp_path], tmp_path / "sub" / "out")
    assert summary.form == "xml" and summary.studies.kept == 4
    assert "used NLMCXR_reports.tgz, indiana_projections.csv; not used: indiana_reports.csv" in summary.notes[0]
    assert load(tmp_path / "sub" / "out")["CXR1"]["views"] == ["frontal", "lateral"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "No folder of images"),
        ({"text_only": True, "images": "x"}, "both asked for"),
        ({"text_only": True, "target": "finding"}, "target='finding'"),
        ({"text_only": True, "label": "chexpert"}, "label='chexpert'"),
        ({"text_only": True, "fractions": {"train": 0.5}}, "shares of 1"),
        ({"text_only": True, "fractions": {"train": 0.5, "dev": 0.5}}, "Unknown splits"),
    ],
)
def test_settings_that_cannot_work_fail_first(
    archive: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_iu_xray([archive], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_inputs_that_do_not_go_together(
    archive: Path, tables: tuple[Path, Path], annotation: Path, nlm_pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for inputs in ([archive, annotation], [tables[1]], [tables[1], tables[1], archive], []):
        with pytest.raises(ConfigError, match="exactly one form"):
            prepare_iu_xray(inputs, out, text_only=True)
    with pytest.raises(ConfigError, match="does not list its pictures"):
        prepare_iu_xray([tables[0]], out, images=nlm_pictures)
    with pytest.raises(ConfigError, match="brings its own splits"):
        prepare_iu_xray([annotation], out, text_only=True, splits_from=annotation)
    with pytest.raises(DataError, match="no such file"):
        prepare_iu_xray([tmp_path / "gone.tgz"], out, text_only=True)
    with pytest.raises(DataError, match="not a folder"):
        prepare_iu_xray([archive], out, images=tmp_path / "gone")


def test_nothing_left_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    path = write_tgz(tmp_path / "r.tgz", {"3.xml": report_xml(3), "4.xml": b"no"})
    with pytest.raises(DataError, match="2 read, dropped 1 for 'malformed XML', 1 for 'no findings'"):
        prepare_iu_xray([path], tmp_path / "out", text_only=True)
    assert not (tmp_path / "out").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["r.tgz"]


def test_an_existing_data_set_is_kept_unless_asked(archive: Path, tmp_path: Path) -> None:
    prepare_iu_xray([archive], tmp_path / "out", text_only=True)
    with pytest.raises(DataError, match="already there"):
        prepare_iu_xray([archive], tmp_path / "out", text_only=True)
    prepare_iu_xray([archive], tmp_path / "out", text_only=True, target="both", overwrite=True)
    assert len(load(tmp_path / "out")) == 4


def test_errors_and_logs_hold_no_report_text(
    archive: Path, nlm_pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (nlm_pictures / "CXR2_IM-0652-1001.png").write_bytes(b"damaged")
    with caplog.at_level(logging.DEBUG, logger="rrg_hf"):
        prepare_iu_xray([archive], tmp_path / "out", images=nlm_pictures)
    tally = (tmp_path / "out" / "tally.json").read_text()
    for text in ("Heart is large", "Cardiomegaly.", "Clear lungs"):
        assert text not in caplog.text and text not in tally
    assert str(tmp_path) not in tally


def test_same_bytes_every_time(archive: Path, nlm_pictures: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        prepare_iu_xray([archive], tmp_path / name, images=nlm_pictures)
    for file in sorted((tmp_path / "a").rglob("*.arrow")):
        other = tmp_path / "b" / file.relative_to(tmp_path / "a")
        assert file.read_bytes() == other.read_bytes()


def _real(shared_dir: Path, *names: str) -> list[Path]:
    return [shared_dir / "data" / "iu_xray" / name for name in names]


def _check_real(summary: IuSummary, read: int, kept: int) -> None:
    assert (summary.studies.read, summary.studies.kept, sum(summary.splits.values())) == (read, kept, kept)


def test_the_real_archive(shared_dir: Path, tmp_path: Path) -> None:
    inputs = _real(shared_dir, "NLMCXR_reports.tgz")
    summary = prepare_iu_xray(inputs, tmp_path / "out", text_only=True)
    _check_real(summary, 3955, 3425)
    assert {reason: len(ids) for reason, ids in summary.studies.dropped.items()} == {"no findings": 530}
    assert summary.sections["findings and impression"] == {"blank": 28, "says_none": 0}
    assert summary.sections["comparison"]["blank"] == 622
    shares = np.array([summary.splits[name] for name in ("train", "validation", "test")]) / 3425
    np.testing.assert_allclose(shares, [0.7, 0.1, 0.2], atol=0.02)


def test_the_real_tables_and_pictures(shared_dir: Path, tmp_path: Path) -> None:
    inputs = _real(shared_dir, "indiana_reports.csv", "indiana_projections.csv")
    summary = prepare_iu_xray(inputs, tmp_path / "out", images=_real(shared_dir, "images")[0])
    _check_real(summary, 3851, 3)
    assert len(summary.studies.dropped["no findings"]) == 514
    assert len(summary.studies.dropped["image listed but absent"]) == 3334
    assert summary.images is not None and (summary.images.read, summary.images.kept) == (7466, 6)
    rows = load(tmp_path / "out")
    assert set(rows) == {"CXR7", "CXR1000", "CXR1900"}
    assert all(item["views"] == ["frontal", "lateral"] for item in rows.values())


def test_the_real_annotation(shared_dir: Path, tmp_path: Path) -> None:
    summary = prepare_iu_xray(_real(shared_dir, "r2gen_annotation.json"), tmp_path / "out", text_only=True)
    _check_real(summary, 2955, 2955)
    assert summary.splits == {"train": 2069, "validation": 296, "test": 590}


def test_fixtures_match_the_published_layout(shared_dir: Path, tables: tuple[Path, Path]) -> None:
    for ours, theirs in zip(tables, _real(shared_dir, "indiana_reports.csv", "indiana_projections.csv"), strict=True):
        assert ours.read_text().splitlines()[0] == theirs.read_text(encoding="utf-8").splitlines()[0]
    assert kaggle_name(REPORTS[1][4][1]) in _real(shared_dir, "indiana_projections.csv")[0].read_text()


def test_a_literal_nan_table(tmp_path: Path) -> None:
    # The published case: blank, "None", "N/A" and "NA" findings, all with an impression.
    header = ["uid", "indication", "comparison", "findings", "impression"]
    rows = [[101, "", "", "", "No acute disease."], [102, "", "", "None", "Clear."], [103, "", "", "N/A", "Stable."],
            [104, "", "", "NA", "Unchanged."], [105, "", "", "Lungs are clear.", "Normal."]]  # fmt: skip
    path = write_csv(tmp_path / "indiana_reports.csv", header, rows)
    summary = prepare_iu_xray([path], tmp_path / "out", text_only=True)
    assert summary.studies.dropped == {"no findings": ["CXR101", "CXR102", "CXR103", "CXR104"]}
    assert set(load(tmp_path / "out")) == {"CXR105"}


def test_a_picture_in_two_files_is_noted(archive: Path, nlm_pictures: Path, tmp_path: Path) -> None:
    write_picture(nlm_pictures / "copy" / "2_IM-0652-1001.dcm.png", 99)
    summary = prepare_iu_xray([archive], tmp_path / "out", images=nlm_pictures)
    assert any("copy/2_IM-0652-1001.dcm.png" in note for note in summary.notes)
