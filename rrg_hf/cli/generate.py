"""`rrg generate`: radiographs in, `reports.jsonl` out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..data.generation_inputs import CollectedInputs, StudyInput
    from ..data.report_file import ReportFile
    from ..pipeline import ReportGenerationPipeline, ReportModel

PHANTOM_WARNING = "this model knows only the phantom; its text about a real image means nothing"
_NAMED = 10  # skipped inputs printed by name; the file lists all


def generate(
    model: str = typer.Argument(..., help="Checkpoint folder (of a LEAD adapter, too) or Hub id."),
    inputs: list[str] = typer.Argument(
        ...,
        metavar="INPUT...",
        help="Image files (PNG, JPEG, DICOM, ...), folders of them, saved data sets, or Hub data set ids.",
    ),
    output: Path = typer.Option(
        "reports.jsonl", "--output", "-o", help="Where to write, one JSON line a study. Resumed if it exists."
    ),
    split: str | None = typer.Option(None, help="Split of a data set; needed where there are several."),
    batch_size: int = typer.Option(8, min=1, help="Studies per batch."),
    indication: str | None = typer.Option(
        None, help="Indication for the studies that bring none of their own, e.g. 'Cough and fever.'"
    ),
    num_beams: int | None = typer.Option(
        None, min=1, help="Beams of the beam search; 1 is greedy. Default: the checkpoint's own (PALM 1, LEAD 2)."
    ),
    max_new_tokens: int | None = typer.Option(
        None, min=1, help="Longest report, in tokens. Default: 128, or what the decoder has room for."
    ),
    do_sample: bool = typer.Option(False, "--do-sample", help="Sample instead of taking the likeliest report."),
    seed: int = typer.Option(0, min=0, max=2**32 - 1, help="Seed of the sampling."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:1, mps, ..."),
    revision: str | None = typer.Option(None, help="Branch, tag or commit of a model on the Hub."),
) -> None:
    """Write a report for every radiograph.

    Of a study with several images one is looked at, the first frontal one if the views are known.

    Resumes: studies that the output already holds are left alone, if model and settings agree. Images that are missing
    or cannot be read are skipped and listed (also in OUTPUT's .skipped.jsonl). The exit code is 0 if the output holds
    at least one report, 1 if it holds none, 2 for a setting or an input that cannot work.
    """
    from ..data.generation_inputs import collect_inputs
    from ..data.report_file import ReportFile
    from ..errors import ConfigError
    from ..pipeline import ReportGenerationPipeline, load_report_model

    place = _device(device)
    collected = collect_inputs(inputs, split=split)
    _say_ignored(collected)
    loaded = load_report_model(model, revision=revision, max_new_tokens=max_new_tokens)
    _say_model(loaded)
    if indication is not None and not loaded.text_settings.get("use_indication", True):
        raise ConfigError(
            f"{loaded.name} was trained without indications (use_indication: false) and reads none. Leave out "
            "--indication."
        )
    if do_sample and num_beams is None:
        num_beams = 1
    generation = {"num_beams": num_beams, "max_new_tokens": max_new_tokens, "do_sample": do_sample}
    pipeline = ReportGenerationPipeline(
        loaded.model,
        loaded.processor,
        device=place,
        **loaded.text_settings,
        **{name: value for name, value in generation.items() if value is not None},
    )
    settings = pipeline.decoding
    if do_sample:
        settings["seed"] = seed
    if indication is not None:
        settings["indication"] = indication
    identity = {"model": loaded.name, "revision": loaded.revision, "settings": settings}
    with ReportFile(output, identity) as file:
        if file.repaired:
            typer.echo(f"{output.name}: the last line was torn (a killed run?) and has been cut off.", err=True)
        todo = [study for study in collected.studies if study.study_id not in file.done]
        there = len(collected.studies) - len(todo)
        if there:
            typer.echo(f"{there} of {len(collected.studies)} are already there.", err=True)
        skipped = _write_all(pipeline, file, todo, batch_size, indication, loaded, seed if do_sample else None)
        kept = len(file.done)
    _say_skipped(skipped, output)
    typer.echo(f"{len(todo) - len(skipped)} reports written, {kept} in {output}", err=True)
    if not kept:
        raise typer.Exit(1)


def _device(name: str) -> Any:
    import torch

    from ..errors import ConfigError

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device. Use auto, cpu, cuda, cuda:1 or mps.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"There is no CUDA device for --device {name}. Use cpu or auto.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: there are only {torch.cuda.device_count()} CUDA devices.")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # torch knows more kinds of devices than this machine or build has
        raise ConfigError(f"--device {name} does not work here. Use auto, cpu, cuda, cuda:1 or mps.") from error
    return device


def _write_all(
    pipeline: ReportGenerationPipeline,
    file: ReportFile,
    studies: Sequence[StudyInput],
    batch_size: int,
    indication: str | None,
    loaded: ReportModel,
    seed: int | None,
) -> list[tuple[StudyInput, str]]:
    """Generate and write batch by batch; returns what was skipped and why."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..errors import RrgError

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    skipped: list[tuple[StudyInput, str]] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("reports", total=len(studies))
        for start in range(0, len(studies), batch_size):
            batch: list[tuple[StudyInput, dict[str, Any]]] = []
            for study in studies[start : start + batch_size]:
                try:
                    image, own = study.read()
                    given = pipeline.preprocess({"image": image, "indication": own}, indication=indication)
                    batch.append((study, given))
                except RrgError as error:
                    skipped.append((study, str(error)))
            if batch:
                batch_seed = None if seed is None else seed + start
                reports = _generate(pipeline, [given for _, given in batch], batch_seed)
                file.append(
                    {
                        "study_id": study.study_id,
                        "report": report,
                        "images": list(study.images),
                        "source": f"trained on {', '.join(loaded.sources)}" if loaded.sources else None,
                    }
                    for (study, _), report in zip(batch, reports, strict=True)
                )
            progress.advance(task, min(batch_size, len(studies) - start))
    return skipped


def _generate(pipeline: ReportGenerationPipeline, prepared: list[dict[str, Any]], seed: int | None) -> list[str]:
    import torch

    from ..errors import ConfigError

    if seed is not None:
        torch.manual_seed(seed)
    try:
        return pipeline.write(prepared)
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            f"The device has too little memory for {len(prepared)} studies at once. Use a smaller --batch-size."
        ) from error


def _say_model(loaded: ReportModel) -> None:
    typer.echo(f"{loaded.name} ({loaded.revision})", err=True)
    if loaded.phantom_only:
        typer.echo(f"Note: {PHANTOM_WARNING}.", err=True)
    if loaded.stage not in (None, "generate"):
        typer.echo(
            f"Warning: the last finished training stage of this checkpoint is {loaded.stage!r}; its decoder has not "
            "learnt to write reports.",
            err=True,
        )


def _say_ignored(collected: CollectedInputs) -> None:
    if collected.ignored:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in collected.ignored.most_common())
        typer.echo(f"Left alone in the folders, as they are no images: {kinds}.", err=True)
    if collected.duplicates:
        typer.echo(f"{collected.duplicates} files were named more than once; each gets one report.", err=True)


def _say_skipped(skipped: Sequence[tuple[StudyInput, str]], output: Path) -> None:
    import json

    from ..evaluation.result import write_atomically

    listing = output.with_name(f"{output.stem}.skipped.jsonl")
    if not skipped:
        listing.unlink(missing_ok=True)  # of an earlier run, whose bad files have been mended since
        return
    rows = [{"study_id": study.study_id, "images": list(study.images), "reason": why} for study, why in skipped]
    write_atomically(listing, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    typer.echo(f"{len(skipped)} skipped:", err=True)
    for study, why in skipped[:_NAMED]:
        typer.echo(f"  {study.study_id}: {why}", err=True)
    if len(skipped) > _NAMED:
        typer.echo(f"  ... and {len(skipped) - _NAMED} more", err=True)
    typer.echo(f"All of them are listed in {listing}", err=True)
