"""An `EvaluationResult` as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..metrics.observation_scores import AVERAGES
from .result import EvaluationResult, Score
from .significance import ScoreComparison

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_TEXT_NAMES = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "meteor_1.5_java": "METEOR 1.5 (Java)",
    "meteor_nltk": "METEOR (nltk)",
}
_DETAILS = (
    "_precision", "_recall", "_precision_top5", "_recall_top5", "_label_accuracy", "_label_accuracy_top5"
)  # fmt: skip
_LOWER_IS_BETTER = ("radcliq_v0", "radcliq_v1")


def result_tables(result: EvaluationResult) -> list[RenderableType]:
    """Score tables, the table per observation and the lines of the protocol a reader must see.

    Args:
        result: of `evaluate_reports`.

    Returns:
        Renderables for `rich.console.Console.print`, in reading order.
    """
    from rich.text import Text

    parts: list[RenderableType] = []
    if any(name in _TEXT_NAMES for name in result.scores):
        parts.append(_text_table(result))
    labellers = [result.protocol.labeller, *result.more_observations] if result.observations else []
    clinical = [
        name
        for name in result.scores
        if name not in _TEXT_NAMES and not _of_labeller(name, labellers) and not name.endswith(_DETAILS)
    ]
    if clinical:
        parts.append(_clinical_table(result, clinical))
    for labeller in labellers:
        first = labeller == result.protocol.labeller
        table = result.observations if first else result.more_observations[labeller]
        parts += [_average_table(result, labeller), _observation_table(result, table, labeller)]
    parts.append(Text("\n".join(_notes(result))))
    return parts


def comparison_table(
    comparison: Mapping[str, ScoreComparison], names: Collection[str] | None = None
) -> RenderableType:
    """Differences between two systems with their intervals and p-values.

    Args:
        comparison: of `compare_reports`; `second` is the system the table is about.
        names: scores to show; default all but precisions, recalls and label accuracies.
    """
    columns = ("this", "other", "change", "interval", "p perm.", "p boot.")
    table = _table("Change against the other system (this minus other)", "score", *columns)
    for name, entry in comparison.items():
        if name in names if names is not None else not name.endswith(_DETAILS):
            numbers = [f"{entry.second:.3f}", f"{entry.first:.3f}", f"{entry.difference:+.3f}"]
            p_values = [f"{entry.p_permutation:.4f}", f"{entry.p_bootstrap:.4f}"]
            table.add_row(_TEXT_NAMES.get(name, name), *numbers, f"{entry.low:+.3f} – {entry.high:+.3f}", *p_values)
    return table


def _of_labeller(name: str, labellers: Collection[str]) -> bool:
    """Whether a score is of a labeller's tables, as "rules_micro_f1" is and "rules_radgraph_partial" is not."""
    kinds = (*AVERAGES, "label_accuracy", "exact_match")
    return any(name.startswith(f"{labeller}_{kind}") for labeller in labellers for kind in kinds)


def _interval(score: Score) -> str:
    if score["low"] is None or score["high"] is None or math.isnan(score["low"]):
        return ""
    return f"{score['low']:.3f} – {score['high']:.3f}"


def _number(score: Score) -> str:
    return "–" if score["value"] is None or math.isnan(score["value"]) else f"{score['value']:.3f}"


def _confidence(result: EvaluationResult) -> str:
    bootstrap = result.protocol.bootstrap
    return f"{100 * bootstrap['confidence']:g} % interval" if bootstrap else ""


def _table(title: str, first: str, *others: str) -> Table:
    """Narrow enough for 80 columns."""
    from rich import box
    from rich.table import Table

    table = Table(title=f"\n{title}", title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True, style="dim" if "interval" in name else None)
    return table


def _text_table(result: EvaluationResult) -> Table:
    table = _table(f"Text overlap, {result.n} studies", "score", "value", _confidence(result))
    for name, label in _TEXT_NAMES.items():
        if name in result.scores:
            table.add_row(label, _number(result.scores[name]), _interval(result.scores[name]))
    return table


def _clinical_table(result: EvaluationResult, names: Collection[str]) -> Table:
    table = _table(f"Clinical metrics, {result.n} studies", "score", "value", _confidence(result))
    for name in names:
        score = result.scores[name]
        label = f"{name} (lower is better)" if name in _LOWER_IS_BETTER else name
        table.add_row(label, _number(score), _interval(score))
    return table


def _average_table(result: EvaluationResult, labeller: str) -> Table:
    title = f"Observations by the '{labeller}' labeller, {result.n} studies"
    table = _table(title, "average", "F1", _confidence(result), "precision", "recall")
    for suffix, subset in (("", "all 14"), ("_top5", "top 5")):
        for average in AVERAGES:
            f1, precision, recall = (
                result.scores[f"{labeller}_{average}_{rate}{suffix}"] for rate in ("f1", "precision", "recall")
            )
            table.add_row(f"{average}, {subset}", _number(f1), _interval(f1), _number(precision), _number(recall))
        table.add_section()
    return table


def _observation_table(result: EvaluationResult, rows: Mapping[str, Mapping[str, Any]], labeller: str) -> Table:
    columns = ("support", "reported", "P", "R", "F1", _confidence(result))
    table = _table(f"Per observation, '{labeller}'", "observation", *columns)
    for name, row in rows.items():
        counts = [str(row["support"]), str(row["predicted"])]
        rates = [_number(row[rate]) for rate in ("precision", "recall", "f1")]
        table.add_row(name, *counts, *rates, _interval(row["f1"]))
    return table


def _notes(result: EvaluationResult) -> list[str]:
    protocol = result.protocol
    lines = [
        f"section {protocol.section}; cleaning '{protocol.cleaning}'; tokeniser '{protocol.tokenizer}'; "
        f"policy '{protocol.policy}'; 0/0 = {protocol.zero_division:g}"
    ]
    if protocol.phantom:
        lines.append("Phantom data: drawn studies, no patients.")
    lines += [f"left out: {entry['count']} ({reason})" for reason, entry in protocol.skipped.items()]
    if protocol.empty_predictions:
        lines.append(f"{protocol.empty_predictions} empty reports, scored 0")
    lines += [f"absent: {name} ({reason})" for name, reason in protocol.absent.items()]
    lines += [f"{name}: {count}" for name, count in protocol.counts.items() if count]
    lines += [f"{name}: {_reader_line(entry)}" for name, entry in protocol.scorers.items()]
    lines.append(_diversity_line(result.diversity))
    return lines


def _reader_line(protocol: Mapping[str, Any]) -> str:
    """Which weights or rules a metric used, as far as its protocol says in one place."""
    known = [protocol] + [entry for entry in protocol.values() if isinstance(entry, Mapping)]
    found = [f"{name} {entry[name]}" for entry in known for name in ("backend", "reader", "revision") if name in entry]
    return ", ".join(dict.fromkeys(found)) or "see the protocol"


def _diversity_line(diversity: Mapping[str, Mapping[str, Any]]) -> str:
    ours, theirs = diversity["predictions"], diversity["references"]
    return (
        f"unique reports: {ours['unique']} of {ours['reports']} (references {theirs['unique']}); the most frequent "
        f"one is {100 * ours['most_common_share']:.1f} % (references {100 * theirs['most_common_share']:.1f} %)"
    )
