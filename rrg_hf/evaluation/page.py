"""The evaluation page: one HTML file with scores, evidence, cases and curves that opens without a server.

The file needs nothing but itself: pictures are embedded, charts are inline SVG, and it holds no script at all (its
content security policy forbids them), so text from a report can never run. It follows the reader's light or dark theme
and works at phone and desktop width.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..observations import OBSERVATIONS
from .charts import Bar, LineChart, bars, finite, line_chart, number, score_cell
from .page_cases import PageCase, lay_out_case
from .page_experts import gate_profile, gate_scale, lay_out_results
from .result import write_atomically

SCOPE = "Chest X-ray first, English, research only, not a medical device."
PHANTOM_NOTE = (
    "The scores on this page come from phantoms: images drawn and reports written by a program, from no patient. "
    "They say nothing about real radiographs."
)
_MASK_KINDS = {
    "dataset": "Regions are the data set's own masks.",
    "fixed_regions": "Regions are fixed boxes, because the data set has no masks: the same place in every image.",
    "mixed": "Regions are the data set's masks where there are some, else fixed boxes.",
}
# Names that do not read well word by word.
_METRIC_NAMES = {
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "meteor_1.5_java": "METEOR 1.5 (Java)",
    "meteor_nltk": "METEOR (nltk)",
    "f1": "F1",
    "top5": "(top 5)",
    "samples": "per-study",
}
# Label scores of the main table; the other averages are folded away below it.
# how the keys of scores begin that compare words or their vectors
TEXT_SCORES = ("bleu_", "rouge_", "cider", "meteor_", "bertscore_")
KEY_LABEL_SCORES = (
    "rules_micro_f1",
    "rules_macro_f1",
    "rules_micro_f1_top5",
    "rules_macro_f1_top5",
    "rules_micro_precision",
    "rules_micro_recall",
)


@dataclass(frozen=True)
class PageCurve:
    """One training curve chart: a title and, per series name, its (step, value) points."""

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x_label: str = "step"


def write_page(
    path: str | os.PathLike[str],
    *,
    title: str,
    cases: Sequence[PageCase] = (),
    results: Mapping[str, Any] | None = None,
    curves: Sequence[PageCurve] = (),
    evidence: Any | None = None,
    experts: Any | None = None,
    notes: Sequence[str] = (),
    protocol: Mapping[str, Any] | None = None,
    phantom: bool | None = None,
) -> Path:
    """Write the evaluation page.

    Args:
        path: the HTML file. Written atomically; its folder is created.
        title: the page's heading.
        cases: studies for the case viewer.
        results: system name to split name to an `EvaluationResult` (or its `to_dict()`); system name straight to a
            result where there is one split. The first system is the one the page is about.
        curves: training curves, see `curves_from_log`.
        evidence: an `EvidenceResult` (or its `to_dict()`), or a mapping of split or system name to one.
        experts: an `ExpertResult` (or its `to_dict()`), or a mapping of split or system name to one.
        notes: plain sentences for the end of the page.
        protocol: what every number on the page shares; each result's own protocol is shown beside it in any case.
        phantom: whether the data is the phantom. None: as the results' protocols say, else yes if every case's source
            is "phantom".

    Returns:
        The path of the file.

    Raises:
        ValueError: nothing to show, or a result without scores.
        DataError: the file cannot be written; what was there before stays.
    """
    if not (cases or results or curves or evidence or experts):
        raise ValueError("A page needs cases, results, curves, evidence or experts: all of them are empty.")
    splits = _by_split(results or {})
    expert_blocks = lay_out_results(experts)
    if phantom is None:
        phantom = _is_phantom(splits, cases, [block["protocol"] for block in expert_blocks])
    scale = gate_scale(cases)
    laid = [lay_out_case(index, case, gate_scale=scale) for index, case in enumerate(cases, start=1)]
    profile = gate_profile(cases)
    context = {
        "title": title,
        "scope": SCOPE,
        "phantom": phantom,
        "phantom_note": PHANTOM_NOTE,
        "tiles": _tiles(splits),
        "tables": [_score_table(split, systems) for split, systems in splits.items()],
        "observations": _observation_tables(splits),
        "evidence": _evidence(evidence),
        "experts": [{**block, "protocol": _pairs(block["protocol"])} for block in expert_blocks],
        "gate_profile": profile,
        "gate_scale": scale,
        "any_experts": bool(experts or profile) or any(entry.experts for entry in laid),
        "cases": laid,
        "any_maps": any(entry.layers for entry in laid),
        "max_sentences": max((len(entry.generated) for entry in laid), default=0),
        "curves": [_lay_out_curve(curve) for curve in curves],
        "notes": list(notes),
        "protocol": _pairs(protocol or {}),
    }
    return write_atomically(path, _template().render(context))


def curves_from_log(
    log_history: Iterable[Mapping[str, Any]], *, stage: str = "", names: Sequence[str] | None = None
) -> list[PageCurve]:
    """Curves from a trainer's `state.log_history`.

    Args:
        log_history: the trainer's log entries; each has "step".
        stage: put before each title.
        names: the logged values to draw, in order. Default: every loss, then every eval score, that has two points.

    Returns:
        One chart per value. A training loss and its evaluation twin ("loss" and "eval_loss") share a chart.
    """
    values: dict[str, list[tuple[float, float]]] = {}
    for entry in log_history:
        for key, value in entry.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and "step" in entry:
                values.setdefault(key, []).append((float(entry["step"]), float(value)))
    if names is None:
        skipped = ("step", "epoch", "learning_rate", "grad_norm", "total_flos")
        timing = ("runtime", "per_second", "train_loss")
        names = [key for key in values if key not in skipped and not any(part in key for part in timing)]
        names = sorted(names, key=lambda key: (key.startswith("eval_"), "loss" not in key))
    curves = []
    done: set[str] = set()
    for name in names:
        if name in done or len(values.get(name, ())) < 2:
            continue
        series = {"train" if not name.startswith("eval_") else "validation": values[name]}
        twin = f"eval_{name}"
        if twin in values:
            series["validation"] = values[twin]
            done.add(twin)
        label = name.removeprefix("eval_").replace("_", " ").replace("f1", "F1")
        curves.append(PageCurve(f"{stage}: {label}" if stage else label, series))
    return curves


# --- results ---------------------------------------------------------------------------------------------------


def _by_split(results: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """split -> system -> result as a plain dict, in the order given."""
    splits: dict[str, dict[str, dict[str, Any]]] = {}
    for system, entry in results.items():
        entry = _plain(entry)
        per_split = {"": entry} if "scores" in entry else {split: _plain(result) for split, result in entry.items()}
        for split, result in per_split.items():
            if "scores" not in result:
                raise ValueError(
                    f"The result of {system!r} on {split!r} has no 'scores'. Pass EvaluationResult objects."
                )
            splits.setdefault(split, {})[system] = result
    return splits


def _plain(result: Any) -> dict[str, Any]:
    return dict(result.to_dict() if hasattr(result, "to_dict") else result)


def _is_phantom(
    splits: Mapping[str, Mapping[str, Mapping[str, Any]]],
    cases: Sequence[PageCase],
    protocols: Sequence[Mapping[str, Any]] = (),
) -> bool:
    protocols = [result.get("protocol") or {} for systems in splits.values() for result in systems.values()] + [
        *protocols
    ]
    known = [flag for protocol in protocols if (flag := protocol.get("phantom")) is not None]
    return all(known) if known else bool(cases) and all(case.source == "phantom" for case in cases)


def _flat_scores(scores: Mapping[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Nested scores to {dotted name: {"value", "low", "high"}}."""
    flat: dict[str, dict[str, Any]] = {}
    for name, entry in scores.items():
        key = f"{prefix}{name}"
        if isinstance(entry, Mapping) and "value" in entry:
            flat[key] = dict(entry)
        elif isinstance(entry, Mapping):
            flat.update(_flat_scores(entry, f"{key}."))
        elif isinstance(entry, (int, float)):
            flat[key] = {"value": entry}
    return flat


def metric_name(key: str) -> str:
    """A score's key as people write it: "bleu_4" is BLEU-4, "rules_micro_f1" is Rules micro F1."""
    if key in _METRIC_NAMES:
        return _METRIC_NAMES[key]
    if key.startswith("bleu_"):
        return f"BLEU-{key.removeprefix('bleu_')}"
    words = [_METRIC_NAMES.get(word, word) for word in key.replace(".", " ").replace("_", " ").split()]
    return " ".join(words)[:1].upper() + " ".join(words)[1:]


def _score_table(split: str, systems: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    flat = {system: _flat_scores(result["scores"]) for system, result in systems.items()}
    keys = list(dict.fromkeys(key for scores in flat.values() for key in scores))
    labels = [key for key in keys if key.startswith("rules_")]
    folded = [key for key in labels if key not in KEY_LABEL_SCORES] if KEY_LABEL_SCORES[0] in labels else []
    groups = {
        "Clinical, by the rule labeller": sorted((key for key in labels if key not in folded), key=_label_order),
        "Clinical, by networks": [key for key in keys if key not in labels and not key.startswith(TEXT_SCORES)],
        "Text overlap": [key for key in keys if key.startswith(TEXT_SCORES)],
    }
    protocols = {system: _pairs(result.get("protocol") or {}) for system, result in systems.items()}
    first = next(iter(protocols.values()))
    shared = [pair for pair in first if all(pair in items for items in protocols.values())]
    return {
        "split": split,
        "systems": list(systems),
        "groups": [(name, _score_rows(members, flat)) for name, members in groups.items() if members],
        "folded": _score_rows(folded, flat),
        "count": next((result["n"] for result in systems.values() if result.get("n")), None),
        "shared": shared,
        "own": [
            (system, own) for system, items in protocols.items() if (own := [p for p in items if p not in shared])
        ],
    }


def _label_order(key: str) -> int:
    return KEY_LABEL_SCORES.index(key) if key in KEY_LABEL_SCORES else len(KEY_LABEL_SCORES)


def _score_rows(keys: Sequence[str], flat: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for key in keys:
        top = 1.0
        for scores in flat.values():
            top = max(top, *(finite(scores.get(key, {}).get(part)) or 0.0 for part in ("value", "high")))
        rows.append(
            {
                "name": metric_name(key.removeprefix("rules_")),
                "cells": [score_cell(scores.get(key), top) for scores in flat.values()],
            }
        )
    return rows


def _tiles(splits: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, str]]:
    """The headline score of the first system on each split, beside the best other system there."""
    tiles = []
    for split, systems in splits.items():
        (system, result), *others = systems.items()
        scores = _flat_scores(result["scores"])
        key = KEY_LABEL_SCORES[0] if KEY_LABEL_SCORES[0] in scores else next(iter(scores), None)
        value = finite(scores[key]["value"]) if key else None
        if key is None or value is None:
            continue
        rivals = {name: finite(_flat_scores(other["scores"]).get(key, {}).get("value")) for name, other in others}
        known = {name: score for name, score in rivals.items() if score is not None}
        low, high = finite(scores[key].get("low")), finite(scores[key].get("high"))
        tiles.append(
            {
                "label": metric_name(key) + (f" on {split}" if split else ""),
                "value": f"{value:.3f}",
                "interval": f"95 % interval {low:.3f}–{high:.3f}" if low is not None and high is not None else "",
                "system": system,
                "rivals": ", ".join(f"{name} {score:.3f}" for name, score in known.items()),
            }
        )
    return tiles


def _observation_tables(splits: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Per split: rows of observations with support and each system's F1 (precision and recall of the first)."""
    tables = []
    for split, systems in splits.items():
        rows = []
        tabled = {name: _observations(result) for name, result in systems.items()}
        first = next(iter(tabled.values()))
        for name in (*OBSERVATIONS, *(key for key in first if key not in OBSERVATIONS)):
            if name not in first:
                continue
            support = finite(_value(first[name].get("support")))
            rows.append(
                {
                    "name": name.replace("mediastinum", "\u00admediastinum"),  # may break there on a phone
                    "support": "–" if support is None else number(support),
                    "precision": _score_text(first[name].get("precision"), support),
                    "recall": _score_text(first[name].get("recall"), support),
                    "cells": [_observation_cell(table.get(name), support) for table in tabled.values()],
                }
            )
        if rows:
            tables.append({"split": split, "systems": list(systems), "rows": rows})
    return tables


def _observations(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    table = result.get("observations") or {}
    if isinstance(table, Mapping):
        return {name: dict(row) for name, row in table.items() if isinstance(row, Mapping)}
    return {row["observation"]: dict(row) for row in table}


def _observation_cell(row: Mapping[str, Any] | None, support: float | None) -> dict[str, Any]:
    if row is None or support == 0:
        return {"text": "–", "interval": "", "bar": None}
    entry = row.get("f1")
    return score_cell(entry if isinstance(entry, Mapping) else {"value": entry}, 1.0)


def _score_text(entry: Any, support: float | None) -> str:
    value = finite(_value(entry))
    return "–" if value is None or support == 0 else f"{value:.2f}"


def _value(entry: Any) -> Any:
    return entry.get("value") if isinstance(entry, Mapping) else entry


# --- evidence and curves ---------------------------------------------------------------------------------------


def _evidence(evidence: Any | None) -> list[dict[str, Any]]:
    """Per evidence result: bars of the drop per occluded region and the table behind them."""
    if not evidence:
        return []
    plain = _plain(evidence)
    results = {"": plain} if "regions" in plain else {name: _plain(result) for name, result in plain.items()}
    blocks = []
    for name, result in results.items():
        regions: Mapping[str, Mapping[str, Any]] = result["regions"]
        metric = metric_name(str(result["metric"]))
        recall = {region: entry.get("located_recall") for region, entry in regions.items()}
        charts = [
            {
                "title": f"Drop of {metric} when a region is covered",
                "rows": _region_rows({region: entry["drop"] for region, entry in regions.items()}, regions),
            },
            {
                "title": "Drop of recall for the findings that lie in the region",
                "rows": _region_rows({region: entry["drop"] for region, entry in recall.items() if entry}, regions),
            },
        ]
        blocks.append(
            {
                "name": name,
                "charts": [chart for chart in charts if chart["rows"]],
                "intact": f"{metric} on intact images: {_score_text3(result.get('intact'))}.",
                "masks": _MASK_KINDS.get(str(result.get("mask_kind")), ""),
                "beyond": _beyond(result.get("drop_beyond_background") or {}),
                "protocol": _pairs({"studies": result.get("n"), **(result.get("protocol") or {})}),
            }
        )
    return blocks


def _region_rows(
    drops: Mapping[str, Mapping[str, Any]], regions: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Bar, str]]:
    """(bar, remark) per region that has a drop; the remark is the region's share of the image."""
    known = {region: drop for region, drop in drops.items() if finite(drop.get("value")) is not None}
    laid = bars(
        [
            (
                region,
                float(drop["value"]),
                finite(drop.get("low")),
                finite(drop.get("high")),
                "background" if region.startswith("background") else "anatomy",
            )
            for region, drop in known.items()
        ]
    )
    areas = [finite(regions[region].get("area_share")) for region in known]
    return [
        (bar, "" if area is None else f"{100 * area:.0f} % of the image")
        for bar, area in zip(laid, areas, strict=True)
    ]


def _beyond(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Whether anatomy costs more than background, in words."""
    lines = []
    for background, score in scores.items():
        value, low, high = (finite(score.get(part)) for part in ("value", "low", "high"))
        if value is None:
            continue
        more = f"{abs(value):.3f} {'more' if value > 0 else 'less'} than"
        if abs(value) < 0.0005:
            more = "as much as"
        interval = (
            f" (95\u00a0% interval of the difference {low:.3f} to {high:.3f})" if None not in (low, high) else ""
        )
        lines.append(f"Covering anatomy costs {more} covering {background}{interval}.".replace("-", "−"))
    return lines


def _score_text3(entry: Any) -> str:
    value = finite(_value(entry))
    return "" if value is None else f"{value:.3f}"


def _lay_out_curve(curve: PageCurve) -> LineChart:
    return line_chart(curve.title, curve.series, x_label=curve.x_label)


# --- writing ---------------------------------------------------------------------------------------------------


def _pairs(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A protocol as (name, text) pairs, nested mappings flattened."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            pairs += _pairs(value, f"{prefix}{name}: ")
        elif isinstance(value, (list, tuple)):
            pairs.append((label, ", ".join(str(item) for item in value)))
        else:
            pairs.append((label, "none" if value is None else str(value)))
    return pairs


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
