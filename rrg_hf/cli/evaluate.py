"""`rrg evaluate`: scores of a reports file against references."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..evaluation.result import EvaluationResult
    from ..evaluation.settings import ScoreSettings
    from ..evaluation.summary import Resampling

_DATA, _SCORES, _SCALE = "Data", "Scores", "Networks and large files"


def evaluate(
    reports: Path = typer.Argument(
        ..., help="reports.jsonl as written by `rrg generate`: study_id and report a line; may hold reference too."
    ),
    references: Path = typer.Option(
        None,
        "--references",
        "-r",
        help="Data set folder, .jsonl, .csv, or R2Gen annotation .json with the true reports. Default: the reports "
        "file's own column 'reference'.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
    output: Path = typer.Option(
        Path("metrics.json"), "--output", "-o", help="Scores with their protocol, as JSON.", rich_help_panel=_DATA
    ),
    per_sample: Path | None = typer.Option(
        None, "--per-sample", help="Also write one JSON line a study (no texts).", rich_help_panel=_DATA
    ),
    versus: Path | None = typer.Option(
        None,
        "--versus",
        help="Another reports.jsonl on the same studies: adds paired tests against it.",
        rich_help_panel=_DATA,
    ),
    split: str | None = typer.Option(
        None, "--split", help="Split of the references. Default: test, if they have any.", rich_help_panel=_DATA
    ),
    section: str = typer.Option(
        "findings", "--section", help="Reference text: findings, impression or a+b.", rich_help_panel=_DATA
    ),
    column: str | None = typer.Option(
        None, "--column", help="Read the reference text from this column instead.", rich_help_panel=_DATA
    ),
    allow_missing: bool = typer.Option(
        False,
        "--allow-missing",
        help="Leave out studies without a prediction instead of failing.",
        rich_help_panel=_DATA,
    ),
    metrics: str = typer.Option(
        "nlg,rules,meteor",
        "--metrics",
        help="Of nlg (BLEU, ROUGE-L, CIDEr), rules (observation P/R/F1 by the rule labeller), meteor (METEOR 1.5 if "
        "Java is there, nltk's if WordNet is; about 10 s); with networks: chexbert, radgraph, ratescore, radcliq, "
        "green, bertscore (see `rrg metrics`).",
        rich_help_panel=_SCORES,
    ),
    settings: list[str] = typer.Option(
        None,
        "--set",
        help="METRIC.SETTING=VALUE, as often as needed: radgraph.backend=rules, chexbert.model=FOLDER, "
        "radcliq.version=v0.",
        show_default=False,
        rich_help_panel=_SCORES,
    ),
    cleaning: str = typer.Option(
        "default",
        "--cleaning",
        help="default, r2gen_mimic, r2gen_iu, r2gengpt_mimic or none; both sides, for nlg and meteor.",
        rich_help_panel=_SCORES,
    ),
    clinical_cleaning: str = typer.Option(
        "default",
        "--clinical-cleaning",
        help="The same for all other metrics; none is what the published packages do.",
        rich_help_panel=_SCORES,
    ),
    tokenizer: str | None = typer.Option(
        None,
        "--tokenizer",
        help="default, whitespace, full_stop or ptb (Java). Default: whitespace with R2Gen cleaning.",
        rich_help_panel=_SCORES,
    ),
    policy: str = typer.Option(
        "uncertain_as_positive",
        "--policy",
        help="uncertain_as_positive, uncertain_as_negative or uncertain_ignored.",
        rich_help_panel=_SCORES,
    ),
    zero_division: float = typer.Option(
        0.0, "--zero-division", help="Value of 0/0 in precision, recall and F1.", rich_help_panel=_SCORES
    ),
    bootstrap: int = typer.Option(
        1000, "--bootstrap", help="Resamples for the intervals; 0 for none.", rich_help_panel=_SCORES
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the bootstrap.", rich_help_panel=_SCORES),
    device: str | None = typer.Option(
        None, "--device", help="cpu, cuda, cuda:1, mps. Default: a GPU if there is one.", rich_help_panel=_SCALE
    ),
    dtype: str | None = typer.Option(None, "--dtype", help="float32, bfloat16 or float16.", rich_help_panel=_SCALE),
    batch_size: int | None = typer.Option(
        None, "--batch-size", help="Texts per batch of a network. No effect on the scores.", rich_help_panel=_SCALE
    ),
    cache_dir: Path | None = typer.Option(
        None,
        "--cache-dir",
        help="Keep what the networks read from references here, for the next run. May quote their text.",
        rich_help_panel=_SCALE,
    ),
    shards: Path | None = typer.Option(
        None,
        "--shards",
        help="Score piece by piece in constant memory and keep finished pieces in this folder: start again to "
        "continue, or `accelerate launch -m rrg_hf.cli evaluate ...` for several processes. Takes .jsonl files.",
        rich_help_panel=_SCALE,
    ),
    shard_size: int = typer.Option(5_000, "--shard-size", help="Studies per shard.", rich_help_panel=_SCALE),
) -> None:
    """Score generated reports: text overlap, observation F1, and the published clinical metrics.

    Every score comes with a bootstrap interval, and the protocol is saved beside it. References are never truncated.
    """
    from ..errors import ConfigError
    from ..evaluation.settings import ScoreSettings
    from ..evaluation.summary import Resampling

    chosen = ScoreSettings(
        metrics=tuple(name.strip() for name in metrics.split(",") if name.strip()),
        cleaning=cleaning,
        tokenizer=tokenizer,
        policy=policy,
        zero_division=zero_division,
        clinical_cleaning=clinical_cleaning,
        options=_options(settings or []),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        cache_dir=cache_dir,
    )
    chosen.check()
    resampling = Resampling(bootstrap, seed=seed)
    resampling.check()
    if versus is not None and allow_missing:
        raise ConfigError("--versus needs both systems' reports for every study; drop --allow-missing.")
    where: dict[str, Any] = {"split": split, "section": section, "column": column}
    if shards is not None:
        from ..evaluation.pair_index import PairSources

        sources = PairSources(reports, references, versus, **where)
        result = _in_shards(sources, shards, shard_size, chosen, resampling, allow_missing, per_sample)
    else:
        result = _in_memory(reports, references, versus, where, chosen, resampling, allow_missing)
    if result is None:  # another process of this launch writes the scores
        return
    if versus is not None:
        result.comparison = {"file": versus.name, **result.comparison}
    _show(result, output, per_sample, sharded=shards is not None)


def _options(settings: list[str]) -> dict[str, dict[str, Any]]:
    """{"radgraph": {"backend": "rules"}} from ["radgraph.backend=rules"]; JSON numbers, booleans and null are read."""
    import json

    from ..errors import ConfigError

    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        metric, dot, name = path.strip().partition(".")
        if not (equals and dot and metric and name):
            raise ConfigError(f"--set {setting!r} is not METRIC.SETTING=VALUE, such as radgraph.backend=rules.")
        if name in options.setdefault(metric, {}):
            raise ConfigError(f"--set {metric}.{name} is given twice.")
        try:
            options[metric][name] = json.loads(text)
        except json.JSONDecodeError:
            options[metric][name] = text
    return options


class _Bars:
    """Progress bars, one per stage, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.advance(self._tasks[stage], done)


def _in_memory(
    reports: Path,
    references: Path | None,
    versus: Path | None,
    where: dict[str, Any],
    chosen: ScoreSettings,
    resampling: Resampling,
    allow_missing: bool,
) -> EvaluationResult:
    from dataclasses import fields

    from ..evaluation.inputs import read_pairs, read_references, read_reports
    from ..evaluation.run import evaluate_reports

    if references is None:
        predicted, truth = read_pairs(reports)
    else:
        predicted, truth = read_reports(reports), read_references(references, **where)
    other = read_reports(versus).reports if versus is not None else None
    with _Bars() as progress:
        result = evaluate_reports(
            predicted.reports,
            truth.texts,
            **{field.name: getattr(chosen, field.name) for field in fields(chosen)},
            bootstrap=resampling.bootstrap,
            seed=resampling.seed,
            section=where["section"],
            allow_missing=allow_missing,
            versus=other,
            sources=truth.sources,
            generation=predicted.generation,
            progress=progress,
        )
    result.protocol.split, result.protocol.column = truth.split, truth.column
    return result


def _in_shards(
    sources: Any,
    folder: Path,
    shard_size: int,
    chosen: ScoreSettings,
    resampling: Resampling,
    allow_missing: bool,
    per_sample: Path | None,
) -> EvaluationResult | None:
    from ..evaluation.shards import evaluate_shards

    with _Bars() as progress:
        return evaluate_shards(
            sources,
            folder,
            chosen,
            shard_size=shard_size,
            resampling=resampling,
            allow_missing=allow_missing,
            per_sample=per_sample,
            progress=progress,
        )


def _show(result: EvaluationResult, output: Path, per_sample: Path | None, *, sharded: bool) -> None:
    from rich.console import Console

    from ..evaluation.significance import ScoreComparison
    from ..evaluation.tables import comparison_table, result_tables

    console = Console()
    for part in result_tables(result):
        console.print(part)
    if result.comparison:
        scores = result.comparison["scores"]
        console.print(comparison_table({name: ScoreComparison(**entry) for name, entry in scores.items()}))
    result.save(output, per_sample=None if sharded else per_sample)
    console.print(f"Scores written to {output}" + (f", rows per study to {per_sample}" if per_sample else ""))
