"""`rrg experts`: how well the pathology experts of a LEAD model tell the observations of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..evaluation.experts import ExpertResult

_FIRST_IDS = 5


def experts(
    model: str = typer.Argument(..., help="LEAD checkpoint folder or Hub id."),
    data: str = typer.Option(..., "--data", "-d", help="Saved data set of Study rows, or a Hub data set id."),
    split: str = typer.Option("test", "--split", help="Split of the data set."),
    output: Path = typer.Option(Path("experts.json"), "--output", "-o", help="Scores with their protocol, as JSON."),
    probabilities: Path | None = typer.Option(
        None, "--probabilities", help="Also write one JSON line a study with its probabilities and labels."
    ),
    label_source: str = typer.Option(
        "rules",
        "--label-source",
        help="Reference labels: rules or chexbert read the report; study: the data set's own labels; column: its "
        "column expert_labels.",
    ),
    label_model: str | None = typer.Option(
        None, "--label-model", help="CheXbert folder or Hub id. Default: the prepared one (`rrg metrics prepare`)."
    ),
    section: str = typer.Option("findings", "--section", help="The report section that is read for labels."),
    policy: str = typer.Option(
        "uncertain_ignored", "--policy", help="uncertain_ignored, uncertain_as_positive or uncertain_as_negative."
    ),
    threshold: float | None = typer.Option(
        None, "--threshold", help="Probability from which an observation counts as predicted. Default: the model's."
    ),
    bootstrap: int = typer.Option(1000, "--bootstrap", help="Resamples for the intervals; 0 for none."),
    seed: int = typer.Option(0, "--seed", help="Seed of the resamples."),
    batch_size: int = typer.Option(16, "--batch-size", min=1, help="Studies per batch. No effect on the scores."),
    cache_dir: Path | None = typer.Option(
        None, "--cache-dir", help="Keep what CheXbert read here, for the next run. May quote report text."
    ),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, mps, ..."),
    revision: str | None = typer.Option(None, "--revision", help="Branch, tag or commit of a model on the Hub."),
) -> None:
    """Score a LEAD model's experts: macro and micro AUROC, accuracy, and each observation with its support.

    Only the visual tower and the experts run. Studies without an image and labels that are not known are left out
    and counted; observations with one state only have no AUROC and are named.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..data.store import load_studies
    from ..errors import ConfigError
    from ..evaluation.experts import check_source, evaluate_experts, require_experts
    from ..pipeline import load_report_model
    from .generate import _device

    for path in (output, probabilities):
        if path is not None and path.is_dir():
            raise ConfigError(f"{path} is a folder. Name a file.")
    check_source(label_source, policy=policy, label_model=label_model)
    place = _device(device)
    rows = load_studies(data, split)
    loaded = load_report_model(model, revision=revision)
    require_experts(loaded.model)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("experts", total=len(rows))
        result = evaluate_experts(
            loaded.model.to(place),
            loaded.processor,
            rows,
            label_source=label_source,
            label_model=label_model,
            section=section,
            policy=policy,
            threshold=threshold,
            bootstrap=bootstrap,
            seed=seed,
            batch_size=batch_size,
            cache_dir=cache_dir,
            progress=lambda done, _: progress.update(task, completed=done),
        )
    result.protocol |= {"model": loaded.name, "revision": loaded.revision, "split": split}
    result.save(output, per_study=probabilities)
    show(result)
    typer.echo(f"Scores: {output}" + (f", probabilities: {probabilities}" if probabilities else ""))


def show(result: ExpertResult) -> None:
    """Print scores, the table per observation, and what was left out."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ..evaluation.charts import score_cell

    console = Console()
    scores = Table(title=f"\nPathology experts, {result.n} studies", title_justify="left", box=box.SIMPLE_HEAD)
    scores.add_column("score")
    scores.add_column("value", justify="right")
    scores.add_column("interval", style="dim")
    for name, score in result.scores.items():
        cell = score_cell(score)
        scores.add_row(name, cell["text"], cell["interval"])
    scores.add_row("accuracy of the commoner state", f"{result.majority_accuracy:.3f}", "")
    # narrow enough for 80 columns
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("observation", no_wrap=True)
    for name in ("present", "absent", "unknown", "AUROC", "interval", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True, style="dim" if name == "interval" else None)
    for name, entry in result.observations.items():
        area, right = score_cell(entry["auroc"]), score_cell(entry["accuracy"])
        counts = [f"{entry[key]:,}" for key in ("positives", "negatives", "unknown")]
        table.add_row(name, *counts, area["text"], area["interval"], right["text"])
    console.print(scores, table)
    if result.protocol.get("expert_loss_weight") == 0:
        console.print("The model's expert_loss_weight is 0: nobody taught its experts these labels.")
    for name, reason in result.absent.items():
        console.print(f"{name} has no AUROC: {reason}.", markup=False)
    counts = result.protocol["counts"]
    console.print(
        f"{counts['unknown_labels']:,} of {counts['known_labels'] + counts['unknown_labels']:,} labels are unknown, "
        f"{counts['without_known_label']} studies have no known label."
    )
    for reason, skipped in result.protocol["skipped"].items():
        first = ", ".join(skipped["first_ids"][:_FIRST_IDS])
        console.print(f"{skipped['count']} studies left out, {reason}: {first}", markup=False)
