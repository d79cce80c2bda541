"""Small IU X-Ray releases, made up, in the exact layouts of the published ones."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

# number -> (indication, comparison, findings, impression, pictures as in the XML, their views)
REPORTS: dict[int, tuple[str, str, str, str, list[str], list[str]]] = {
    1: ("Cough.", "None.", "Clear lungs, no effusion.", "Normal.",
        ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001"], ["Lateral", "Frontal"]),
    2: ("", "", "Heart is large.", "Cardiomegaly.", ["CXR2_IM-0652-1001"], ["Frontal"]),
    3: ("Pain", "", "", "No acute disease.", ["CXR3_IM-1384-1001"], ["Frontal"]),
    4: ("Pain", "", "None", "Clear.", ["CXR4_IM-2050-1001"], ["Frontal"]),
    5: ("Pain", "", "N/A", "Stable.", ["CXR5_IM-2117-1003002"], ["Frontal"]),
    6: ("Pain", "", "nan", "NA", ["CXR6_IM-2192-1001"], ["Frontal"]),
    7: ("Fever", "", "XXXX opacity, left base.", "Pneumonia.",
        ["CXR7_IM-2263-1001-0001", "CXR7_IM-2263-1001-0002"], ["Frontal", "Oblique"]),
    8: ("Fever", "", "Lungs are clear.", "Normal.", [], []),
    10: ("Fever", "", "Lungs are clear.", "", ["CXR10_IM-0002-1001"], ["Lateral"]),
}  # fmt: skip


def report_xml(number: int) -> bytes:
    indication, comparison, findings, impression, pictures, _ = REPORTS[number]
    texts = {"COMPARISON": comparison, "INDICATION": indication, "FINDINGS": findings, "IMPRESSION": impression}
    abstract = "".join(f'<AbstractText Label="{label}">{text}</AbstractText>' for label, text in texts.items())
    images = "".join(
        f'<parentImage id="{name}"><caption>PA and Lateral</caption><panel type="single">'
        f"<url>/extract/{name}.jpg</url></panel></parentImage>"
        for name in pictures
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<eCitation><meta type="rr"/>'
        f'<uId id="CXR{number}"/><MedlineCitation><Article><Abstract>\n{abstract}\n</Abstract></Article>'
        f"</MedlineCitation><MeSH><major>normal</major></MeSH>{images}</eCitation>"
    ).encode()


def kaggle_name(picture: str) -> str:
    return picture.replace("CXR1_1_", "CXR1_").removeprefix("CXR") + ".dcm.png"


def write_tgz(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"ecgen-radiology/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def write_picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 10), shade, dtype=np.uint8)).save(path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_tgz(tmp_path / "NLMCXR_reports.tgz", {f"{number}.xml": report_xml(number) for number in REPORTS})


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """indiana_reports.csv and indiana_projections.csv."""
    header = ["uid", "MeSH", "Problems", "image", "indication", "comparison", "findings", "impression"]
    reports = write_csv(
        tmp_path / "indiana_reports.csv",
        header,
        [[number, "Opacity/lung, left", "x;y", "Chest, 2 views", *report[:4]] for number, report in REPORTS.items()],
    )
    projections = write_csv(
        tmp_path / "indiana_projections.csv",
        ["uid", "filename", "projection"],
        [
            [number, kaggle_name(name), view]
            for number, report in REPORTS.items()
            for name, view in zip(report[4], report[5], strict=True)
        ],
    )
    return reports, projections


def annotation_items() -> dict[str, list[dict[str, Any]]]:
    def item(name: str, report: str, split: str) -> dict[str, Any]:
        return {"id": name, "report": report, "image_path": [f"{name}/0.png", f"{name}/1.png"], "split": split}

    return {
        "train": [
            item("CXR1_1_IM-0001", "Clear lungs, no effusion.", "train"),
            item("CXR2_IM-0652", "Large.", "train"),
        ],
        "val": [item("CXR7_IM-2263-1001", "XXXX opacity, left base.", "val")],
        "test": [item("CXR10_IM-0002", "Lungs are clear.", "test")],
    }


@pytest.fixture
def annotation(tmp_path: Path) -> Path:
    path = tmp_path / "annotation.json"
    path.write_text(json.dumps(annotation_items()))
    return path


@pytest.fixture
def nlm_pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "NLMCXR_png"
    for number, report in REPORTS.items():
        for place, name in enumerate(report[4]):
            write_picture(folder / f"{name}.png", 10 * number + place)
    return folder


@pytest.fixture
def kaggle_pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "images_normalized"
    for number, report in REPORTS.items():
        for place, name in enumerate(report[4]):
            write_picture(folder / kaggle_name(name), 10 * number + place)
    return folder


@pytest.fixture
def r2gen_pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "r2gen" / "images"
    for shade, name in enumerate(["CXR1_1_IM-0001", "CXR2_IM-0652", "CXR7_IM-2263-1001", "CXR10_IM-0002"], 1):
        for place in range(2):
            write_picture(folder / name / f"{place}.png", 10 * shade + place)
    return folder
