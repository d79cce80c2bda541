"""Names of IU X-Ray pictures in the three layouts, and telling the forms of the reports apart."""

from __future__ import annotations

import csv
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from rrg_hf.data.sources.iu_files import PictureFolder, form_of, forms_in, picture_id, report_number
from rrg_hf.errors import DataError

from .conftest import write_picture


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CXR2_IM-0652-1001", "CXR2_IM-0652-1001"),
        ("CXR2_IM-0652-1001.png", "CXR2_IM-0652-1001"),
        ("sub/2_IM-0652-1001.dcm.png", "CXR2_IM-0652-1001"),
        ("2_IM-0652-1001.dcm", "CXR2_IM-0652-1001"),
        ("1_IM-0001-3001.dcm.png", "CXR1_1_IM-0001-3001"),
        ("CXR1_1_IM-0001-3001.PNG", "CXR1_1_IM-0001-3001"),
        ("CXR1_IM-0001-3001", "CXR1_1_IM-0001-3001"),
        ("CXR1021_IM-0017-1001-0001.jpg", "CXR1021_IM-0017-1001-0001"),
        ("11_IM-0067-1001.dcm.png", "CXR11_IM-0067-1001"),
        ("0.png", None),
        ("chest.png", None),
        ("CXRx_IM-1.png", None),
    ],
)
def test_picture_id(name: str, expected: str | None) -> None:
    assert picture_id(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CXR2384_IM-0942", "2384"),
        ("CXR1_1_IM-0001", "1"),
        ("17", "17"),
        ("CXR12", "12"),
        ("abc", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_report_number(name: str, expected: str | None) -> None:
    assert report_number(name) == expected


def test_every_published_name_maps_onto_the_xml(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "iu_xray"
    known = set()
    with tarfile.open(folder / "NLMCXR_reports.tgz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith(".xml") else None
            if stream is not None:
                known |= {image.get("id") for image in ElementTree.parse(stream).iter("parentImage")}
    assert len(known) == 7470
    with (folder / "indiana_projections.csv").open(newline="") as stream_csv:
        names = [row["filename"] for row in csv.DictReader(stream_csv)]
    mapped = [picture_id(name) for name in names]
    assert len(mapped) == 7466 and set(mapped) <= known
    assert known - set(mapped) == {
        "CXR2560_IM-1064-4001",
        "CXR2084_IM-0715-1001-0002",
        "CXR2084_IM-0715-2001-0001",
        "CXR3809_IM-1919-1003002",
    }


def test_listed_names_are_found_in_each_layout(
    nlm_pictures: Path, kaggle_pictures: Path, r2gen_pictures: Path
) -> None:
    listed = ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001", "CXR1_1_IM-0001-9999"]
    for root in (nlm_pictures, kaggle_pictures):
        found, absent, stood_in = PictureFolder.scan(root).find(listed, "1")
        assert [name for name, _ in found] == listed[:2] and absent == listed[2:] and not stood_in
        assert all(file.is_file() for _, file in found)
    found, absent, stood_in = PictureFolder.scan(r2gen_pictures).find(listed, "1")
    assert [name for name, _ in found] == ["CXR1_1_IM-0001/0.png", "CXR1_1_IM-0001/1.png"]
    assert not absent and stood_in


def test_r2gen_names_are_found_directly_or_as_the_whole_study(r2gen_pictures: Path, nlm_pictures: Path) -> None:
    listed = ["CXR7_IM-2263-1001/0.png", "CXR7_IM-2263-1001/1.png"]
    found, _, stood_in = PictureFolder.scan(r2gen_pictures).find(listed, "7")
    assert [name for name, _ in found] == listed and not stood_in
    found, absent, stood_in = PictureFolder.scan(nlm_pictures).find(listed, "7")
    assert [name for name, _ in found] == ["CXR7_IM-2263-1001-0001", "CXR7_IM-2263-1001-0002"]
    assert not absent and stood_in
    assert PictureFolder.scan(nlm_pictures).find(["CXR99_IM-1/0.png"], "99") == ([], ["CXR99_IM-1/0.png"], False)


def test_names_cannot_lead_out_of_the_folder(nlm_pictures: Path) -> None:
    write_picture(nlm_pictures.parent / "secret.png", 1)
    found, absent, _ = PictureFolder.scan(nlm_pictures).find(["../secret.png"], "3")
    assert not found and absent == ["../secret.png"]


def test_numbers_sort_as_numbers_and_png_wins(tmp_path: Path) -> None:
    for place in (10, 2, 0):
        write_picture(tmp_path / "CXR5_IM-1" / f"{place}.png", place)
    folder = PictureFolder.scan(tmp_path)
    assert [name for name, _ in folder.find(["CXR5_IM-1-1001"], "5")[0]] == [
        "CXR5_IM-1/0.png",
        "CXR5_IM-1/2.png",
        "CXR5_IM-1/10.png",
    ]
    write_picture(tmp_path / "a" / "6_IM-2192-1001.jpg", 1)
    write_picture(tmp_path / "b" / "CXR6_IM-2192-1001.png", 1)
    folder = PictureFolder.scan(tmp_path)
    assert folder.by_id["CXR6_IM-2192-1001"].suffix == ".png" and folder.repeated == ["a/6_IM-2192-1001.jpg"]


def test_folders_without_pictures_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        PictureFolder.scan(tmp_path / "gone")
    write_picture(tmp_path / "holiday.png", 1)
    with pytest.raises(DataError, match="no picture named as in IU X-Ray"):
        PictureFolder.scan(tmp_path)


def test_forms_are_told_by_content(archive: Path, tables: tuple[Path, Path], annotation: Path, tmp_path: Path) -> None:
    assert form_of(archive) == "xml"
    assert [form_of(path) for path in tables] == ["reports_csv", "projections_csv"]
    assert form_of(annotation) == "annotation"
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml" / "1.xml").write_text("<a/>")
    assert form_of(tmp_path / "xml") == "xml" and form_of(tmp_path / "xml" / "1.xml") == "xml"
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="neither those of the reports"):
        form_of(tmp_path / "other.csv")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="not a form of the IU X-Ray reports"):
        form_of(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="no such file"):
        form_of(tmp_path / "gone.tgz")


def test_a_download_folder_uses_one_form_and_says_which(
    archive: Path, tables: tuple[Path, Path], annotation: Path, tmp_path: Path
) -> None:
    used, notes = forms_in(tmp_path)
    assert used == [archive, tables[1]]
    assert "not used" in notes[0] and "indiana_reports.csv" in notes[0] and "annotation.json" in notes[0]
    archive.unlink()
    assert forms_in(tmp_path)[0] == list(tables)
    tables[0].unlink()
    assert forms_in(tmp_path)[0] == [annotation, tables[1]]
    annotation.unlink()
    with pytest.raises(DataError, match="holds no IU X-Ray reports"):
        forms_in(tmp_path)
    (tmp_path / "1.xml").write_text("<a/>")
    assert forms_in(tmp_path) == ([tmp_path], [])
