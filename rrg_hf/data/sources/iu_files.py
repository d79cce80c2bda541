"""Finds IU X-Ray pictures on disk, whatever their naming, and says which form of the reports a file holds.

The same picture goes by three names: `CXR2_IM-0652-1001` in the XML reports and the NLM archives,
`2_IM-0652-1001.dcm.png` in the Kaggle copy, and `CXR2_IM-0652/0.png` in the R2Gen copy, where the number is only a
running one. Report 1 is the exception: `CXR1_1_IM-0001-3001` and `1_IM-0001-3001.dcm.png` are one picture.
"""

from __future__ import annotations

import csv
import os
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...errors import DataError

Form = Literal["xml", "reports_csv", "projections_csv", "annotation"]

REPORT_COLUMNS = ("uid", "indication", "comparison", "findings", "impression")
PROJECTION_COLUMNS = ("uid", "filename", "projection")

_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".tif", ".tiff", ".bmp")
_PICTURE = re.compile(r"CXR(\d+)_(?:\d+_)?IM-\d[\d-]*")
_R2GEN = re.compile(r"(CXR(\d+)_(?:\d+_)?IM-\d[\d-]*)/(\d+)\.\w+")


def picture_id(name: str) -> str | None:
    """One picture's id as in the XML reports, from any of its file names; None for another kind of name."""
    stem = name.replace("\\", "/").rsplit("/", 1)[-1]
    while stem.lower().endswith(_SUFFIXES):
        stem = stem.rsplit(".", 1)[0]
    if not stem.startswith("CXR"):
        stem = f"CXR{stem}"
    if stem.startswith("CXR1_IM-"):
        stem = f"CXR1_1_{stem[len('CXR1_') :]}"
    return stem if _PICTURE.fullmatch(stem) else None


def report_number(name: str) -> str | None:
    """The report's number ("2384") from a picture's or R2Gen study's id ("CXR2384_IM-0942")."""
    found = re.match(r"(?:CXR)?(\d{1,9})(?:_|$)", name)  # Python converts no number of thousands of digits
    return str(int(found[1])) if found else None


@dataclass
class PictureFolder:
    """Every picture below a folder, found by name. Links to folders are not followed.

    Attributes:
        root: the folder.
        by_path: path relative to it -> file.
        by_id: `picture_id` -> file. PNG wins over JPEG over DICOM if there are several.
        flat: report number -> its pictures by NLM or Kaggle name, in the order of their names.
        numbered: report number -> its pictures in R2Gen's <study>/<number>.png layout.
        repeated: pictures that are there more than once; the others are not used.
    """

    root: Path
    by_path: dict[str, Path] = field(default_factory=dict)
    by_id: dict[str, Path] = field(default_factory=dict)
    flat: dict[str, list[str]] = field(default_factory=dict)
    numbered: dict[str, list[str]] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)

    @classmethod
    def scan(cls, root: str | os.PathLike[str]) -> PictureFolder:
        """Index a folder.

        Raises:
            DataError: it is no folder, or holds no picture of a known name.
        """
        folder = cls(Path(root))
        if not folder.root.is_dir():
            raise DataError(f"{root}: is not a folder. Give the folder that holds the IU X-Ray pictures.")
        names: list[str] = []
        for place, _, files in os.walk(folder.root):
            relative = Path(place).relative_to(folder.root)
            names += [(relative / name).as_posix() for name in files if name.lower().endswith(_SUFFIXES)]
        for name in sorted(names, key=lambda name: (_preference(name), name)):
            folder._add(name)
        if not folder.by_id and not folder.numbered:
            raise DataError(
                f"{root}: holds no picture named as in IU X-Ray (CXR2_IM-0652-1001.png, 2_IM-0652-1001.dcm.png or "
                "CXR2_IM-0652/0.png)."
            )
        return folder

    def _add(self, name: str) -> None:
        file = self.root / name
        self.by_path[name] = file
        numbered = _R2GEN.search(name)
        if numbered:
            self.numbered.setdefault(str(int(numbered[2])), []).append(name)
            return
        identity = picture_id(name)
        if identity is None:
            return
        if identity in self.by_id:
            self.repeated.append(name)
            return
        self.by_id[identity] = file
        number = report_number(identity)
        if number is not None:
            self.flat.setdefault(number, []).append(identity)

    def find(self, listed: Iterable[str], number: str) -> tuple[list[tuple[str, Path]], list[str], bool]:
        """The files of one study's listed pictures.

        Where none is there under its listed name, the study's pictures in the other layout stand in: R2Gen's numbers
        say nothing of the NLM names, so only the study as a whole can be matched.

        Args:
            listed: names as the reports list them.
            number: the report's number.

        Returns:
            (name, file) of what was found, the names that are absent, and whether another layout stood in.
        """
        found: list[tuple[str, Path]] = []
        absent: list[str] = []
        any_numbered = False
        for name in listed:
            any_numbered = any_numbered or _R2GEN.fullmatch(name) is not None
            identity = picture_id(name)
            file = self.by_path.get(name) or (self.by_id.get(identity) if identity else None)
            if file is None:
                absent.append(name)
            else:
                found.append((identity or name, file))
        if found or not absent:
            return found, absent, False
        if any_numbered:
            other = [(identity, self.by_id[identity]) for identity in sorted(self.flat.get(number, []))]
        else:
            other = [(name, self.by_path[name]) for name in sorted(self.numbered.get(number, []), key=_running_number)]
        return (other, [], True) if other else (found, absent, False)


def _preference(name: str) -> int:
    return next((rank for rank, suffix in enumerate(_SUFFIXES) if name.lower().endswith(suffix)), len(_SUFFIXES))


def _running_number(name: str) -> tuple[int, str]:
    stem = name.rsplit("/", 1)[-1].split(".", 1)[0]
    return (int(stem) if stem.isdigit() else 0, name)


def form_of(path: Path) -> Form:
    """Which form of the reports a file or a folder of XML holds.

    Raises:
        DataError: none that is known.
    """
    if path.is_dir():
        if next(path.rglob("*.xml"), None) is not None:
            return "xml"
        raise DataError(f"{path}: holds no .xml report.")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    if path.suffix.lower() == ".xml":
        return "xml"
    if path.suffix.lower() == ".json":
        return "annotation"
    if path.suffix.lower() == ".csv":
        columns = csv_columns(path)
        for form, needed in (("projections_csv", PROJECTION_COLUMNS), ("reports_csv", REPORT_COLUMNS)):
            if set(needed) <= set(columns):
                return form  # type: ignore[return-value]
        raise DataError(
            f"{path}: its columns {columns} are neither those of the reports {list(REPORT_COLUMNS)} nor those of the "
            f"projections {list(PROJECTION_COLUMNS)}."
        )
    try:
        is_archive = tarfile.is_tarfile(path)
    except (OSError, EOFError):
        is_archive = False
    if is_archive:
        return "xml"
    raise DataError(
        f"{path}: is not a form of the IU X-Ray reports. Give the XML archive (.tgz) or a folder of .xml files, "
        "indiana_reports.csv with indiana_projections.csv, or an R2Gen annotation.json."
    )


def csv_columns(path: Path) -> list[str]:
    """Column names of a csv file, stripped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return [name.strip() for name in next(csv.reader(stream), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is not a readable UTF-8 csv file ({type(error).__name__}).") from None


def forms_in(folder: Path) -> tuple[list[Path], list[str]]:
    """The report files to use of a folder that holds a download, and notes on what was chosen.

    A folder of XML files is taken as it is. Else the XML archive comes first, then the csv pair, then an annotation;
    projections join any of them.

    Raises:
        DataError: the folder holds none of the forms.
    """
    if any(folder.glob("*.xml")):
        return [folder], []
    forms: dict[Form, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if file.name.lower().endswith((".tgz", ".tar.gz", ".tar", ".csv", ".json")):
            try:
                forms.setdefault(form_of(file), []).append(file)
            except DataError:
                continue
    projections = forms.get("projections_csv", [])[:1]
    for form in ("xml", "reports_csv", "annotation"):
        if forms.get(form):
            used = [forms[form][0], *projections]
            others = [file.name for files in forms.values() for file in files if file not in used]
            note = f"{folder.name or folder}: used {', '.join(file.name for file in used)}"
            if others:
                note += f"; not used: {', '.join(others)} (name a file to choose it)"
            return used, [note]
    if next(folder.rglob("*.xml"), None) is not None:
        return [folder], []
    raise DataError(f"{folder}: holds no IU X-Ray reports (an XML archive or files, indiana_reports.csv, a .json).")
