"""IU X-Ray (Open-i, Indiana University): reports in any published form, with or without pictures, to `Study` rows.

Source: Demner-Fushman et al., "Preparing a collection of radiology examinations for distribution and retrieval",
JAMIA 2016. Licence CC BY-NC-ND 4.0. The data name no patients: a report counts as one patient.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from datasets import DatasetDict

from ...errors import ConfigError, DataError, ImageReadError
from ...observations import OBSERVATIONS
from ...text.cleaning import is_missing
from ..images import encode_image
from ..store import DEFAULT_FRACTIONS, check_target, save_studies, split_of_patient, write_rows
from ..study import SPLITS
from .iu_files import PictureFolder, form_of, forms_in, picture_id
from .iu_reports import SECTIONS, IuReport, read_annotation, read_csv, read_projections, read_xml
from .tally import Tally

logger = logging.getLogger(__name__)

SOURCE = "iu_xray"
LICENCE = "CC BY-NC-ND 4.0"

# name -> (what a study must have, the reason it is dropped for)
TARGETS: dict[str, tuple[Callable[[Mapping[str, str | None]], bool], str]] = {
    "findings": (lambda text: text["findings"] is not None, "no findings"),
    "impression": (lambda text: text["impression"] is not None, "no impression"),
    "both": (lambda text: None not in (text["findings"], text["impression"]), "findings or impression missing"),
    "any": (lambda text: (text["findings"], text["impression"]) != (None, None), "neither findings nor impression"),
}
LABELLERS = ("rules",)

_IMAGE_FOLDERS = ("images", "images_normalized", "NLMCXR_png")
_VIEW_ORDER = {"frontal": 0, "unknown": 1, "lateral": 2}


@dataclass
class IuSummary:
    """What became of a data set that was read.

    Attributes:
        form: "xml", "reports_csv" or "annotation".
        studies: what was kept and dropped.
        images: the same for the pictures of studies with usable text; None for a text-only data set.
        sections: section -> {"blank": cells without text, "says_none": cells like "None." or "nan"} among all
            reports that could be read, before anything was dropped for its text.
        splits: split -> number of studies.
        labels: who labelled the studies, or None.
        notes: what else a reader should know.
        settings: how it was built.
    """

    form: str
    studies: Tally = field(default_factory=lambda: Tally("studies"))
    images: Tally | None = None
    sections: dict[str, dict[str, int]] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    labels: str | None = None
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": SOURCE,
            "licence": LICENCE,
            "form": self.form,
            "settings": self.settings,
            "studies": self.studies.to_dict(),
            "images": self.images.to_dict() if self.images else None,
            "missing_sections": self.sections,
            "splits": self.splits,
            "labels": self.labels,
            "notes": self.notes,
        }


def prepare_iu_xray(
    inputs: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    images: str | PathLike[str] | None = None,
    text_only: bool = False,
    target: str = "findings",
    splits_from: str | PathLike[str] | None = None,
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    seed: int = 0,
    label: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> IuSummary:
    """Read IU X-Ray and save it as a data set of `Study` rows, with `tally.json` among its files.

    Args:
        inputs: one form of the reports: the XML archive (.tgz), a folder of .xml files, indiana_reports.csv, or an
            R2Gen annotation .json. indiana_projections.csv may join any of them; it gives the views, and the csv
            reports their pictures. A folder with a download works too.
        out: the folder to create.
        images: folder with the pictures, in the NLM, Kaggle or R2Gen naming.
        text_only: save the reports without pictures.
        target: the section a study must have: "findings", "impression", "both" or "any".
        splits_from: an R2Gen annotation whose splits to use; studies outside it are dropped. An annotation given as
            input brings its own splits. Otherwise studies are split by a hash of seed and report.
        fractions, seed: see `rrg_hf.data.store.split_of_patient`.
        label: "rules" fills `labels` from findings and impression with the rule labeller.
        overwrite: replace a saved data set in `out`.
        progress: called with (studies done, studies to do) while pictures are read.

    Returns:
        The summary that is also written to `tally.json`.

    Raises:
        ConfigError: settings that contradict each other.
        DataError: unreadable input, or nothing left to save.
    """
    if target not in TARGETS:
        raise ConfigError(f"target={target!r} is unknown. Use one of {sorted(TARGETS)}.")
    if label is not None and label not in LABELLERS:
        raise ConfigError(f"label={label!r} is unknown. Use one of {list(LABELLERS)}, or none.")
    check_target(out, overwrite=overwrite)
    summary, reports, views, images = _read_inputs([Path(path) for path in inputs], images, text_only)
    split_of = _splitter(summary.form, splits_from, fractions, seed)
    folder = PictureFolder.scan(images) if images is not None else None
    summary.labels = label
    summary.settings |= {
        "target": target,
        "text_only": text_only,
        "splits": "own" if summary.form == "annotation" else Path(splits_from).name if splits_from else "by patient",
        "fractions": dict(fractions),
        "seed": seed,
    }
    by_split = _select(reports, summary, target, split_of)
    rows = _RowMaker(summary, folder, views, _labeller(label), sum(map(len, by_split.values())), progress)
    Path(out).absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rrg-", dir=Path(out).absolute().parent) as scratch:
        studies = DatasetDict()
        for split, members in by_split.items():
            dataset = write_rows(rows.rows(members, split), Path(scratch) / f"{split}.arrow")
            summary.splits[split] = len(dataset)
            if len(dataset) == 0:
                summary.notes.append(f"the split {split} is empty and left out")
                continue
            dataset.info.description = f"IU X-Ray ({summary.form}). Labels: {label or 'none'}."
            dataset.info.license = LICENCE
            dataset.info.homepage = "https://openi.nlm.nih.gov"
            studies[split] = dataset
        rows.finish()
        if not studies:
            reasons = ", ".join(f"{len(ids)} for {reason!r}" for reason, ids in summary.studies.dropped.items())
            raise DataError(f"No study is left to save: {summary.studies.read} read, dropped {reasons or 'none'}.")
        tally = json.dumps(summary.to_dict(), indent=2, ensure_ascii=False)
        save_studies(studies, out, overwrite=overwrite, files={"tally.json": tally + "\n"})
    return summary


def _read_inputs(
    inputs: Sequence[Path], images: str | PathLike[str] | None, text_only: bool
) -> tuple[IuSummary, list[IuReport], dict[str, str], str | PathLike[str] | None]:
    if text_only and images is not None:
        raise ConfigError("A folder of images and text only were both asked for. Drop one of --images, --no-images.")
    notes: list[str] = []
    files: list[Path] = []
    for path in inputs:
        if path.is_dir():
            used, more = forms_in(path)
            files += used
            notes += more
            if images is None and not text_only:
                images = next((path / name for name in _IMAGE_FOLDERS if (path / name).is_dir()), None)
        else:
            files.append(path)
    if images is None and not text_only:
        raise ConfigError(
            "No folder of images was given, so every study would be dropped. "
            "Give it with --images DIR, or ask for the reports alone with --no-images."
        )
    forms = [(form_of(path), path) for path in files]
    reports_from = [(form, path) for form, path in forms if form != "projections_csv"]
    projections = [path for form, path in forms if form == "projections_csv"]
    if len(reports_from) != 1 or len(projections) > 1:
        given = ", ".join(f"{path.name} ({form})" for form, path in forms) or "nothing"
        raise ConfigError(
            f"Give the reports in exactly one form, with at most one projections csv. Given: {given}. "
            "To take splits from an annotation, use --splits-from."
        )
    form, path = reports_from[0]
    if form == "reports_csv" and not projections and not text_only:
        raise ConfigError(
            f"{path.name} does not list its pictures. Give indiana_projections.csv as well, or use --no-images."
        )
    summary = IuSummary(form, images=None if text_only else Tally("images"), notes=notes)
    summary.settings = {"inputs": [file.name for _, file in forms]}
    images_of: dict[str, list[str]] = {}
    views: dict[str, str] = {}
    if projections:
        images_of, views = read_projections(projections[0], summary.images or Tally("images"))
    if form == "xml":
        reports = read_xml(path, summary.studies)
    elif form == "reports_csv":
        reports = read_csv(path, images_of, summary.studies)
    else:
        reports = read_annotation(path, summary.studies)
    if summary.images is not None and projections and form == "reports_csv":
        known = {report.number for report in reports}
        for number, names in images_of.items():
            for name in names if number not in known else ():
                summary.images.read += 1
                summary.images.drop("picture of no report", name)
    return summary, reports, views, images


def _splitter(
    form: str, splits_from: str | PathLike[str] | None, fractions: Mapping[str, float], seed: int
) -> Callable[[IuReport], str | None]:
    if splits_from is not None and form == "annotation":
        raise ConfigError("An annotation brings its own splits. Drop --splits-from.")
    unknown = sorted(set(fractions) - set(SPLITS))
    if unknown:
        raise ConfigError(f"Unknown splits {unknown} in the fractions. The splits are {list(SPLITS)}.")
    try:
        split_of_patient("any", fractions, seed)
    except DataError as error:
        raise ConfigError(str(error)) from None
    if splits_from is None:
        return lambda report: report.split or split_of_patient(report.study_id, fractions, seed)
    # The parser lists test first, so a study that an annotation repeats lands in test, as in `read_annotation`.
    named: dict[str, str | None] = {}
    for report in read_annotation(Path(splits_from), Tally("studies")):
        named.setdefault(report.number, report.split)
    if not any(named.values()):
        raise DataError(f"{Path(splits_from).name}: names no splits.")
    return lambda report: named.get(report.number)


def _select(
    reports: Sequence[IuReport], summary: IuSummary, target: str, split_of: Callable[[IuReport], str | None]
) -> dict[str, list[tuple[IuReport, dict[str, str | None]]]]:
    """Reports with usable text by split, in the order of their numbers. Counts the rest."""
    usable, reason = TARGETS[target]
    # An annotation has one text a study.
    names = ("findings",) if summary.form == "annotation" else (*SECTIONS, "findings and impression")
    summary.sections = {name: {"blank": 0, "says_none": 0} for name in names}
    seen: dict[str, str | None] = {}
    by_split: dict[str, list[tuple[IuReport, dict[str, str | None]]]] = {split: [] for split in SPLITS}
    for report in reports:
        if report.number in seen:
            repeated = "in another split as well" if seen[report.number] != report.split else "study id repeated"
            summary.studies.drop(repeated, report.study_id)
            continue
        seen[report.number] = report.split
        _count_missing(report, summary.sections)
        text = {name: None if is_missing(raw) else raw for name, raw in report.sections.items()}
        split = split_of(report)
        why = reason if not usable(text) else "not in the file of splits" if split is None else None
        if why is None:
            by_split[str(split)].append((report, text))
            continue
        summary.studies.drop(why, report.study_id)
        if summary.images is not None:
            pictures = list(dict.fromkeys(report.images))
            summary.images.read += len(pictures)
            for picture in pictures:
                summary.images.drop("its study was dropped", picture)
    for members in by_split.values():
        members.sort(key=lambda member: int(member[0].number))
    return {split: members for split, members in by_split.items() if members}


def _count_missing(report: IuReport, counts: dict[str, dict[str, int]]) -> None:
    kinds: dict[str, str] = {}
    for name in SECTIONS:
        if name in counts and is_missing(report.sections[name]):
            kinds[name] = "says_none" if report.sections[name].strip() else "blank"
            counts[name][kinds[name]] += 1
    if "findings" in kinds and "impression" in kinds:
        both = {kinds["findings"], kinds["impression"]}
        counts["findings and impression"]["blank" if both == {"blank"} else "says_none"] += 1


def _labeller(label: str | None) -> Callable[[Mapping[str, str | None]], dict[str, str | None]]:
    if label is None:
        return lambda text: dict.fromkeys(OBSERVATIONS)
    from ...text.rules import label_report

    def by_rules(text: Mapping[str, str | None]) -> dict[str, str | None]:
        states = label_report("\n".join(filter(None, (text["findings"], text["impression"]))))
        return {name: states[name].value for name in OBSERVATIONS}

    return by_rules


class _RowMaker:
    """Turns reports into rows one at a time, reading pictures on the way and counting those that fail."""

    def __init__(
        self,
        summary: IuSummary,
        folder: PictureFolder | None,
        views: Mapping[str, str],
        labeller: Callable[[Mapping[str, str | None]], dict[str, str | None]],
        total: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.summary = summary
        self.folder = folder
        self.views = views
        self.labeller = labeller
        self.total = total
        self.progress = progress
        self.done = 0
        self.stood_in = 0

    def rows(self, members: Sequence[tuple[IuReport, dict[str, str | None]]], split: str) -> Iterator[dict[str, Any]]:
        for report, text in members:
            images: list[dict[str, Any]] = []
            views: list[str] = []
            problem = None
            if self.folder is not None:
                images, views, problem = self._pictures(report, self.folder)
            self.done += 1
            if self.progress:
                self.progress(self.done, self.total)
            if problem:
                self.summary.studies.drop(problem, report.study_id)
                continue
            yield {
                "study_id": report.study_id,
                "patient_id": report.study_id,
                "images": images,
                "views": views,
                **text,
                "technique": None,
                "labels": self.labeller(text),
                "boxes": [],
                "masks": [],
                "source": SOURCE,
                "split": split,
            }

    def _pictures(self, report: IuReport, folder: PictureFolder) -> tuple[list[dict[str, Any]], list[str], str | None]:
        """Pictures, frontal ones first, and their views; or the reason why the study has none."""
        tally = self.summary.images
        assert tally is not None
        listed = list(dict.fromkeys(report.images))
        if not listed:
            return [], [], "no image listed"
        found, absent, stood_in = folder.find(listed, report.number)
        self.stood_in += stood_in
        tally.read += len(found) + len(absent)
        for name in absent:
            tally.drop("listed but absent", name)
        pictures: list[tuple[str, dict[str, Any]]] = []
        for name, file in found:
            try:
                data = encode_image(file)
            except ImageReadError as error:
                logger.warning("%s", error)
                tally.drop("unreadable", name)
                continue
            view = self.views.get(picture_id(name) or "", "unknown")
            pictures.append((view, {"bytes": data, "path": file.relative_to(folder.root).as_posix()}))
        if not pictures:
            return [], [], "image unreadable" if found else "image listed but absent"
        pictures.sort(key=lambda picture: _VIEW_ORDER[picture[0]])
        return [image for _, image in pictures], [view for view, _ in pictures], None

    def finish(self) -> None:
        """Leave notes on how pictures were matched."""
        if self.stood_in:
            self.summary.notes.append(
                f"{self.stood_in} studies took all pictures of their report, as the listed names are of another layout"
            )
        if self.folder is not None and self.folder.repeated:
            self.summary.notes.append(
                f"{len(self.folder.repeated)} picture files are further copies of one and not used: "
                + ", ".join(self.folder.repeated[:3])
            )
