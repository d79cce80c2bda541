"""Targets of pathology experts: the 14 observations of each study, from its report or from the data set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, IterableDataset

from ..errors import ConfigError
from ..observations import OBSERVATIONS, UNCERTAINTY_POLICIES, LabelState, apply_policy
from ..text.cleaning import is_missing
from .chexbert import CheXbertReader, LabelReading, RulesLabelReader
from .observation_scores import states_from_chexbert
from .reading import ReadingCache, TextReader

LABEL_SOURCES: tuple[str, ...] = ("rules", "chexbert", "study")
EXPERT_LABELS = "expert_labels"
UNKNOWN = -1.0


def label_reader(
    source: str,
    *,
    model: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
) -> TextReader[LabelReading] | None:
    """What reads the observations from report texts.

    Args:
        source: "rules", "chexbert", or "study" (the data set's own `labels`; nothing is read).
        model: folder or Hub id of a CheXbert network; the prepared one by default.
        cache_dir: folder that keeps what was read, by the hash of the text; None keeps nothing.
        device: of CheXbert.

    Raises:
        ConfigError: an unknown source, or CheXbert is not prepared.
    """
    check_label_source(source, model=model)
    if source == "study":
        return None
    cache = None if cache_dir is None else ReadingCache(cache_dir)
    if source == "rules":
        return RulesLabelReader(cache=cache)
    return CheXbertReader(model, device=device, vectors=False, cache=cache)


def check_label_source(source: str, *, policy: str | None = None, model: Any = None) -> None:
    """Refuse settings that cannot work, before anything is loaded.

    Raises:
        ConfigError: names the setting.
    """
    if source not in LABEL_SOURCES:
        raise ConfigError(f"label_source is {source!r}; choose one of {', '.join(LABEL_SOURCES)}.")
    if model is not None and source != "chexbert":
        raise ConfigError(f"A label model goes with label_source 'chexbert'; label_source is {source!r}.")
    if policy is not None and policy not in UNCERTAINTY_POLICIES:
        raise ConfigError(f"uncertainty_policy is {policy!r}; choose one of {', '.join(UNCERTAINTY_POLICIES)}.")


def expert_targets(
    labels: Mapping[str, LabelState | str | None] | None, names: Sequence[str], policy: str
) -> list[float]:
    """One study's targets: 1 present, 0 absent, -1 unknown.

    Args:
        labels: observation name to state; None or missing for an unlabelled study.
        names: the experts.
        policy: a key of `UNCERTAINTY_POLICIES`.
    """
    targets = apply_policy(labels or {}, policy)
    return [UNKNOWN if targets.get(name) is None else float(targets[name] or 0) for name in names]


def study_targets(
    rows: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    *,
    reader: TextReader[LabelReading] | None,
    section: str,
    policy: str,
) -> list[list[float]]:
    """Targets of many studies; see `add_expert_labels` for the arguments."""
    if reader is None:
        return [expert_targets(labels, names, policy) for labels in rows["labels"]]
    texts = ["" if is_missing(text) else str(text) for text in rows[section]]
    readings = reader(texts, persist=True)
    return [
        expert_targets(states_from_chexbert(reading["classes"]) if text else None, names, policy)
        for text, reading in zip(texts, readings, strict=True)
    ]


def add_expert_labels(
    dataset: Any,
    names: Sequence[str],
    *,
    reader: TextReader[LabelReading] | None,
    section: str = "findings",
    policy: str = "uncertain_ignored",
) -> Any:
    """`Study` rows with a column `expert_labels`: one number per expert, 1 present, 0 absent, -1 unknown.

    A data set that has the column keeps it, so that targets made once can be saved with the data.

    Args:
        dataset: a `datasets.Dataset` or `IterableDataset` of `Study` rows.
        names: the experts; observations out of `OBSERVATIONS`.
        reader: what reads the section (see `label_reader`); None takes the rows' own `labels`.
        section: the report section that is read. A study without it has unknown targets.
        policy: how uncertain becomes a target.

    Raises:
        ConfigError: an expert that is no observation, or a column that is missing or of another length.
    """
    columns = dataset.column_names
    if columns is not None and EXPERT_LABELS in columns:
        if isinstance(dataset, Dataset) and len(dataset) and len(dataset[0][EXPERT_LABELS]) != len(names):
            raise ConfigError(
                f"The data set's expert_labels have {len(dataset[0][EXPERT_LABELS])} numbers, the model has "
                f"{len(names)} experts. Remove the column to have it made anew."
            )
        return dataset
    unknown = sorted(set(names) - set(apply_policy({}, policy)))
    if unknown:
        raise ConfigError(
            f"No label source knows the experts {unknown}. Give the data set a column expert_labels with one number "
            "(1, 0, or -1 for unknown) per expert."
        )
    needed = "labels" if reader is None else section
    if columns is not None and needed not in columns:
        raise ConfigError(f"Labels are to come from the column {needed!r}, which the data set lacks: {columns}.")
    if isinstance(dataset, IterableDataset):
        return dataset.map(_AddTargets(list(names), reader, section, policy), batched=True, batch_size=64)
    rows = dataset.select_columns([needed])
    return dataset.add_column(
        EXPERT_LABELS, study_targets({needed: rows[needed]}, names, reader=reader, section=section, policy=policy)
    )


class _AddTargets:
    """Adds the column to batches of a stream."""

    def __init__(self, names: list[str], reader: Any, section: str, policy: str) -> None:
        self.settings: dict[str, Any] = {"reader": reader, "section": section, "policy": policy}
        self.names = names

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {EXPERT_LABELS: study_targets(rows, self.names, **self.settings)}


def label_studies(dataset: Dataset, reader: TextReader[LabelReading], *, section: str = "findings") -> Dataset:
    """`Study` rows whose `labels` are what a reader finds in their reports, for saving with the data.

    Args:
        dataset: `Study` rows; whatever labels they had are replaced.
        reader: see `label_reader`.
        section: the report section that is read. A study without it stays unlabelled.

    Returns:
        The rows in the same order, with the same columns.
    """
    texts = ["" if is_missing(text) else str(text) for text in dataset[section]]
    labels: list[dict[str, str | None]] = []
    for text, reading in zip(texts, reader(texts, persist=True), strict=True):
        states = states_from_chexbert(reading["classes"])
        labels.append({name: str(states[name]) if text else None for name in OBSERVATIONS})
    columns, feature = dataset.column_names, dataset.features["labels"]
    return dataset.remove_columns("labels").add_column("labels", labels, feature=feature).select_columns(columns)
