"""Reading the three forms of the IU X-Ray reports, and damaged versions of each."""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from rrg_hf.data.sources import iu_reports
from rrg_hf.data.sources.iu_reports import read_annotation, read_csv, read_projections, read_xml
from rrg_hf.data.sources.tally import Tally
from rrg_hf.errors import DataError

from .conftest import REPORTS, annotation_items, report_xml, write_csv, write_tgz


def test_xml_archive_folder_and_file_agree(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ecgen-radiology"
    folder.mkdir()
    for number in REPORTS:
        (folder / f"{number}.xml").write_bytes(report_xml(number))
    tally = Tally("studies")
    reports = read_xml(archive, tally)
    assert reports == read_xml(folder, Tally("studies"))
    assert read_xml(folder / "2.xml", Tally("studies")) == [reports[1]]
    assert [report.study_id for report in reports] == [f"CXR{number}" for number in REPORTS]
    assert (tally.read, tally.kept) == (len(REPORTS), len(REPORTS))
    first = reports[0]
    assert first.sections == {
        "indication": "Cough.",
        "comparison": "None.",
        "findings": "Clear lungs, no effusion.",
        "impression": "Normal.",
    }
    assert first.images == ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001"]


def test_malformed_xml_is_counted_and_not_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iu_reports, "_MAX_XML_BYTES", 5000)
    bomb = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]><eCitation>&a;</eCitation>'
    path = write_tgz(
        tmp_path / "reports.tgz",
        {
            "1.xml": report_xml(1),
            "2.xml": report_xml(2)[:200],
            "3.xml": b"",
            "4.xml": bomb,
            "5.xml": b"<eCitation><uId id='other'/></eCitation>",
            "6.xml": report_xml(6) + b" " * 5000,
            "7.xml": b'<?xml version="1.0" encoding="no-such-code"?><a/>',
            "readme.txt": b"not a report",
        },
    )
    tally = Tally("studies")
    assert [report.number for report in read_xml(path, tally)] == ["1"]
    assert tally.read == 7
    assert tally.dropped == {
        "malformed XML": ["2.xml", "3.xml", "4.xml", "7.xml"],
        "XML without a report id": ["5.xml"],
        "XML file too large, or a link": ["6.xml"],
    }


def test_links_in_an_archive_are_counted_and_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "links.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, kind in (("a.xml", tarfile.SYMTYPE), ("b.xml", tarfile.LNKTYPE), ("folder.xml", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    tally = Tally("studies")
    assert read_xml(path, tally) == []
    assert tally.dropped == {"XML file too large, or a link": ["a.xml", "b.xml"]}


def test_an_archive_that_is_cut_off_or_huge_is_an_error(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"cut\.tgz: the archive is damaged or cut off"):
        read_xml(cut, Tally("studies"))
    monkeypatch.setattr(iu_reports, "_MAX_MEMBERS", 3)
    with pytest.raises(DataError, match="far larger"):
        read_xml(archive, Tally("studies"))
    monkeypatch.setattr(iu_reports, "_MAX_MEMBERS", 100)
    monkeypatch.setattr(iu_reports, "_MAX_ARCHIVE_BYTES", 1000)
    with pytest.raises(DataError, match="far larger"):
        read_xml(archive, Tally("studies"))


def test_nothing_is_unpacked_to_disk(tmp_path: Path) -> None:
    path = write_tgz(tmp_path / "evil.tgz", {"../../../outside.xml": report_xml(1)})
    before = sorted(os.walk(tmp_path))
    assert len(read_xml(path, Tally("studies"))) == 1
    assert sorted(os.walk(tmp_path)) == before


def test_csv_agrees_with_the_xml(archive: Path, tables: tuple[Path, Path]) -> None:
    tally, images = Tally("studies"), Tally("images")
    names, views = read_projections(tables[1], images)
    reports = read_csv(tables[0], names, tally)
    for ours, theirs in zip(reports, read_xml(archive, Tally("studies")), strict=True):
        assert (ours.number, ours.sections) == (theirs.number, theirs.sections)
        assert len(ours.images) == len(theirs.images)
    assert views["CXR1_1_IM-0001-3001"] == "lateral" and views["CXR1_1_IM-0001-4001"] == "frontal"
    assert views["CXR7_IM-2263-1001-0002"] == "unknown"
    assert tally.kept == len(REPORTS) and images.dropped == {}


def test_csv_quirks(tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    path.write_bytes(
        b"\xef\xbb\xbf uid , indication,comparison,findings,impression\r\n"
        b'1,"Cough, fever",,"He said ""clear"".\nTwo lines",ok\r\n'
        b"2,a,b\r\n"
        b"3,a,b,c,d,e\r\n"
        b"x,a,b,c,d\r\n"
        b"4.0,a,b,c,d\r\n"
    )
    tally = Tally("studies")
    reports = read_csv(path, {"1": ["1_IM-0001-3001.dcm.png"]}, tally)
    assert [report.number for report in reports] == ["1"]
    assert reports[0].sections["findings"] == 'He said "clear".\nTwo lines'
    assert reports[0].sections["indication"] == "Cough, fever"
    assert tally.dropped == {"malformed csv row": ["line 4", "line 5", "line 6", "line 7"]}


def test_bad_csv_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"uid,findings\n1,x\n")
    with pytest.raises(DataError, match=r"lacks the columns \['indication', 'comparison', 'impression'\]"):
        read_csv(path, {}, Tally("studies"))
    path.write_bytes(b"uid,indication,comparison,findings,impression\n1,\xff\xfe,,,\n")
    with pytest.raises(DataError, match="UTF-8"):
        read_csv(path, {}, Tally("studies"))
    path.write_bytes(b'uid,indication,comparison,findings,impression\n1,"never closed,,,\n')
    with pytest.raises(DataError, match="not a readable"):
        read_csv(path, {}, Tally("studies"))


def test_projections_that_contradict_themselves_are_counted(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "p.csv",
        ["uid", "filename", "projection"],
        [["2", "2_IM-0652-1001.dcm.png", "Frontal"], ["3", "4_IM-2050-1001.dcm.png", "Frontal"], ["5", "x.png", ""]],
    )
    tally = Tally("images")
    images, views = read_projections(path, tally)
    assert images == {"2": ["2_IM-0652-1001.dcm.png"]} and views == {"CXR2_IM-0652-1001": "frontal"}
    assert tally.dropped == {"malformed projections row": ["line 3", "line 4"]}


def by_split(path: Path) -> dict[str | None, list[str]]:
    result: dict[str | None, list[str]] = {}
    for report in read_annotation(path, Tally("studies")):
        result.setdefault(report.split, []).append(report.number)
    return result


EXPECTED = {"test": ["10"], "validation": ["7"], "train": ["1", "2"]}


def test_annotation_variants_give_the_same_splits(annotation: Path) -> None:
    items = annotation_items()
    assert by_split(annotation) == EXPECTED
    blanked = {"train": items["train"], "val": items["val"], "    ": items["test"]}
    annotation.write_text(json.dumps(blanked))
    assert by_split(annotation) == EXPECTED
    bare = {key: [{k: v for k, v in item.items() if k != "split"} for item in part] for key, part in items.items()}
    annotation.write_text(json.dumps(bare))
    assert by_split(annotation) == EXPECTED
    annotation.write_text(json.dumps([item for part in items.values() for item in part]))
    assert by_split(annotation) == EXPECTED
    annotation.write_text(json.dumps([item for part in bare.values() for item in part]))
    assert by_split(annotation) == {None: ["1", "2", "7", "10"]}


def test_annotation_items_that_cannot_be_used_are_counted(annotation: Path) -> None:
    good = annotation_items()["train"][0]
    items = [
        good,
        "text",
        {"id": "nonsense", "report": "a", "image_path": []},
        {**good, "id": "CXR3_IM-1", "image_path": [1]},
        {**good, "id": "CXR4_IM-1", "image_path": "CXR4_IM-1/0.png"},
        {**good, "id": "CXR5_IM-1", "report": None},
        {**good, "id": "CXR6_IM-1", "report": ["list"]},
    ]
    nameless = {key: value for key, value in good.items() if key != "split"} | {"id": "CXR8_IM-1"}
    annotation.write_text(json.dumps({"train": items, " ": [nameless]}))
    tally = Tally("studies")
    reports = read_annotation(annotation, tally)
    assert [report.number for report in reports] == ["1", "4", "5"]
    assert reports[1].images == ["CXR4_IM-1/0.png"] and reports[2].sections["findings"] == ""
    assert tally.dropped == {
        "malformed annotation item": ["train[1]", "train[2]", "train[3]", "train[6]"],
        "no split named": ["CXR8"],
    }


@pytest.mark.parametrize("text", ["", "{", "3", "{}", '{"train": {"a": 1}}', "\x00"])
def test_what_is_no_annotation_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"a\.json"):
        read_annotation(path, Tally("studies"))


def test_counts_of_the_real_archive(shared_dir: Path) -> None:
    tally = Tally("studies")
    reports = read_xml(shared_dir / "data" / "iu_xray" / "NLMCXR_reports.tgz", tally)
    assert len(reports) == tally.read == 3955 and not tally.dropped
    assert Counter(len(report.images) for report in reports) == {0: 104, 1: 446, 2: 3208, 3: 181, 4: 15, 5: 1}
    empty = {name: sum(not report.sections[name] for report in reports) for name in iu_reports.SECTIONS}
    assert empty == {"findings": 530, "impression": 34, "indication": 90, "comparison": 622}
    both = [report for report in reports if not report.sections["findings"] and not report.sections["impression"]]
    assert len(both) == 28


def test_counts_of_the_real_tables(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "iu_xray"
    tally, images = Tally("studies"), Tally("images")
    names, views = read_projections(folder / "indiana_projections.csv", images)
    reports = read_csv(folder / "indiana_reports.csv", names, tally)
    assert len(reports) == tally.read == 3851 and not tally.dropped and not images.dropped
    assert Counter(views.values()) == {"frontal": 3818, "lateral": 3648}
    assert sum(not report.sections["findings"] for report in reports) == 514
    assert sum(not report.sections["impression"] for report in reports) == 31
    xml = {report.number: report for report in read_xml(folder / "NLMCXR_reports.tgz", Tally("studies"))}
    assert all(report.sections["findings"] == xml[report.number].sections["findings"] for report in reports)


def test_counts_of_the_real_annotation(shared_dir: Path) -> None:
    reports = read_annotation(shared_dir / "data" / "iu_xray" / "r2gen_annotation.json", Tally("studies"))
    assert Counter(report.split for report in reports) == {"train": 2069, "validation": 296, "test": 590}
