"""`rrg evaluate`: scores of a reports file against references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def evaluate(
    reports: Path = typer.Argument(
        ..., help="reports.jsonl as written by `rrg generate`: study_id and report a line."
    ),
    references: Path = typer.Option(
        ...,
        "--references",
        "-r",
        help="Data set folder, .jsonl, .csv, or R2Gen annotation .json with the true reports.",
    ),
    output: Path = typer.Option(Path("metrics.json"), "--output", "-o", help="Scores with their protocol, as JSON."),
    per_sample: Path | None = typer.Option(None, "--per-sample", help="Also write one JSON line a study (no texts)."),
    split: str | None = typer.Option(
        None, "--split", help="Split of the references. Default: test, if they have any."
    ),
    section: str = typer.Option("findings", "--section", help="Reference text: findings, impression or a+b."),
    column: str | None = typer.Option(None, "--column", help="Read the reference text from this column instead."),
    metrics: str = typer.Option(
        "nlg,rules,meteor",
        "--metrics",
        help="Of nlg (BLEU, ROUGE-L, CIDEr), rules (observation P/R/F1) and meteor (METEOR 1.5 if Java is there, "
        "nltk's if WordNet is; adds about 10 s).",
    ),
    cleaning: str = typer.Option("default", "--cleaning", help="default, r2gen_mimic, r2gen_iu or none; both sides."),
    tokenizer: str | None = typer.Option(
        None, "--tokenizer", help="default, whitespace or ptb (Java). Default: whitespace with R2Gen cleaning."
    ),
    policy: str = typer.Option(
        "uncertain_as_positive",
        "--policy",
        help="uncertain_as_positive, uncertain_as_negative or uncertain_ignored.",
    ),
    zero_division: float = typer.Option(0.0, "--zero-division", help="Value of 0/0 in precision, recall and F1."),
    bootstrap: int = typer.Option(1000, "--bootstrap", help="Resamples for the intervals; 0 for none."),
    seed: int = typer.Option(0, "--seed", min=0, max=2**32 - 1, help="Seed of the bootstrap."),
    allow_missing: bool = typer.Option(
        False, "--allow-missing", help="Leave out studies without a prediction instead of failing."
    ),
    compare_with: Path | None = typer.Option(
        None, "--compare-with", help="Another reports.jsonl on the same studies: adds paired tests against it."
    ),
) -> None:
    """Score generated reports: BLEU-1..4, ROUGE-L, CIDEr, METEOR, and observation precision, recall and F1.

    Every score comes with a bootstrap interval, and the protocol is saved beside it. References are never truncated.
    """
    from rich.console import Console

    from ..errors import ConfigError
    from ..evaluation.inputs import read_references, read_reports
    from ..evaluation.protocol import text_sha256
    from ..evaluation.run import compare_reports, evaluate_reports
    from ..evaluation.significance import check_resampling
    from ..evaluation.tables import comparison_table, result_tables

    names = tuple(name.strip() for name in metrics.split(",") if name.strip())
    if compare_with is not None and allow_missing:
        raise ConfigError("--compare-with needs both systems' reports for every study; drop --allow-missing.")
    check_resampling(bootstrap, 0.95)
    settings: dict[str, Any] = {
        "metrics": names,
        "cleaning": cleaning,
        "tokenizer": tokenizer,
        "policy": policy,
        "zero_division": zero_division,
    }
    predicted = read_reports(reports)
    other = read_reports(compare_with) if compare_with is not None else None
    truth = read_references(references, split=split, section=section, column=column)
    result = evaluate_reports(
        predicted.reports,
        truth.texts,
        **settings,
        bootstrap=bootstrap,
        seed=seed,
        section=section,
        allow_missing=allow_missing,
        sources=truth.sources,
        generation=predicted.generation,
    )
    result.protocol.split, result.protocol.column = truth.split, truth.column
    console = Console()
    for part in result_tables(result):
        console.print(part)
    if other is not None and compare_with is not None:
        tests: dict[str, Any] = {"resamples": bootstrap or 1000, "permutations": 1000, "seed": seed}
        comparison = compare_reports(
            other.reports, predicted.reports, truth.texts, **settings, **tests, section=section
        )
        result.comparison = {
            "file": compare_with.name,
            "sha256": text_sha256(other.reports),
            **tests,
            "scores": {name: entry.to_dict() for name, entry in comparison.items()},
        }
        console.print(comparison_table(comparison))
    result.save(output, per_sample=per_sample)
    console.print(f"Scores written to {output}" + (f", rows per study to {per_sample}" if per_sample else ""))
