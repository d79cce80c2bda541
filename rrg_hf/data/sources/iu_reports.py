"""Reads the three published forms of the IU X-Ray reports into one list of `IuReport`.

Archives are read in memory, member by member, and nothing is unpacked to disk.
"""

from __future__ import annotations

import csv
import json
import re
import tarfile
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DataError
from .iu_files import PROJECTION_COLUMNS, REPORT_COLUMNS, picture_id, report_number
from .tally import Tally

SECTIONS = ("indication", "comparison", "findings", "impression")

# The real reports are 2 to 10 KB each, 3,955 of them.
_MAX_XML_BYTES = 1 << 20
_MAX_MEMBERS = 100_000
_MAX_ARCHIVE_BYTES = 1 << 30

_SPLIT_NAMES = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}


@dataclass
class IuReport:
    """One report as published.

    Attributes:
        number: "2384" of CXR2384.
        sections: raw text of `SECTIONS`; "" where the form has none.
        images: the names under which the form lists the study's pictures.
        split: the form's own split, if it has one.
    """

    number: str
    sections: dict[str, str] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)
    split: str | None = None

    @property
    def study_id(self) -> str:
        return f"CXR{self.number}"


def read_xml(path: Path, tally: Tally) -> list[IuReport]:
    """Reports of the NLM archive (.tgz, .tar), of a folder of .xml files, or of one .xml file.

    Malformed files are counted in `tally`, not fatal.

    Raises:
        DataError: the archive itself is damaged or implausibly large.
    """
    reports: list[IuReport] = []
    for name, data in _xml_files(path):
        tally.read += 1
        if data is None:
            tally.drop("XML file too large, or a link", name)
            continue
        try:
            report = _parse_xml(data)
        except (ElementTree.ParseError, UnicodeError, ValueError, LookupError):
            tally.drop("malformed XML", name)
            continue
        if report is None:
            tally.drop("XML without a report id", name)
        else:
            reports.append(report)
    # Archive and folder list files in another order; a repeated id must not depend on it.
    return sorted(reports, key=lambda report: int(report.number))


def _xml_files(path: Path) -> Iterator[tuple[str, bytes | None]]:
    if path.is_dir():
        for file in sorted(path.rglob("*.xml")):
            if file.is_file():
                yield file.name, file.read_bytes() if file.stat().st_size <= _MAX_XML_BYTES else None
        return
    if path.suffix.lower() == ".xml":
        yield path.name, path.read_bytes() if path.stat().st_size <= _MAX_XML_BYTES else None
        return
    try:
        with tarfile.open(path) as archive:
            total = 0
            for count, member in enumerate(archive):
                total += member.size
                if count >= _MAX_MEMBERS or total > _MAX_ARCHIVE_BYTES:
                    raise DataError(f"{path}: is far larger than the IU X-Ray report archive. Is it another file?")
                if member.isdir() or not member.name.lower().endswith(".xml"):
                    continue
                name = member.name.rsplit("/", 1)[-1]
                usable = member.isfile() and member.size <= _MAX_XML_BYTES
                stream = archive.extractfile(member) if usable else None
                yield name, stream.read() if stream is not None else None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{path}: the archive is damaged or cut off ({type(error).__name__}). Download it again."
        ) from None


def _parse_xml(data: bytes) -> IuReport | None:
    # The reports declare no document type; with one come entity bombs.
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ValueError("a document type is not part of a report")
    root = ElementTree.fromstring(data)
    identity = root.find("uId")
    found = re.fullmatch(r"CXR(\d+)", identity.get("id", "") if identity is not None else "")
    if not found:
        return None
    report = IuReport(str(int(found[1])), dict.fromkeys(SECTIONS, ""))
    for element in root.iter("AbstractText"):
        name = (element.get("Label") or "").strip().lower()
        text = "".join(element.itertext()).strip()
        if name in report.sections and text:
            report.sections[name] = f"{report.sections[name]} {text}".strip()
    report.images = [image.get("id", "") for image in root.iter("parentImage") if image.get("id")]
    return report


def read_csv(path: Path, images: dict[str, list[str]], tally: Tally) -> list[IuReport]:
    """Reports of indiana_reports.csv.

    Args:
        path: the file.
        images: report number -> picture names, as `read_projections` gives them.
        tally: counts unusable rows.

    Raises:
        DataError: not a csv file with the columns of the reports.
    """
    reports = []
    for line, row in _csv_rows(path, REPORT_COLUMNS):
        tally.read += 1
        number = report_number((row.get("uid") or "").strip()) if None not in row else None
        if number is None or None in row.values():
            tally.drop("malformed csv row", f"line {line}")
            continue
        sections = {name: row[name].strip() for name in SECTIONS}
        reports.append(IuReport(number, sections, list(images.get(number, []))))
    return reports


def read_projections(path: Path, tally: Tally) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Pictures and views of indiana_projections.csv.

    Returns:
        Report number -> picture names in file order, and `picture_id` -> "frontal", "lateral" or "unknown".

    Raises:
        DataError: not a csv file with the columns of the projections.
    """
    images: dict[str, list[str]] = {}
    views: dict[str, str] = {}
    for line, row in _csv_rows(path, PROJECTION_COLUMNS):
        number = report_number((row.get("uid") or "").strip())
        name = (row.get("filename") or "").strip()
        identity = picture_id(name)
        if number is None or identity is None or report_number(identity) != number:
            tally.read += 1
            tally.drop("malformed projections row", f"line {line}")
            continue
        images.setdefault(number, []).append(name)
        view = (row.get("projection") or "").strip().lower()
        views[identity] = view if view in ("frontal", "lateral") else "unknown"
    return images, views


def _csv_rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[Any, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            missing = [name for name in needed if name not in reader.fieldnames]
            if missing:
                raise DataError(f"{path}: lacks the columns {missing}. It has {reader.fieldnames}.")
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is not a readable UTF-8 csv file ({type(error).__name__}).") from None


def read_annotation(path: Path, tally: Tally) -> list[IuReport]:
    """Reports of an R2Gen-style annotation: {"train": [...], "val": [...], "test": [...]} or one list of items.

    An item's list decides its split; where the list's key is none of the known names (one public copy has "test"
    blanked), the item's own `split` does. The text, whatever sections it was made from, counts as findings, as in
    R2Gen. A study met again keeps its place in test before validation before train.

    Raises:
        DataError: not JSON, or not of this form.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}: is not a readable JSON file ({type(error).__name__}).") from None
    groups = content if isinstance(content, dict) else {"": content}
    if not groups or not all(isinstance(items, list) for items in groups.values()):
        raise DataError(
            f'{path}: is not an R2Gen annotation. It should hold {{"train": [...], "val": [...], "test": [...]}}.'
        )
    reports = []
    has_splits = isinstance(content, dict) or any(isinstance(item, dict) and "split" in item for item in content)
    for key, items in groups.items():
        for place, item in enumerate(items):
            tally.read += 1
            where = f"{key.strip() or 'list'}[{place}]"
            report = _annotation_item(item)
            if report is None:
                tally.drop("malformed annotation item", where)
                continue
            own = _SPLIT_NAMES.get(str(item.get("split", "")).strip().lower())
            listed = _SPLIT_NAMES.get(key.strip().lower())
            report.split = listed or own
            if has_splits and report.split is None:
                tally.drop("no split named", report.study_id)
            else:
                reports.append(report)
    order = {"test": 0, "validation": 1, "train": 2}
    reports.sort(key=lambda report: order.get(report.split or "", 3))
    return reports


def _annotation_item(item: Any) -> IuReport | None:
    if not isinstance(item, dict):
        return None
    images = item.get("image_path", [])
    images = [images] if isinstance(images, str) else images
    number = report_number(str(item.get("id", "")))
    if number is None or not isinstance(images, list) or not all(isinstance(name, str) for name in images):
        return None
    text = item.get("report")
    if text is not None and not isinstance(text, (str, float)):
        return None
    sections = {**dict.fromkeys(SECTIONS, ""), "findings": text.strip() if isinstance(text, str) else ""}
    return IuReport(number, sections, images)
