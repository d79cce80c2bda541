"""How well the pathology experts of a model tell the observations: AUROC and accuracy with intervals.

Source: "Layer-wise Expert-aligned Decoding for Faithful Radiology Report Generation" (arXiv 2602.04617), Sec. IV-E,
Table VII: macro AUROC (maAUC), micro AUROC (miAUC) and accuracy (ACC) over 14 observations.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data.collators import study_image
from ..errors import CheckpointError, ConfigError, DataError
from ..metrics.auroc import RankedScores
from ..metrics.statistics import divide
from ..metrics.study_labels import (
    EXPERT_LABELS,
    LABEL_SOURCES,
    add_expert_labels,
    check_label_source,
    label_reader,
)
from ..text.rules import RULES_VERSION
from .charts import finite
from .protocol import library_versions, phantom_flag, skip_entry
from .result import Score, to_json, write_atomically
from .significance import check_resampling, percentile_interval

logger = logging.getLogger(__name__)

# "column": the numbers that the data set's own column `expert_labels` holds, the only source of other experts' labels.
COLUMN = "column"
SOURCES = (*LABEL_SOURCES, COLUMN)
DEFAULT_POLICY = "uncertain_ignored"
# Cells of the weights in memory while resampling.
_BLOCK_CELLS = 2_000_000


@dataclass
class ExpertResult:
    """Scores of the experts of a model.

    Attributes:
        n: studies behind the scores.
        scores: "macro_auroc" (mean over the observations that have an AUROC), "micro_auroc" (all known labels of all
            observations pooled), "accuracy" (share of all known labels that the thresholded probabilities match) and
            "macro_accuracy" (mean over observations), each {"value", "low", "high"}; None where there is no such
            number. In a resample that loses a state of an observation, the macro AUROC is the mean over the others.
        majority_accuracy: the accuracy of always answering each observation's commoner state, which "accuracy" must
            exceed to mean anything.
        observations: expert -> {"auroc", "accuracy": {"value", "low", "high"}; "positives", "negatives", "unknown":
            reference labels; "predicted": probabilities at or above the threshold; "majority_accuracy"}.
        absent: expert -> why it has no AUROC and is not in the macro mean.
        protocol: how the numbers were made.
        per_study: one mapping per study: {"study_id", "probabilities", "labels"}, the last two by expert; a label is
            1, 0 or None (unknown).
    """

    n: int
    scores: dict[str, Score]
    majority_accuracy: float
    observations: dict[str, dict[str, Any]]
    absent: dict[str, str]
    protocol: dict[str, Any] = field(default_factory=dict)
    per_study: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the rows per study."""
        return {name: value for name, value in asdict(self).items() if name != "per_study"}

    def save(self, path: str | os.PathLike[str], *, per_study: str | os.PathLike[str] | None = None) -> Path:
        """Write scores and protocol as JSON, atomically; with `per_study` also one JSON line a study to that file."""
        if per_study is not None:
            write_atomically(per_study, "".join(f"{to_json(row)}\n" for row in self.per_study))
        return write_atomically(path, to_json(self.to_dict(), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ExpertResult:
        """Read the JSON file that `save` wrote.

        Raises:
            DataError: the file is missing or is no result of experts.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist.") from error
        except (ValueError, TypeError) as error:
            raise DataError(f"{path} is not a JSON file written by an evaluation of experts.") from error


def expert_config(model: Any) -> Any | None:
    """The `LeadConfig` of a model with pathology experts; None where it has none."""
    return getattr(getattr(model, "config", None), "lead_config", None)


def require_experts(model: Any) -> Any:
    """`expert_config`, refusing a model without experts.

    Raises:
        ConfigError: the model has none.
    """
    config = expert_config(model)
    if config is None:
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise ConfigError(f"A model of type {kind!r} has no pathology experts. Give a LEAD model.")
    return config


def check_source(label_source: str, *, policy: str = DEFAULT_POLICY, label_model: Any = None) -> None:
    """Refuse sources of labels that cannot work, before anything is loaded.

    Raises:
        ConfigError: names the setting.
    """
    if label_source not in SOURCES:
        raise ConfigError(f"label_source is {label_source!r}. Use one of {', '.join(SOURCES)}.")
    source = "study" if label_source == COLUMN else label_source
    check_label_source(source, policy=policy, model=label_model)


def evaluate_experts(
    model: Any,
    processor: Any,
    rows: Any,
    *,
    label_source: str = "rules",
    label_model: str | os.PathLike[str] | None = None,
    section: str = "findings",
    policy: str = DEFAULT_POLICY,
    threshold: float | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    batch_size: int = 8,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExpertResult:
    """Run the experts of a LEAD model over a data set and score them against its labels.

    Args:
        model: a LEAD model, or a PEFT model around one.
        processor: its processor.
        rows: `datasets.Dataset` of `Study` rows. Of each study the frontal image is read, as in training.
        label_source: where reference labels come from: "rules" or "chexbert" read `section`; "study" takes the data
            set's own `labels`, "column" its own column `expert_labels`.
        label_model: folder or Hub id of the CheXbert network; the prepared one by default.
        section: the report section that is read.
        policy: how an uncertain label counts, a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`.
        threshold: the probability from which an observation counts as predicted; by default the model's own.
        bootstrap: resamples of the studies for the intervals; 0 for none.
        seed: of the resamples.
        confidence: of the intervals.
        batch_size: studies per pass through the visual tower.
        cache_dir: keep what CheXbert read here, for the next run. May quote report text.
        progress: called with (studies done, all studies).

    Raises:
        ConfigError: a setting that cannot work, or a model without experts; before any image is read.
        DataError: no study has both an image and a known label, or a study id appears twice.
    """
    config = require_experts(model)
    names = list(config.expert_names)
    check_source(label_source, policy=policy, label_model=label_model)
    check_resampling(bootstrap, confidence, seed)
    threshold = _check_threshold(config.expert_threshold if threshold is None else threshold)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}. Use 1 or more.")
    targets = _targets(rows, names, label_source, label_model, section, policy, cache_dir, model)
    repeated = len(rows) - len(set(rows["study_id"]))
    if repeated:
        raise DataError(f"{repeated} study ids appear more than once. Keep one row a study.")
    read = expert_probabilities(model, processor, rows, batch_size=batch_size, progress=progress)
    kept = np.array([at for at, study_id in enumerate(rows["study_id"]) if study_id in read.probabilities], dtype=int)
    ids = [rows["study_id"][at] for at in kept]
    probabilities = np.array([read.probabilities[study_id] for study_id in ids]).reshape(len(kept), len(names))
    result = score_experts(
        probabilities,
        targets[kept],
        names,
        threshold=threshold,
        bootstrap=bootstrap,
        seed=seed,
        confidence=confidence,
    )
    result.per_study = [
        {
            "study_id": study_id,
            "probabilities": dict(zip(names, map(float, row), strict=True)),
            "labels": dict(zip(names, [None if np.isnan(label) else int(label) for label in labels], strict=True)),
        }
        for study_id, row, labels in zip(ids, probabilities, targets[kept], strict=True)
    ]
    sources = {str(name) for name in rows.unique("source") if name} if "source" in rows.column_names else set()
    result.protocol |= {
        "expert_loss_weight": config.expert_loss_weight,
        "label_source": label_source,
        "section": section if label_source in ("rules", "chexbert") else None,
        "policy": None if label_source == COLUMN else policy,
        "skipped": {reason: skip_entry(ids) for reason, ids in read.skipped.items()},
        "sources": sorted(sources),
        "phantom": phantom_flag(sources),
        "versions": library_versions(networks=True),
    }
    if label_source == "rules":
        result.protocol["labeller_version"] = RULES_VERSION
    return result


def score_experts(
    probabilities: np.ndarray,
    targets: np.ndarray,
    names: Sequence[str],
    *,
    threshold: float = 0.5,
    bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> ExpertResult:
    """Score probabilities against labels.

    Args:
        probabilities: (N, C) in [0, 1]; a row with a NaN (a study without an image) is left out and counted.
        targets: (N, C): 1 present, 0 absent, negative or NaN unknown: left out, label by label, and counted.
        names: the C experts.
        threshold: the probability from which an observation counts as predicted.
        bootstrap: resamples of the studies, at least 20, or 0 for no intervals.
        seed: of the resamples.
        confidence: of the intervals.

    Returns:
        The result, its protocol holding threshold, resampling and counts.

    Raises:
        ConfigError: a setting that cannot work.
        DataError: shapes differ, a value is out of its range, or no label is known.
    """
    probabilities, targets = np.asarray(probabilities, dtype=float), np.asarray(targets, dtype=float)
    _check_threshold(threshold)
    check_resampling(bootstrap, confidence, seed)
    if probabilities.shape != targets.shape or probabilities.shape[1:] != (len(names),):
        raise DataError(
            f"Probabilities of shape {probabilities.shape} and labels of shape {targets.shape} do not fit together, "
            f"or not to {len(names)} experts."
        )
    seen = ~np.isnan(probabilities).any(axis=1)
    if ((probabilities[seen] < 0) | (probabilities[seen] > 1)).any():
        raise DataError("Probabilities must lie between 0 and 1; logits must go through a sigmoid first.")
    known = (targets >= 0) & seen[:, None]  # NaN >= 0 is False
    if not np.isin(targets[known], (0.0, 1.0)).all():
        raise DataError("Labels must be 1, 0, or negative or NaN for unknown.")
    used = known.any(axis=1)
    if not used.any():
        raise DataError(
            f"No label is known for any of the {len(targets)} studies ({int((~seen).sum())} without probabilities). "
            "Choose another source of labels, or another policy."
        )
    kept = _Kept(probabilities[used], targets[used] == 1, known[used], threshold)
    values = kept.scores(None)
    draws = kept.resample(bootstrap, seed) if bootstrap else {}

    def score(name: str) -> Score:
        low, high = percentile_interval(draws[name], confidence) if draws else (None, None)
        return {"value": finite(values[name][0]), "low": finite(low), "high": finite(high)}

    observations: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    for column, name in enumerate(names):
        states = kept.positive[kept.known[:, column], column]
        positives, count = int(states.sum()), len(states)
        if not kept.by_class[column].both_states:
            what = f"all {count} known labels are {'positive' if positives else 'negative'}"
            absent[name] = what if count else "no label is known"
        observations[name] = {
            "auroc": score(f"auroc:{column}"),
            "accuracy": score(f"accuracy:{column}"),
            "positives": positives,
            "negatives": count - positives,
            "unknown": int(used.sum()) - count,
            "predicted": int((kept.probabilities[kept.known[:, column], column] >= threshold).sum()),
            "majority_accuracy": max(positives, count - positives) / count if count else None,
        }
    correct = sum(max(entry["positives"], entry["negatives"]) for entry in observations.values())
    return ExpertResult(
        n=int(used.sum()),
        scores={name: score(name) for name in ("macro_auroc", "micro_auroc", "accuracy", "macro_accuracy")},
        majority_accuracy=correct / int(kept.known.sum()),
        observations=observations,
        absent=absent,
        protocol={
            "threshold": threshold,
            "bootstrap": {
                "resamples": bootstrap,
                "seed": seed,
                "confidence": confidence,
                "method": "percentile over resampled studies",
            }
            if bootstrap
            else None,
            "counts": {
                "studies": len(targets),
                "without_probabilities": int((~seen).sum()),
                "without_known_label": int((seen & ~used).sum()),
                "known_labels": int(kept.known.sum()),
                "unknown_labels": int(kept.known.size - kept.known.sum()),
            },
        },
    )


class _Kept:
    """The studies that count, ranked once, with their scores under any weights."""

    def __init__(self, probabilities: np.ndarray, positive: np.ndarray, known: np.ndarray, threshold: float) -> None:
        self.probabilities, self.positive, self.known = probabilities, positive, known
        correct = known & ((probabilities >= threshold) == positive)
        self.counts = np.concatenate([correct, known], axis=1).astype(float)  # (N, 2 C)
        self.by_class = [self._ranked(known[:, column], column) for column in range(known.shape[1])]
        studies, columns = np.nonzero(known)
        self.pooled = RankedScores.of(probabilities[studies, columns], positive[studies, columns], studies)

    def _ranked(self, chosen: np.ndarray, column: int) -> RankedScores:
        studies = np.flatnonzero(chosen)
        return RankedScores.of(self.probabilities[studies, column], self.positive[studies, column], studies)

    def scores(self, weights: np.ndarray | None) -> dict[str, np.ndarray]:
        """Every score, (B,) for weights (B, N); weights None count every study once."""
        if weights is None:
            weights = np.ones((1, len(self.known)))
        classes = self.known.shape[1]
        sums = weights @ self.counts
        accuracies = divide(sums[:, :classes], sums[:, classes:], float("nan"))
        areas = np.stack([ranked.auroc(weights) for ranked in self.by_class], axis=1)
        found = {
            "macro_auroc": _mean_of_known(areas),
            "micro_auroc": self.pooled.auroc(weights),
            "accuracy": divide(sums[:, :classes].sum(1), sums[:, classes:].sum(1), float("nan")),
            "macro_accuracy": _mean_of_known(accuracies),
        }
        for column in range(classes):
            found[f"auroc:{column}"], found[f"accuracy:{column}"] = areas[:, column], accuracies[:, column]
        return found

    def resample(self, resamples: int, seed: int) -> dict[str, np.ndarray]:
        count = len(self.known)
        rng = np.random.default_rng(seed)
        size = max(1, min(resamples, _BLOCK_CELLS // count))
        parts: dict[str, list[np.ndarray]] = {}
        for start in range(0, resamples, size):
            rows = min(size, resamples - start)
            weights = rng.multinomial(count, np.full(count, 1.0 / count), size=rows).astype(float)
            for name, values in self.scores(weights).items():
                parts.setdefault(name, []).append(values)
        return {name: np.concatenate(values) for name, values in parts.items()}


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Mean over columns without NaN, (B, C) -> (B,)."""
    there = ~np.isnan(values)
    return divide(np.where(there, values, 0.0).sum(axis=1), there.sum(axis=1), float("nan"))


def _check_threshold(threshold: float) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold < 1:
        raise ConfigError(f"threshold is {threshold!r}. Use a number between 0 and 1, such as 0.5.")
    return float(threshold)


# --- running the experts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadStudies:
    """Probabilities of studies, and which studies were left out.

    Attributes:
        probabilities: study_id -> (C,) probabilities in the order of `expert_names`.
        skipped: reason -> study ids.
    """

    probabilities: dict[str, np.ndarray]
    skipped: dict[str, list[str]]


def expert_probabilities(
    model: Any,
    processor: Any,
    rows: Any,
    *,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> ReadStudies:
    """Probabilities of every study's frontal image, by the visual tower and the experts alone.

    Args:
        model: a LEAD model, or a PEFT model around one.
        processor: its processor.
        rows: `datasets.Dataset` of `Study` rows. Studies without an image, or with one that cannot be read, are
            left out and named.
        batch_size: studies per pass.
        progress: called with (studies done, all studies).

    Raises:
        CheckpointError: the experts give no numbers.
    """
    require_experts(model)
    found: dict[str, np.ndarray] = {}
    skipped: dict[str, list[str]] = {}
    columns = [name for name in ("study_id", "images", "views") if name in rows.column_names]
    rows = rows.select_columns(columns)
    for start in range(0, len(rows), batch_size):
        batch: list[tuple[str, Any]] = []
        for row in (rows[at] for at in range(start, min(start + batch_size, len(rows)))):
            if not row.get("images"):
                skipped.setdefault("no image", []).append(row["study_id"])
                continue
            try:
                batch.append((row["study_id"], study_image(row)))
            except DataError:
                skipped.setdefault("image cannot be read", []).append(row["study_id"])
        if batch:
            read = image_probabilities(model, processor, [image for _, image in batch])
            found.update(zip((study_id for study_id, _ in batch), read, strict=True))
        if progress is not None:
            progress(min(start + batch_size, len(rows)), len(rows))
    for reason, ids in skipped.items():
        logger.warning("%d studies left out of the evaluation of experts: %s", len(ids), reason)
    return ReadStudies(found, skipped)


def image_probabilities(model: Any, processor: Any, images: Sequence[Any]) -> np.ndarray:
    """(B, C) float probabilities of images, one sample each.

    Raises:
        CheckpointError: the experts give no numbers.
    """
    import torch

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    inner.eval()
    inputs = processor.build_inputs(images=[[image] for image in images])
    with torch.no_grad():
        found = inner.predict_experts(**on_device(inner, inputs)).float().cpu().numpy()
    if np.isnan(found).any():
        raise CheckpointError(
            "The experts of this model give no numbers (NaN) for an image. Its weights are damaged, or do not fit "
            "the dtype it was loaded in."
        )
    return np.asarray(found, dtype=float)


def on_device(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Model inputs on the model's device, pixels in its dtype."""
    moved = {name: value.to(model.device) for name, value in inputs.items()}
    if "pixel_values" in moved:
        moved["pixel_values"] = moved["pixel_values"].to(model.dtype)
    return moved


def _targets(
    rows: Any,
    names: Sequence[str],
    source: str,
    label_model: str | os.PathLike[str] | None,
    section: str,
    policy: str,
    cache_dir: str | os.PathLike[str] | None,
    model: Any,
) -> np.ndarray:
    """(N, C) labels: 1, 0, NaN for unknown."""
    there = EXPERT_LABELS in rows.column_names
    if source == COLUMN:
        if not there:
            raise ConfigError(f"The data set has no column {EXPERT_LABELS!r}, only {rows.column_names}.")
        rows = add_expert_labels(rows, names, reader=None, section=section, policy=policy)
    else:
        rows = rows.remove_columns(EXPERT_LABELS) if there else rows
        device = str(model.device) if source == "chexbert" else None
        reader = label_reader(source, model=label_model, cache_dir=cache_dir, device=device)
        rows = add_expert_labels(rows, names, reader=reader, section=section, policy=policy)
    targets = np.array(rows[EXPERT_LABELS], dtype=float).reshape(len(rows), len(names))
    return np.where(targets >= 0, targets, np.nan)
