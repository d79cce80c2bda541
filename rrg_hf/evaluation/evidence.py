"""The evidence test of PALM (Table 4): occlude a region, generate again, see how much the score drops.

A model that looks at the image loses more from a hidden lung than from hidden background. Two controls go beside the
paper's plain background: the share of the image each region takes, and a background part of the anatomical regions'
mean size. `located_recall` asks the sharper question: are the findings that lie in a region still reported once that
region is gone?
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from ..errors import ConfigError, DataError
from ..metrics.observation_scores import label_targets
from ..metrics.statistics import StudyStatistics, divide
from ..observations import DEFAULT_UNCERTAINTY_POLICY, OBSERVATIONS
from ..text.cleaning import is_missing
from .protocol import library_versions, phantom_flag, skip_entry, text_sha256
from .regions import (
    ANATOMICAL_REGIONS,
    BACKGROUND,
    MATCHED_BACKGROUND,
    REGIONS,
    RegionMasks,
    check_fill,
    evidence_image_index,
    grey_array,
    occlude,
    region_masks,
)
from .report_statistics import LabelCache, ReportStatistics, ScoreSettings, report_statistics
from .result import Score
from .significance import (
    bootstrap_intervals,
    bootstrap_sums,
    check_resampling,
    compare_statistics,
    percentile_interval,
)

__all__ = [
    "ANATOMICAL_REGIONS",
    "BACKGROUND",
    "MATCHED_BACKGROUND",
    "REGIONS",
    "EvidenceResult",
    "RegionMasks",
    "evidence_test",
    "occlude",
    "region_masks",
]

logger = logging.getLogger(__name__)

GenerateFunction = Callable[[list[Image.Image], list[Mapping[str, Any]]], list[str]]
# A finding lies in a region if at least this share of its boxes does.
_INSIDE = 0.5
_INTACT = "intact"


@dataclass
class EvidenceResult:
    """Scores under occlusion.

    Attributes:
        n: studies.
        metric: the score that "score" and "drop" of each region mean.
        intact: that score on the untouched images, {"value", "low", "high"}.
        intact_scores: every score on the untouched images.
        regions: region -> {"score" and "drop" (intact minus occluded), each {"value", "low", "high"}; "p_value" of
            the drop (paired permutation); "scores" and "drops" of every score; "changed_share" of reports that read
            otherwise than the intact one; "area_share", the mean share of the image; "located_recall" of the findings
            lying in the region: {"findings", "intact", "occluded", "drop"}, or None without boxes; "n"}.
        anatomical_drop: mean drop over the occluded anatomical regions.
        drop_beyond_background: that minus the drop of each background, with an interval: background name -> score.
        anatomical_exceeds_background: whether the anatomical mean drop exceeds the plain background's; None if a side
            was not tested.
        anatomical_exceeds_matched_background: the same against the area-matched background.
        mask_kind: "dataset", "fixed_regions", or "mixed" (then `mask_kinds` counts).
        protocol: settings, skipped studies, versions.
    """

    n: int
    metric: str
    intact: Score
    intact_scores: dict[str, Score]
    regions: dict[str, dict[str, Any]]
    anatomical_drop: float | None
    drop_beyond_background: dict[str, Score]
    anatomical_exceeds_background: bool | None
    anatomical_exceeds_matched_background: bool | None
    mask_kind: str
    mask_kinds: dict[str, int]
    protocol: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def evidence_test(
    generate_fn: GenerateFunction,
    rows: Iterable[Mapping[str, Any]],
    *,
    regions: Sequence[str] = REGIONS,
    metrics: Sequence[str] = ("rules",),
    metric: str = "rules_micro_f1",
    section: str = "findings",
    policy: str = DEFAULT_UNCERTAINTY_POLICY,
    cleaning: str = "default",
    fill: str | float = "mean",
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    batch_size: int = 32,
) -> EvidenceResult:
    """Generate reports for intact and occluded images and compare their scores, study by study.

    Args:
        generate_fn: gets up to `batch_size` greyscale PIL images and their rows, returns one report each. It must be
            deterministic (greedy or beam search), or a drop may be chance.
        rows: `Study` rows; those without reference text are skipped and counted. Their first frontal image is used.
        regions: of `REGIONS`.
        metrics: groups of scores, "rules" and optionally "nlg".
        metric: the score the result is about, one of those.
        section: which text is the reference.
        policy, cleaning: see `ScoreSettings`.
        fill: see `occlude`.
        bootstrap: resamples for the intervals, and permutations for the p-values; at least 20.
        confidence: of the intervals.
        seed: of the resamples and the matched background's place.
        batch_size: images per call of `generate_fn`.

    Raises:
        ConfigError: an unknown region, metric or setting, before anything is generated.
        DataError: no study with a reference, or `generate_fn` returned another number of reports.
    """
    unknown = [name for name in regions if name not in REGIONS]
    if unknown or not regions:
        raise ConfigError(f"Unknown regions {unknown}. Use some of {list(REGIONS)}.")
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}. Use 1 or more.")
    check_resampling(bootstrap, confidence, seed)
    if bootstrap == 0:
        raise ConfigError("The evidence test compares drops by their intervals: use at least 20 bootstrap resamples.")
    settings = ScoreSettings(metrics=tuple(metrics), cleaning=cleaning, policy=policy)
    settings.check()
    slow = [name for name in settings.resolved_metrics if name not in ("nlg", "rules")]
    if slow:
        raise ConfigError(
            f"{slow} would start Java or run networks once per region. Use 'rules' and 'nlg' in the evidence test."
        )
    check_fill(fill)
    names = report_statistics(["No effusion."] * 2, ["No effusion."] * 2, settings).corpus()
    if metric not in names:
        raise ConfigError(f"No score {metric!r} among {sorted(names)}.")
    seen = _generate(generate_fn, rows, regions, section=section, fill=fill, seed=seed, batch_size=batch_size)
    reports, references, label = seen.reports, list(seen.references.values()), LabelCache()
    scored = {name: report_statistics(texts, references, settings, label=label) for name, texts in reports.items()}
    intact = scored[_INTACT]
    values = intact.corpus()
    options: dict[str, Any] = {"resamples": bootstrap, "seed": seed, "confidence": confidence}
    intervals = bootstrap_intervals(intact.groups, **options)
    intact_scores = {name: _score(value, intervals[name]) for name, value in values.items()}
    entries = {}
    for name in regions:
        entry = _region_entry(intact, scored[name], metric, options)
        entry["changed_share"] = float(np.mean([a != b for a, b in zip(reports[_INTACT], reports[name], strict=True)]))
        entry["area_share"] = float(np.mean(seen.areas[name]))
        located = np.stack(seen.located[name])
        entry["located_recall"] = _located_recall(located, intact, scored[name], policy, options)
        entries[name] = entry
    beyond = _drop_beyond_background(scored, regions, metric, options)
    anatomical = [entries[name]["drop"]["value"] for name in regions if name in ANATOMICAL_REGIONS]
    kinds = {kind: seen.kinds.count(kind) for kind in sorted(set(seen.kinds))}
    return EvidenceResult(
        n=len(references),
        metric=metric,
        intact=intact_scores[metric],
        intact_scores=intact_scores,
        regions=entries,
        anatomical_drop=float(np.mean(anatomical)) if anatomical else None,
        drop_beyond_background=beyond,
        anatomical_exceeds_background=_positive(beyond.get(BACKGROUND)),
        anatomical_exceeds_matched_background=_positive(beyond.get(MATCHED_BACKGROUND)),
        mask_kind=next(iter(kinds)) if len(kinds) == 1 else "mixed",
        mask_kinds=kinds,
        protocol={
            "section": section,
            "metrics": list(metrics),
            "policy": policy,
            "cleaning": cleaning,
            "fill": fill,
            "bootstrap": {**options, "method": "percentile over resampled studies, paired"},
            "skipped": {reason: skip_entry(ids) for reason, ids in seen.skipped.items() if ids},
            "sources": sorted(seen.sources),
            "phantom": phantom_flag(seen.sources),
            "versions": library_versions(),
            "sha256": {"references": text_sha256(seen.references)},
        },
    )


@dataclass
class _Seen:
    """What one pass over the rows leaves behind; images are not kept."""

    references: dict[str, str] = field(default_factory=dict)  # study_id -> text
    reports: dict[str, list[str]] = field(default_factory=dict)  # region, or intact -> one report per study
    kinds: list[str] = field(default_factory=list)
    areas: dict[str, list[float]] = field(default_factory=dict)
    located: dict[str, list[np.ndarray]] = field(default_factory=dict)  # region -> bool (14,) per study
    sources: set[str] = field(default_factory=set)
    skipped: dict[str, list[str]] = field(default_factory=dict)


def _generate(
    generate_fn: GenerateFunction,
    rows: Iterable[Mapping[str, Any]],
    regions: Sequence[str],
    *,
    section: str,
    fill: str | float,
    seed: int,
    batch_size: int,
) -> _Seen:
    seen = _Seen(
        reports={name: [] for name in (_INTACT, *regions)},
        areas={name: [] for name in regions},
        located={name: [] for name in regions},
    )
    for batch in _batches(_usable(rows, section, seen), batch_size):
        pixels = [grey_array(row["images"][evidence_image_index(row)]) for row in batch]
        masks = [region_masks(row, seed=seed) for row in batch]
        seen.kinds += [entry.kind for entry in masks]
        for row, entry in zip(batch, masks, strict=True):
            for name in regions:
                seen.areas[name].append(float(entry.masks[name].mean()))
                seen.located[name].append(_findings_inside(row, entry.masks[name]))
        for name in seen.reports:
            images = pixels
            if name != _INTACT:
                images = [
                    occlude(image, entry.masks[name], fill=fill) for image, entry in zip(pixels, masks, strict=True)
                ]
            texts = list(generate_fn([Image.fromarray(image) for image in images], batch))
            if len(texts) != len(batch):
                raise DataError(f"generate_fn returned {len(texts)} reports for {len(batch)} images.")
            seen.reports[name] += ["" if is_missing(text) else str(text) for text in texts]
    if not seen.references:
        counts = ", ".join(f"{len(ids)} with {reason}" for reason, ids in seen.skipped.items())
        raise DataError(f"No study can be tested: {counts or 'there are no rows'}.")
    for reason, ids in seen.skipped.items():
        logger.warning("%d studies left out of the evidence test: %s", len(ids), reason)
    return seen


def _usable(rows: Iterable[Mapping[str, Any]], section: str, seen: _Seen) -> Iterator[Mapping[str, Any]]:
    """The rows that can be tested; notes their references and sources, and what was skipped."""
    for row in rows:
        study_id = str(row.get("study_id"))
        if study_id in seen.references:
            raise DataError(f"Study {study_id!r} appears twice. Keep one row a study.")
        if is_missing(row.get(section)):
            seen.skipped.setdefault(f"reference without {section}", []).append(study_id)
        elif not row.get("images"):
            seen.skipped.setdefault("no image", []).append(study_id)
        else:
            seen.references[study_id] = str(row[section])
            seen.sources |= {str(row["source"])} if row.get("source") else set()
            phantom_flag(seen.sources)
            yield row


def _batches(rows: Iterator[Mapping[str, Any]], size: int) -> Iterator[list[Mapping[str, Any]]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


def _findings_inside(row: Mapping[str, Any], mask: np.ndarray) -> np.ndarray:
    """Which observations have at least half of their boxes' area in the region, bool (14,)."""
    index = evidence_image_index(row)
    inside = np.zeros(len(OBSERVATIONS))
    total = np.zeros(len(OBSERVATIONS))
    for box in row.get("boxes") or []:
        if box["image_index"] != index or box["finding"] not in OBSERVATIONS:
            continue
        left, top, width, height = box["xywh"]
        rows = slice(max(0, round(top)), max(0, round(top + height)))
        columns = slice(max(0, round(left)), max(0, round(left + width)))
        column = OBSERVATIONS.index(box["finding"])
        inside[column] += mask[rows, columns].sum()
        total[column] += mask[rows, columns].size
    return (total > 0) & (inside >= _INSIDE * total)


def _region_entry(
    intact: ReportStatistics, occluded: ReportStatistics, metric: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    comparison = compare_statistics(occluded.groups, intact.groups, permutations=options["resamples"], **options)
    intervals = bootstrap_intervals(occluded.groups, **options)
    scores = {name: _score(entry.first, intervals[name]) for name, entry in comparison.items()}
    drops = {name: _score(entry.difference, (entry.low, entry.high)) for name, entry in comparison.items()}
    return {
        "n": len(occluded.groups[0].values),
        "score": scores[metric],
        "drop": drops[metric],
        "p_value": comparison[metric].p_permutation,
        "scores": scores,
        "drops": drops,
    }


def _located_recall(
    located: np.ndarray,
    intact: ReportStatistics,
    occluded: ReportStatistics,
    policy: str,
    options: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Share of the findings lying in the region that the reports name, before and after it is occluded."""
    if not located.any() or intact.rules is None:
        return None
    wanted = located & (label_targets([pair[0] for pair in intact.labels], policy) == 1)
    if not wanted.any():
        return None
    counts = [wanted.sum(axis=1)]
    for statistics in (intact, occluded):
        claimed = label_targets([pair[1] for pair in statistics.labels], policy) == 1
        counts.append((wanted & claimed).sum(axis=1))

    def rates(sums: np.ndarray) -> dict[str, np.ndarray]:
        before, after = divide(sums[..., 1], sums[..., 0]), divide(sums[..., 2], sums[..., 0])
        return {"intact": before, "occluded": after, "drop": before - after}

    group = StudyStatistics(np.stack(counts, axis=1).astype(float), rates)
    intervals = bootstrap_intervals([group], **options)
    found = {name: _score(value, intervals[name]) for name, value in group.corpus().items()}
    return {"findings": int(wanted.sum()), **found}


def _drop_beyond_background(
    scored: Mapping[str, ReportStatistics], regions: Sequence[str], metric: str, options: Mapping[str, Any]
) -> dict[str, Score]:
    """Mean anatomical drop minus each background's drop. The intact score cancels out of the difference."""
    anatomical = [name for name in regions if name in ANATOMICAL_REGIONS]
    backgrounds = [name for name in regions if name in (BACKGROUND, MATCHED_BACKGROUND)]
    if not anatomical or not backgrounds:
        return {}
    drawn, value = {}, {}
    for name in (*anatomical, *backgrounds):
        group = next(group for group in scored[name].groups if metric in group.corpus())
        value[name] = group.corpus()[metric]
        sums = bootstrap_sums(group.values, resamples=options["resamples"], seed=options["seed"])
        drawn[name] = group.score(sums)[metric]
    beyond = {}
    for name in backgrounds:
        draws = drawn[name] - np.mean([drawn[region] for region in anatomical], axis=0)
        interval = percentile_interval(draws, options["confidence"])
        beyond[name] = _score(value[name] - float(np.mean([value[region] for region in anatomical])), interval)
    return beyond


def _positive(score: Score | None) -> bool | None:
    return None if score is None or score["value"] is None else score["value"] > 0


def _score(value: float, interval: tuple[float, float]) -> Score:
    return {"value": value, "low": interval[0], "high": interval[1]}
