"""What the evaluation page shows of a data set and a training run: the cases worth a look, and the training curves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ..data.collators import study_image
from ..errors import DataError
from ..text.cleaning import is_missing
from ..text.rules import label_report
from .heatmap import SentenceMaps, occlusion_maps
from .page import PageCurve, curves_from_log
from .page_cases import PageCase

# (image, report, indication) -> its sentence maps
Explain = Callable[[Image.Image, str, str | None], SentenceMaps]

# The page shows no larger picture, and a map is as large as its image.
_LARGEST_SIDE = 720
_STATE = "trainer_state.json"


def explain_with(model: Any, processor: Any, *, grid: int = 8) -> Explain:
    """Occlusion maps by a model, for `study_cases`; see `occlusion_maps`."""

    def explain(image: Image.Image, report: str, indication: str | None) -> SentenceMaps:
        picture = image.copy()
        picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
        return occlusion_maps(model, processor, picture, report, indication=indication, grid=grid)

    return explain


def choose_cases(labels: Sequence[Mapping[str, str | None]], count: int) -> list[int]:
    """Studies that show the most different positive findings.

    Args:
        labels: of each study, observation name to label state.
        count: how many to choose; fewer if there are not so many.

    Returns:
        Their places, ascending.
    """
    chosen: list[int] = []
    seen: set[str] = set()
    positives = [{name for name, state in entry.items() if state == "positive"} for entry in labels]
    while len(chosen) < min(count, len(positives)):
        rest = [index for index in range(len(positives)) if index not in chosen]
        best = max(rest, key=lambda index: (len(positives[index] - seen), -index))
        if not positives[best] - seen:
            seen = set()
            best = max(rest, key=lambda index: (len(positives[index]), -index))
        chosen.append(best)
        seen |= positives[best]
    return sorted(chosen)


def study_cases(
    rows: Any,
    reports: Mapping[str, str | None],
    *,
    count: int,
    explain: Explain | None = None,
    section: str = "findings",
    split: str | None = None,
) -> list[PageCase]:
    """The cases of a data set for the page, chosen to show different findings.

    Args:
        rows: `datasets.Dataset` of `Study` rows.
        reports: study_id to generated report; studies without one, or without a reference, are not chosen. An empty
            report is a result like any other and is shown as such.
        count: how many cases.
        explain: heat maps of a report (see `explain_with`); None for none.
        section: the reference text.
        split: shown beside each title.

    Raises:
        DataError: no study has both texts, or a chosen image cannot be read.
    """
    if count == 0:
        return []
    ids, references, states = rows["study_id"], rows[section], rows["labels"]
    usable = [
        index
        for index, (study_id, text) in enumerate(zip(ids, references, strict=True))
        if reports.get(study_id) is not None and not is_missing(text)
    ]
    if not usable:
        raise DataError(f"No study has both a report and a {section} text, so there is no case to show.")
    labels = [_known(states[index]) or label_report(references[index]) for index in usable]
    cases = []
    for place in choose_cases(labels, count):
        row = rows[usable[place]]
        image, report = study_image(row), str(reports[row["study_id"]])
        indication = None if is_missing(row["indication"]) else row["indication"]
        cases.append(
            PageCase(
                study_id=row["study_id"],
                image=image,
                generated=report,
                reference=row[section],
                indication=indication,
                labels=_known(row["labels"]),
                maps=[explain(image, report, indication)] if explain and report.strip() else (),
                split=split,
                source=row["source"] or "",
            )
        )
    return cases


def _known(labels: Mapping[str, str | None] | None) -> Mapping[str, str | None] | None:
    """The labels that a data set brings; None where nobody labelled the study."""
    return labels if labels and any(state is not None for state in labels.values()) else None


def run_curves(model_dir: str | os.PathLike[str], stages: Sequence[str] = ()) -> list[PageCurve]:
    """Training curves of a finished checkpoint.

    Args:
        model_dir: the folder a trainer wrote.
        stages: names of the folders beside it that hold the stages of one run, in order. If the checkpoint is one of
            them, the curves of all stages up to it are read.

    Returns:
        The charts; none if the folder says nothing about its training.
    """
    folder = Path(model_dir).resolve()
    steps = [folder]
    if folder.name in stages:
        steps = [folder.parent / stage for stage in stages[: list(stages).index(folder.name) + 1]]
    curves: list[PageCurve] = []
    for step in steps:
        file = step / _STATE
        if file.is_file():
            try:
                history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{file.name} of {step.name} is damaged. Remove it to go on without curves."
                ) from error
            curves += curves_from_log(history, stage=step.name)
    return curves
