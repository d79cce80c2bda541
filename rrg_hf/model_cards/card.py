"""`build_card`: a Hub model card from a checkpoint's training record and its evaluation.

A card holds numbers, names and settings only: no sample rows, no report text, no paths. What is not known is left out,
with an HTML comment in its place.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, DataError
from ..evaluation.page import KEY_LABEL_SCORES, metric_name

TEMPLATES = Path(__file__).parent / "templates"
_TRAINING_RECORD = "rrg_training.json"
_PHANTOM = "phantom"
_STAGES = {
    "mem": "Masked Evidence Modeling (image encoder)",
    "align": "pathology-aware alignment (image and text encoders, prototypes)",
    "generate": "report generation (all but the prototypes)",
}
# Hyper-parameters of the stage table, in this order, where a stage recorded them.
_SETTINGS = {
    "learning_rate": "learning rate",
    "vision_learning_rate": "vision tower's rate",
    "per_device_train_batch_size": "batch per device",
    "gradient_accumulation_steps": "accumulation",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
}
# Scores of the card's table and of the Hub's model index, with the Hub's metric type.
_METRIC_TYPES = {
    **dict.fromkeys(KEY_LABEL_SCORES, "f1"),
    "rules_micro_precision": "precision",
    "rules_micro_recall": "recall",
    "bleu_1": "bleu",
    "bleu_2": "bleu",
    "bleu_3": "bleu",
    "bleu_4": "bleu",
    "rouge_l": "rouge",
    "cider": "cider",
    "meteor_1.5_java": "meteor",
    "meteor_nltk": "meteor",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def build_card(
    model_dir: str | os.PathLike[str],
    *,
    name: str | None = None,
    metrics: Any | None = None,
    evidence: Any | None = None,
    protocol: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    data: Mapping[str, str] | None = None,
    license: str | None = None,
    model_id: str | None = None,
) -> str:
    """The text of README.md for a checkpoint folder: YAML metadata and Markdown.

    Args:
        model_dir: a folder with config.json; its rrg_training.json is read unless `training` is given.
        name: the card's title; the folder's name by default.
        metrics: an `EvaluationResult` (or its `to_dict()`), or a mapping of split to one.
        evidence: an `EvidenceResult` (or its `to_dict()`).
        protocol: further lines for the protocol of the scores.
        training: the training record instead of the folder's own.
        data: data set name to a sentence about it. Names like "owner/name" also go into the metadata.
        license: the weights' license as the Hub names it, e.g. "apache-2.0". Not guessed: weights trained on
            credentialed data inherit that data's terms.
        model_id: Hub id for the quick start; a placeholder by default.

    Returns:
        The card.

    Raises:
        CheckpointError: no readable config.json in the folder, or a broken training record.
        DataError: metrics without scores.
    """
    from huggingface_hub import ModelCardData

    folder = Path(model_dir)
    config = _read_json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder} has no config.json. Give a checkpoint folder written by `save_pretrained`.")
    record = dict(training if training is not None else _read_json(folder / _TRAINING_RECORD) or {})
    stages = _stage_chain(record)
    sources = sorted({source for stage in stages for source in _sources(stage)})
    results = _by_split(metrics)
    title = name or folder.resolve().name
    table = _score_table(results)
    context = {
        "title": title,
        "model_id": model_id or "your-name/your-model",
        "model_type": str(config.get("model_type", "")),
        "phantom_only": sources == [_PHANTOM],
        "stages": [_stage_row(stage) for stage in stages],
        "columns": [label for key, label in _SETTINGS.items() if any(key in _hyperparameters(s) for s in stages)],
        "data": _data_lines(stages, data or {}),
        "parameters": record.get("parameters"),
        "scores": table,
        "protocol": _protocol_lines(results, protocol or {}),
        "evidence": _evidence_lines(evidence),
        "license": license,
        "versions": record.get("versions") or {},
    }
    datasets = [source for source in [*(data or {}), *sources] if _HUB_ID.fullmatch(source)]
    eval_results = _eval_results(results, sources) or None
    card_data = ModelCardData(
        language="en",
        license=license,
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        tags=["rrg_hf", "radiology", "chest-x-ray", "report-generation", *_model_tags(config, sources)],
        datasets=list(dict.fromkeys(datasets)) or None,
        model_name=title if eval_results else None,
        eval_results=eval_results,
    )
    return f"---\n{card_data.to_yaml()}\n---\n\n{_template().render(context)}"


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    return environment.get_template("report_generation.md")


def _cell(value: Any) -> str:
    """Text that cannot break a Markdown table or start HTML."""
    return str(value).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not valid JSON. Build the checkpoint again, or delete the file.") from error
    return content if isinstance(content, dict) else None


def _model_tags(config: Mapping[str, Any], sources: Sequence[str]) -> list[str]:
    return [str(config["model_type"])] * ("model_type" in config) + [_PHANTOM] * (list(sources) == [_PHANTOM])


def _stage_chain(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Training records from the first stage to the last."""
    chain: list[dict[str, Any]] = []
    stage: Any = record
    while isinstance(stage, Mapping) and stage:
        chain.append(dict(stage))
        stage = stage.get("previous_stage")
    return chain[::-1]


def _sources(stage: Mapping[str, Any]) -> list[str]:
    return [str(name) for entry in (stage.get("datasets") or {}).values() for name in entry.get("sources") or ()]


def _hyperparameters(stage: Mapping[str, Any]) -> Mapping[str, Any]:
    return stage.get("hyperparameters") or {}


def _stage_row(stage: Mapping[str, Any]) -> dict[str, Any]:
    settings = _hyperparameters(stage)
    best = stage.get("best_metric")
    metric = stage.get("metric_for_best_model")
    frozen = settings.get("vision_learning_rate") == 0
    return {
        "name": str(stage.get("stage", "")),
        "what": _STAGES.get(str(stage.get("stage")), "") + (", vision tower frozen" if frozen else ""),
        "settings": {label: settings.get(key, "") for key, label in _SETTINGS.items()},
        "steps": stage.get("global_step", ""),
        "best": f"{metric} {best:.3f}" if metric and isinstance(best, (int, float)) else "",
    }


def _data_lines(stages: Sequence[Mapping[str, Any]], data: Mapping[str, str]) -> list[str]:
    lines = [f"{name}: {about}" for name, about in data.items()]
    last = stages[-1].get("datasets") if stages else None
    for split, summary in (last or {}).items():
        count = next((summary[key] for key in ("studies", "rows", "n") if isinstance(summary.get(key), int)), None)
        names = ", ".join(str(name) for name in summary.get("sources") or ()) or "unnamed source"
        lines.append(f"{split}: {names}" + (f", {count:,} studies" if count is not None else ""))
    return lines


def _by_split(metrics: Any | None) -> dict[str, dict[str, Any]]:
    if metrics is None:
        return {}
    plain = _plain(metrics)
    results = {"": plain} if "scores" in plain else {str(split): _plain(entry) for split, entry in plain.items()}
    for split, result in results.items():
        if "scores" not in result:
            raise DataError(f"The metrics of {split!r} have no scores. Give EvaluationResult objects.")
    return results


def _plain(value: Any) -> dict[str, Any]:
    return dict(value.to_dict() if hasattr(value, "to_dict") else value)


def _known_scores(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Scores of the card that have a finite value, in the card's order."""
    scores = result["scores"]
    return {key: scores[key] for key in _METRIC_TYPES if key in scores and _is_number(scores[key].get("value"))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _with_interval(score: Mapping[str, Any]) -> str:
    text = f"{score['value']:.3f}"
    if _is_number(score.get("low")) and _is_number(score.get("high")):
        text += f" ({score['low']:.3f} to {score['high']:.3f})"
    return text


def _score_table(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    known = {split: _known_scores(result) for split, result in results.items()}
    keys = [key for key in _METRIC_TYPES if any(key in scores for scores in known.values())]
    if not keys:
        return None
    heads = [
        (split or "score") + (f", {results[split]['n']} studies" if results[split].get("n") else "") for split in known
    ]
    rows = []
    for key in keys:
        cells = [_with_interval(scores[key]) if key in scores else "" for scores in known.values()]
        rows.append({"name": metric_name(key), "cells": cells})
    return {"heads": heads, "rows": rows}


def _protocol_lines(results: Mapping[str, Mapping[str, Any]], extra: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What every reader of the scores must know; the whole protocol is in metrics.json."""
    shown = (
        "section",
        "cleaning",
        "tokenizer",
        "labeller",
        "labeller_version",
        "policy",
        "zero_division",
        "bootstrap",
    )
    first: Mapping[str, Any] = next((result.get("protocol") or {} for result in results.values()), {})
    lines = [(key, _text(first[key])) for key in shown if first.get(key) not in (None, "", {}, [])]
    lines += [(key, _text(value)) for key, value in extra.items()]
    absent = first.get("absent") or {}
    return lines + [(f"absent: {metric_name(key)}", str(reason)) for key, reason in absent.items()]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _evidence_lines(evidence: Any | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    result = _plain(evidence)
    rows = [
        {"region": region, "score": _with_interval(entry["score"]), "drop": _with_interval(entry["drop"])}
        for region, entry in result["regions"].items()
        if _is_number(entry["score"].get("value")) and _is_number(entry["drop"].get("value"))
    ]
    exceeds = result.get("anatomical_exceeds_background")
    return {
        "metric": metric_name(str(result["metric"])),
        "intact": _with_interval(result["intact"]) if result.get("intact") else "",
        "rows": rows,
        "masks": result.get("mask_kind", ""),
        "n": result.get("n"),
        "verdict": None if exceeds is None else bool(exceeds),
    }


def _eval_results(results: Mapping[str, Mapping[str, Any]], sources: Sequence[str]) -> list[Any]:
    from huggingface_hub import EvalResult

    entries = []
    for split, result in results.items():
        evaluated = (result.get("protocol") or {}).get("sources") or sources
        dataset = ", ".join(map(str, evaluated)) or "unnamed"
        for key, score in _known_scores(result).items():
            entries.append(
                EvalResult(
                    task_type="image-text-to-text",
                    task_name="radiology report generation",
                    dataset_type=dataset,
                    dataset_name=dataset,
                    dataset_split=split or None,
                    metric_type=_METRIC_TYPES[key],
                    metric_name=metric_name(key),
                    metric_value=round(float(score["value"]), 4),
                )
            )
    return entries
