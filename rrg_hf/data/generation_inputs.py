"""What to write reports for: image files, folders, saved data sets and Hub data sets, as one list of studies."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import DataError, ImageReadError
from .images import read_image

logger = logging.getLogger(__name__)

_RASTER_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm", ".webp", ".gif", ".jp2"}
_DICOM_SUFFIXES = {".dcm", ".dicom", ".dic"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DICOM_STARTS = (b"\x02\x00\x00\x00", b"\x02\x00\x01\x00", b"\x08\x00\x05\x00", b"\x08\x00\x08\x00")


@dataclass(frozen=True)
class StudyInput:
    """One study to write a report for, not yet read.

    Attributes:
        study_id: unique among the inputs.
        images: file names (no folders), as they go into `reports.jsonl`.
        read: returns (8-bit greyscale image, indication or None).
    """

    study_id: str
    images: tuple[str, ...]
    read: Callable[[], tuple[Image.Image, str | None]]


@dataclass
class CollectedInputs:
    """Everything found, and what in the folders was no image."""

    studies: list[StudyInput] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)  # suffix -> files
    duplicates: int = 0  # files named more than once


def collect_inputs(sources: Sequence[str | os.PathLike[str]], *, split: str | None = None) -> CollectedInputs:
    """Find the studies behind the inputs of `rrg generate`.

    Args:
        sources: image files (any kind `read_image` reads), folders (searched recursively for images, DICOM files
            without suffix included), `save_to_disk` folders of `Study` rows, or Hub data set ids.
        split: split of the data sets; may be left out where there is only one.

    Returns:
        The studies in order. A file's study id is its path below the given folder, without suffix; where two would be
        equal, suffixes and then folder names are added until they differ.

    Raises:
        DataError: a folder or data set that does not exist, a folder without images, an unknown or missing split,
            repeated study ids in a data set, or nothing at all. A missing image file is one only if nothing else is
            there: it is listed as a study whose `read` fails, so that the others get their reports.
    """
    collected = CollectedInputs()
    files: list[tuple[Path, Path]] = []  # (file, folder that its id is relative to)
    missing: list[Path] = []
    for source in sources:
        if not os.fspath(source):
            raise DataError("An input is empty (an unset variable?). Give image files, folders or data sets.")
        path = Path(source)
        if path.is_dir() and _is_saved_dataset(path):
            collected.studies += _dataset_studies(os.fspath(source), split)
        elif path.is_dir():
            found, ignored = _images_below(path)
            if not found:
                others = f" ({sum(ignored.values())} other files)" if ignored else ""
                raise DataError(f"{path} holds no images{others}. Give image files, a folder of them, or a data set.")
            files += [(file, path) for file in found]
            collected.ignored += ignored
        elif path.exists():
            files.append((path, path.parent))
        elif _HUB_ID.fullmatch(os.fspath(source)) and path.suffix.lower() not in _RASTER_SUFFIXES | _DICOM_SUFFIXES:
            collected.studies += _dataset_studies(os.fspath(source), split)
        elif path.suffix.lower() in _RASTER_SUFFIXES | _DICOM_SUFFIXES:
            missing.append(path)  # skipped and listed when it is read, as an image that is damaged
        else:
            raise DataError(f"{source}: no such file or folder, and no Hub data set id.")
    if missing and not files and not collected.studies:
        others = f" ({len(missing)} missing files in all)" if missing[1:] else ""
        raise DataError(f"{missing[0]}: no such file or folder{others}.")
    files += [(path, path.parent) for path in missing]
    unique: dict[Path, tuple[Path, Path]] = {}
    for file, root in files:
        # Two links to one picture stay two studies: a store may keep equal pictures once.
        unique.setdefault(Path(os.path.abspath(file)), (file, root))  # noqa: PTH100 (resolve() follows links)
    collected.duplicates = len(files) - len(unique)
    kept = list(unique.values())
    for (file, _), study_id in zip(kept, _file_ids(kept), strict=True):
        collected.studies.append(StudyInput(study_id, (file.name,), _file_reader(file)))
    repeated = [name for name, count in Counter(study.study_id for study in collected.studies).items() if count > 1]
    if repeated:
        raise DataError(
            f"{len(repeated)} study ids occur more than once among the inputs, first {sorted(repeated)[:5]}. Every "
            "report needs an id of its own: give the inputs one at a time, each with its own output file."
        )
    if not collected.studies:
        raise DataError("There is nothing to write a report for: the inputs hold no study.")
    return collected


def _is_saved_dataset(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _images_below(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Image files below a folder in name order, and how many other files there are, by suffix."""
    found: list[Path] = []
    ignored: Counter[str] = Counter()

    def unreadable(error: OSError) -> None:
        raise DataError(f"The folder {error.filename} cannot be read ({error.strerror}). Leave it out or allow it.")

    for place, folders, names in os.walk(folder, onerror=unreadable):
        linked = [name for name in folders if Path(place, name).is_symlink()]  # a link can lead back to where it is
        ignored["linked folder"] += len(linked)
        ignored["hidden folder"] += sum(name.startswith(".") and name not in linked for name in folders)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in linked)
        for name in sorted(names):
            path = Path(place, name)
            if name.startswith(".") or not path.is_file():
                ignored["hidden or special"] += 1
            elif path.suffix.lower() in _RASTER_SUFFIXES | _DICOM_SUFFIXES or (
                name.upper() != "DICOMDIR" and _starts_as_dicom(path)
            ):
                found.append(path)
            else:
                ignored[path.suffix.lower() or "no suffix"] += 1
    return found, +ignored  # without the zeros


def _starts_as_dicom(path: Path) -> bool:
    """DICOM by content: files from a PACS have no suffix, or a number where one is expected."""
    try:
        with path.open("rb") as stream:
            head = stream.read(132)
    except OSError:
        return False
    return head[128:132] == b"DICM" or head[:4] in _DICOM_STARTS


def _file_reader(path: Path) -> Callable[[], tuple[Image.Image, str | None]]:
    def read() -> tuple[Image.Image, str | None]:
        if not path.exists():
            raise DataError(f"{path.name}: no such file.")
        return read_image(path), None

    return read


def _file_ids(files: Sequence[tuple[Path, Path]]) -> list[str]:
    """The shortest of several names that no other file shares."""
    names = []
    for file, root in files:
        relative = file.relative_to(root)
        parents = Path(os.path.abspath(file)).parts  # noqa: PTH100
        longer = ["/".join(parents[-depth:]) for depth in range(len(relative.parts) + 1, len(parents))]
        names.append([relative.with_suffix("").as_posix(), relative.as_posix(), *longer])
    level = [0] * len(files)
    while True:
        ids = [options[min(at, len(options) - 1)] for options, at in zip(names, level, strict=True)]
        counts = Counter(ids)
        again = [
            index
            for index, study_id in enumerate(ids)
            if counts[study_id] > 1 and level[index] < len(names[index]) - 1
        ]
        if not again:
            return ids
        for index in again:
            level[index] += 1


def _dataset_studies(name: str, split: str | None) -> list[StudyInput]:
    from .store import load_studies

    loaded = load_studies(name)
    if split is None and len(loaded) > 1:
        raise DataError(f"{name} has the splits {', '.join(loaded)}. Choose one with --split.")
    chosen = split or next(iter(loaded))
    if chosen not in loaded:
        raise DataError(f"{name} has no split {chosen!r}. It has: {', '.join(loaded)}.")
    rows = _undecoded(loaded[chosen])
    return [
        StudyInput(str(study_id), tuple(names), _row_reader(rows, index))
        for index, (study_id, names) in enumerate(zip(rows["study_id"], _image_names(rows), strict=True))
    ]


def _undecoded(dataset: Any) -> Any:
    """The columns that generation reads, with images as {bytes, path}: a damaged one must not stop the others."""
    from datasets import Image as ImageFeature
    from datasets import List

    columns = ["study_id", "images", "views", "indication"]
    return dataset.select_columns(columns).cast_column("images", List(ImageFeature(decode=False)))


def _image_names(rows: Any) -> list[list[str]]:
    """File names of each study's images, "" where a data set keeps bytes without a name."""
    return [
        [Path(image.get("path") or "").name for image in images or []]
        for images in (row["images"] for row in rows.select_columns(["images"]))
    ]


def _row_reader(rows: Any, index: int) -> Callable[[], tuple[Image.Image, str | None]]:
    def read() -> tuple[Image.Image, str | None]:
        from .collators import frontal_image_index

        row = rows[index]
        source = row["images"][frontal_image_index(row)]
        try:
            return read_image(source.get("bytes") or source.get("path") or b""), row["indication"]
        except ImageReadError as error:
            raise DataError(f"Study {row['study_id']!r}: {error}") from error

    return read
