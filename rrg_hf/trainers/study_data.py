"""Study rows as a trainer takes them: checked, without the rows that cannot be learnt from, and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, IterableDataset

from ..data.pixel_cache import CachedStudies, undecoded
from ..data.store import PHANTOM, check_single_world
from ..errors import ConfigError, DataError
from ..text.cleaning import CLEANERS, is_missing

logger = logging.getLogger(__name__)


@dataclass
class StudySummary:
    """What a run saw of one data set, for its metadata. Holds counts and names, never text.

    Args:
        rows: rows used, or None for a stream.
        dropped: reason to number of rows left out.
        sources: names of the data sets the rows come from.
        fingerprint: of the data set as given, or None for a stream.
    """

    rows: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    fingerprint: str | None = None

    def drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def log(self, name: str) -> None:
        if self.dropped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            used = "" if self.rows is None else f"{self.rows:,} rows used, "
            logger.warning("%s: %sleft out: %s.", name, used, reasons)


def prepare_studies(dataset: Any, *, name: str, section: str | None, cleaning: str) -> tuple[Any, StudySummary]:
    """Check a data set of `Study` rows and leave out the rows that a stage cannot learn from.

    Args:
        dataset: `datasets.Dataset`, `datasets.IterableDataset`, or `CachedStudies`.
        name: what it is called in messages ("train_dataset").
        section: the report section that is needed, or None where only images are.
        cleaning: a key of `CLEANERS`; a section that cleaning leaves empty counts as missing.

    Returns:
        The data set (images undecoded, unneeded columns gone), and what was left out and why. The counts of a stream
        grow while it is read.

    Raises:
        ConfigError: not a data set of `Study` rows.
        DataError: nothing is left, or phantom and real studies are mixed.
    """
    if isinstance(dataset, DatasetDict):
        raise ConfigError(f"{name} is a DatasetDict with the splits {list(dataset)}. Pass one of them.")
    if not isinstance(dataset, (Dataset, IterableDataset, CachedStudies)):
        raise ConfigError(
            f"{name} is a {type(dataset).__name__}. Pass a datasets.Dataset or IterableDataset of Study rows "
            "(rrg_hf.data.store.load_studies; a list of rows through Dataset.from_list with study_features())."
        )
    columns = dataset.column_names
    cached = isinstance(dataset, CachedStudies)
    needed = ["study_id", "pixel_values" if cached else "images", *([section] if section else [])]
    absent = [column for column in needed if columns is not None and column not in columns]
    if absent:
        raise ConfigError(
            f"{name} has no column {', '.join(absent)}; it has {sorted(columns)}. It must hold Study rows "
            "(rrg_hf.data.study.study_features)."
        )
    summary = StudySummary()
    if isinstance(dataset, IterableDataset):
        return undecoded(dataset).filter(_StreamFilter(summary, section, cleaning)), summary
    if isinstance(dataset, CachedStudies):
        texts, images = dataset.column(section) if section else None, [1] * len(dataset)
        summary.fingerprint = dataset.fingerprint
        sources = dataset.column("source") if "source" in columns else []
    else:
        summary.fingerprint = dataset._fingerprint
        dataset = undecoded(dataset)
        texts, images = list(dataset[section]) if section else None, _image_counts(dataset)
        sources = dataset.unique("source") if "source" in columns else []
    kept = []
    for index, count in enumerate(images):
        if not count:
            summary.drop("without an image")
        elif texts is not None and not _has_text(texts[index], cleaning):
            summary.drop(f"without {section}")
        else:
            kept.append(index)
    if not kept:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in summary.dropped.items()) or "it is empty"
        raise DataError(f"{name} has no row to learn from: {reasons}. Choose another section or data set.")
    if len(kept) < len(images):
        dataset = dataset.select(kept)
    summary.rows = len(kept)
    summary.sources = sorted({str(source) for source in sources})
    summary.log(name)
    return dataset, summary


def check_world(summaries: Mapping[str, StudySummary]) -> None:
    """Refuse phantom and real studies in one run.

    Raises:
        DataError: both kinds are there, or a row names no source.
    """
    sources = sorted({source for summary in summaries.values() for source in summary.sources})
    if sources:
        check_single_world(Dataset.from_dict({"source": [None if name == "None" else name for name in sources]}))


def _has_text(text: Any, cleaning: str) -> bool:
    return not is_missing(text) and bool(CLEANERS[cleaning](text).strip())


def _image_counts(dataset: Dataset) -> list[int]:
    """Images per row, without reading a pixel."""
    counts: list[int] = []
    for batch in dataset.select_columns(["images"]).with_format("arrow").iter(batch_size=1000):
        counts += [length or 0 for length in pc.list_value_length(batch["images"]).to_pylist()]
    return counts


class _StreamFilter:
    """Leaves rows out of a stream, counting them and watching that phantom and real studies do not meet."""

    def __init__(self, summary: StudySummary, section: str | None, cleaning: str) -> None:
        self.summary = summary
        self.section = section
        self.cleaning = cleaning

    def __call__(self, row: Mapping[str, Any]) -> bool:
        source = row.get("source")
        if source and source not in self.summary.sources:
            self.summary.sources.append(source)
            if PHANTOM in self.summary.sources and len(self.summary.sources) > 1:
                raise DataError(
                    f"Phantom studies are mixed with real ones ({', '.join(self.summary.sources)}) in one stream. "
                    "Keep them in data sets of their own."
                )
        if not row.get("images"):
            self.summary.drop("without an image")
            return False
        if self.section and not _has_text(row.get(self.section), self.cleaning):
            self.summary.drop(f"without {self.section}")
            return False
        return True


def spread_rows(
    dataset: Any, max_samples: int | None, rank: int, world: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows spread evenly over a data set, or the first of a stream, shared out among processes.

    Args:
        dataset: `Study` rows.
        max_samples: at most so many in all processes together; None for all.
        rank: of this process.
        world: number of processes.

    Yields:
        (position, row) of this process's share; the shares of all processes are disjoint.
    """
    if hasattr(dataset, "__len__"):
        count = len(dataset) if max_samples is None else min(max_samples, len(dataset))
        positions = np.unique(np.linspace(0, len(dataset) - 1, count).round().astype(int)).tolist()
        for position in positions[rank::world]:
            yield position, dataset[position]
        return
    for position, row in enumerate(dataset):
        if max_samples is not None and position >= max_samples:
            return
        if position % world == rank:
            yield position, row
