"""Phantom studies by (seed, split, index), and data sets of them in the `Study` schema."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...errors import DataError
from ...observations import Labels
from ..study import SPLITS, Box, Study, study_features
from .anatomy import ANATOMY_NODES, STOMACH_BUBBLE, Chest, Mask, sample_anatomy
from .drawing import Radiograph
from .facts import DRAWABLE, Fact, check_facts
from .findings import draw, shape_anatomy
from .grammar import PhantomReport, write_report
from .prior import case_of, sample_case

if TYPE_CHECKING:
    import datasets

SOURCE = "phantom"
PHANTOM_SPLITS = (*SPLITS, "test_shifted")
MIN_SIZE, MAX_SIZE = 64, 512
DEFAULT_MASKS = ("left lung", "right lung", "cardiac silhouette")

# First word of every seed sequence. Raise it when a change draws other studies from the same seed.
_WORLD = 20250001
# Each part of a study has its own random stream, so that drawing one finding changes nothing else.
_ANATOMY, _FINDINGS, _REPORT, _NOISE, _DRAWING = range(5)


@dataclass(frozen=True, eq=False)
class PhantomStudy:
    """One procedural frontal chest radiograph with its report and its truth.

    Attributes:
        image: uint8 (size, size). The patient's right is on the image's left.
        facts: what is drawn, in the order of `OBSERVATIONS`; `labels` adds what the findings text denies.
        finding_masks: observation name to one bool mask (size, size) per side or object.
    """

    study_id: str
    patient_id: str
    split: str
    image: NDArray[np.uint8]
    facts: tuple[Fact, ...]
    report: PhantomReport
    finding_masks: Mapping[str, tuple[Mask, ...]] = field(repr=False)
    chest: Chest = field(repr=False)

    @property
    def size(self) -> int:
        return self.chest.size

    @property
    def labels(self) -> Labels:
        """What the findings text states of each of the 14 observations."""
        return dict(self.report.labels)

    @property
    def indication(self) -> str | None:
        return self.report.indication

    @property
    def comparison(self) -> str | None:
        return self.report.comparison

    @property
    def technique(self) -> str:
        return self.report.technique

    @property
    def findings(self) -> str:
        return self.report.findings

    @property
    def impression(self) -> str:
        return self.report.impression

    @cached_property
    def boxes(self) -> list[Box]:
        """One tight box (left, top, width, height in pixels) per drawn finding and side."""
        boxes: list[Box] = []
        for name, parts in self.finding_masks.items():
            for part in parts:
                rows, columns = np.flatnonzero(part.any(1)), np.flatnonzero(part.any(0))
                if len(rows):
                    left, top = float(columns[0]), float(rows[0])
                    extent = [float(columns[-1] + 1) - left, float(rows[-1] + 1) - top]
                    boxes.append({"finding": name, "image_index": 0, "xywh": [left, top, *extent]})
        return boxes

    def mask(self, name: str) -> Mask:
        """One mask, drawn when asked for.

        Args:
            name: an SS-ACL anatomy node, "stomach bubble", or an observation. All False for what is not drawn.

        Returns:
            bool (size, size).

        Raises:
            DataError: unknown name.
        """
        _check_mask_names([name])
        if name in DRAWABLE:
            parts = self.finding_masks.get(name, ())
            return np.logical_or.reduce(parts) if parts else np.zeros(self.image.shape, dtype=bool)
        return self.chest.mask(name)

    @cached_property
    def masks(self) -> dict[str, Mask]:
        """Every anatomy mask and those of the drawn findings: name to bool (size, size)."""
        names = [*ANATOMY_NODES, *self.finding_masks]
        if self.chest.anatomy.bubble is not None:
            names.append(STOMACH_BUBBLE)
        return {name: self.mask(name) for name in names}

    def to_row(self, masks: Sequence[str] | None = DEFAULT_MASKS) -> Study:
        """This study as a `Study` row; images and masks are PNG files in memory.

        Args:
            masks: names of the masks to store; None for all of `masks`. A finding that is not drawn is left out.
        """
        if masks is None:
            masks = list(self.masks)
        _check_mask_names(masks)
        wanted = [name for name in masks if name not in DRAWABLE or name in self.finding_masks]
        return {
            "study_id": self.study_id,
            "patient_id": self.patient_id,
            "images": [_png(self.image)],
            "views": ["frontal"],
            "indication": self.indication,
            "comparison": self.comparison,
            "technique": self.technique,
            "findings": self.findings,
            "impression": self.impression,
            "labels": {name: str(state) for name, state in self.report.labels.items()},
            "boxes": self.boxes,
            "masks": [
                {"name": name, "image_index": 0, "mask": _png(self.mask(name).astype(np.uint8) * 255)}
                for name in wanted
            ],
            "source": SOURCE,
            "split": self.split,
        }


def phantom_study(
    index: int,
    *,
    seed: int = 0,
    split: str = "train",
    size: int = 128,
    observations: Sequence[str | Fact] | None = None,
) -> PhantomStudy:
    """The phantom study with that seed, split and index: the same in every process.

    Args:
        index: number of the study, from 0.
        seed: which world; other seeds give other patients.
        split: "train", "validation", "test", or "test_shifted" where findings no longer come in their usual company.
        size: side of the image in pixels, 64 to 512. It changes the resolution, not the patient or the report.
        observations: exactly what to draw instead of what the prior of the split draws: observation names (placed
            at random) or `Fact`s (what they leave open is drawn at random). An empty list gives a normal chest.
            The patient stays the same.

    Raises:
        DataError: an argument out of its range.
    """
    _check_number("index", index)
    _check_number("seed", seed)
    _check_split(split)
    _check_size(size)
    code = (_WORLD, int(seed), PHANTOM_SPLITS.index(split), int(index))

    def stream(*key: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence((*code, *key))))

    def stream_of(name: str) -> np.random.Generator:
        observation = name.removesuffix(" shape")
        return stream(_DRAWING, DRAWABLE.index(observation), int(observation != name))

    if observations is None:
        case = sample_case(stream(_FINDINGS), split)
    else:
        case = case_of(_wanted(observations), stream(_FINDINGS))
    anatomy = shape_anatomy(sample_anatomy(stream(_ANATOMY)), case.facts, stream_of)
    chest = Chest(anatomy, int(size))
    radiograph = Radiograph(chest)
    masks = {f.observation: tuple(draw(radiograph, f, stream_of(f.observation))) for f in case.facts}
    name = f"{split}-{index:07d}" if seed == 0 else f"seed{seed}-{split}-{index:07d}"
    return PhantomStudy(
        study_id=f"phantom-{name}",
        patient_id=f"phantom-patient-{name}",
        split=split,
        image=radiograph.expose(stream(_NOISE)),
        facts=case.facts,
        report=write_report(case, stream(_REPORT)),
        finding_masks=masks,
        chest=chest,
    )


def phantom_dataset(
    n: int,
    *,
    seed: int = 0,
    split: str = "train",
    size: int = 128,
    masks: Sequence[str] | None = DEFAULT_MASKS,
    progress: Callable[[int], None] | None = None,
) -> datasets.Dataset:
    """The first `n` phantom studies of a split, as a data set of `Study` rows held in memory.

    Args:
        n: number of studies, at least 1.
        seed, split, size: see `phantom_study`.
        masks: names of the masks to store with each study (see `PhantomStudy.mask`); () for none, None for all.
        progress: called with the number of studies done, every 250 studies and at the end.

    Raises:
        DataError: an argument out of its range.
    """
    from datasets import Dataset, concatenate_datasets

    _check_number("n", n, least=1)
    _check_number("seed", seed)
    _check_split(split)
    _check_size(size)
    if masks is not None:
        _check_mask_names(masks)
    parts = []
    for start in range(0, n, 250):
        stop = min(start + 250, n)
        rows = [phantom_study(i, seed=seed, split=split, size=size).to_row(masks) for i in range(start, stop)]
        parts.append(Dataset.from_list([dict(row) for row in rows], features=study_features()))
        if progress is not None:
            progress(stop)
    return concatenate_datasets(parts)


def phantom_splits(
    sizes: Mapping[str, int],
    *,
    seed: int = 0,
    size: int = 128,
    masks: Sequence[str] | None = DEFAULT_MASKS,
    progress: Callable[[str, int], None] | None = None,
) -> datasets.DatasetDict:
    """Phantom splits that share no patient.

    Args:
        sizes: split name ("train", "validation", "test", "test_shifted") to its number of studies.
        seed, size, masks: see `phantom_dataset`.
        progress: called with the split's name and the number of its studies done.

    Raises:
        DataError: no or unknown splits, or an argument out of its range.
    """
    from datasets import DatasetDict

    if not sizes:
        raise DataError(f"No splits were asked for. Give the number of studies of at least one of {PHANTOM_SPLITS}.")
    for name, n in sizes.items():
        _check_split(name)
        _check_number(f"sizes[{name!r}]", n, least=1)
    result = DatasetDict()
    for name, n in sizes.items():
        report = None if progress is None else (lambda done, name=name: progress(name, done))
        result[name] = phantom_dataset(n, seed=seed, split=name, size=size, masks=masks, progress=report)
    return result


def _wanted(observations: Sequence[str | Fact]) -> list[str | Fact]:
    if isinstance(observations, str):
        raise DataError(f"observations must be a list of names or Facts, not the string {observations!r}.")
    for item in observations:
        if not isinstance(item, Fact) and item not in DRAWABLE:
            raise DataError(f"Cannot draw {item!r}. Use names of {list(DRAWABLE)}, or [] for a normal chest.")
    check_facts([item if isinstance(item, Fact) else Fact(item) for item in observations])
    return list(observations)


def _check_number(name: str, value: Any, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise DataError(f"{name} must be an integer of at least {least}, not {value!r}.")


def _check_split(split: str) -> None:
    if split not in PHANTOM_SPLITS:
        raise DataError(f"The phantom has no split {split!r}. Use one of {list(PHANTOM_SPLITS)}.")


def _check_size(size: Any) -> None:
    _check_number("size", size)
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise DataError(f"size={size} is out of range: phantoms are drawn at {MIN_SIZE} to {MAX_SIZE} pixels.")


def _check_mask_names(names: Sequence[str]) -> None:
    if isinstance(names, str):
        raise DataError(f"masks must be a list of names, not the string {names!r}.")
    known = {*ANATOMY_NODES, STOMACH_BUBBLE, *DRAWABLE}
    unknown = sorted(set(names) - known)
    if unknown:
        raise DataError(f"The phantom has no masks {unknown}. It has {sorted(known)}.")


def _png(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=1)
    return {"bytes": buffer.getvalue(), "path": None}
