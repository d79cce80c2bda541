"""`rrg page`: a model's reports, scores and evidence test on a data set, as one page to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from PIL import Image

    from ..evaluation.evidence import EvidenceResult
    from ..evaluation.experts import ExpertResult
    from ..evaluation.inputs import ReportsFile
    from ..evaluation.result import EvaluationResult
    from ..pipeline import ReportGenerationPipeline, ReportModel

# What `rrg generate` records of its decoding, besides sampling.
_DECODING = ("num_beams", "max_new_tokens", "repetition_penalty", "length_penalty")


def page(
    data: str = typer.Option(..., "--data", "-d", help="Saved data set of Study rows, or a Hub data set id."),
    model: str | None = typer.Option(
        None, "--model", "-m", help="Checkpoint folder or Hub id. Without it, --reports are scored and shown only."
    ),
    reports: Path | None = typer.Option(
        None, "--reports", help="Reports of this model by `rrg generate`, instead of writing them here."
    ),
    split: str = typer.Option("test", "--split", help="Split of the data set."),
    output: Path = typer.Option(
        Path("page.html"), "--output", "-o", help="The page. Its numbers go beside it, with the suffix .json."
    ),
    title: str | None = typer.Option(None, "--title", help="Heading. Default: names of model and data."),
    section: str = typer.Option("findings", "--section", help="Reference text: findings or impression."),
    metrics: str = typer.Option("nlg,rules", "--metrics", help="Groups of scores, as in `rrg evaluate`."),
    allow_missing: bool = typer.Option(
        False, "--allow-missing", help="Leave out studies without a report instead of failing."
    ),
    bootstrap: int = typer.Option(1000, "--bootstrap", min=20, help="Resamples for the intervals."),
    cases: int = typer.Option(8, "--cases", min=0, help="Studies to show, with a heat map per sentence."),
    evidence: int = typer.Option(
        100, "--evidence", min=0, help="Studies of the evidence test, spread evenly; 0 leaves it out."
    ),
    num_beams: int | None = typer.Option(
        None, "--num-beams", min=1, help="Beams of the beam search; 1 is greedy. Default: the checkpoint's own."
    ),
    max_new_tokens: int | None = typer.Option(
        None, "--max-new-tokens", min=1, help="Longest report, in tokens. Default: 128, or what the decoder takes."
    ),
    batch_size: int = typer.Option(8, "--batch-size", min=1, help="Studies per batch."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, mps, ..."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples."),
    label_source: str = typer.Option(
        "rules", "--label-source", help="Reference labels of a LEAD model's experts, as in `rrg experts`."
    ),
) -> None:
    """Write an evaluation page: scores with intervals, the evidence test, and cases with a heat map per sentence.

    Without --reports, they are written to OUTPUT's .reports.jsonl first; an interrupted run goes on from there. The
    page shows images and report text: keep it where the data may be kept.
    """
    from ..data.store import load_studies
    from ..evaluation import evaluate_reports
    from ..evaluation.experts import expert_config
    from ..evaluation.page import write_page
    from ..evaluation.page_experts import read_experts_with, with_experts
    from ..evaluation.page_studies import explain_with, run_curves, study_cases
    from ..evaluation.protocol import library_versions
    from ..pipeline import load_report_model
    from ..trainers.palm_config import STAGES

    groups = tuple(name.strip() for name in metrics.split(",") if name.strip())
    _check(model, reports, output, section, groups, label_source)
    rows = load_studies(data, split)
    if reports is None:
        reports = _write_reports(str(model), data, split, output, batch_size, num_beams, max_new_tokens, device)
    loaded = load_report_model(model) if model else None
    predicted = _read(reports, loaded)
    result = evaluate_reports(
        predicted.reports,
        dict(zip(rows["study_id"], rows[section], strict=True)),
        metrics=groups,
        bootstrap=bootstrap,
        seed=seed,
        section=section,
        allow_missing=allow_missing,
        sources=set(rows.unique("source")),
        generation=predicted.generation,
    )
    result.protocol.split = split
    name, tested, explain, read_experts, scored = reports.name, None, None, None, None
    if loaded is not None:
        name = loaded.name
        pipeline = _as_written(loaded, predicted, device, num_beams, max_new_tokens)
        result.protocol.versions |= library_versions(networks=True)
        there = [at for at, study_id in enumerate(rows["study_id"]) if study_id in predicted.reports]
        chosen = rows.select(_spread(there, evidence))
        tested = _evidence(pipeline, chosen, section, bootstrap, seed, batch_size) if len(chosen) else None
        explain = _as_the_model_reads(explain_with(pipeline.model, pipeline.processor), pipeline)
        if expert_config(pipeline.model) is not None:
            read_experts = _as_the_model_reads(read_experts_with(pipeline.model, pipeline.processor), pipeline)
            scored = _experts(pipeline, rows.select(there), section, label_source, bootstrap, seed, batch_size)
    shown = study_cases(rows, predicted.reports, count=cases, explain=explain, section=section, split=split)
    write_page(
        output,
        title=title or f"{name} on {Path(data).name}, {split}",
        cases=with_experts(shown, read_experts) if read_experts else shown,
        results={name: {split: result}},
        evidence={split: tested} if tested else None,
        experts={split: scored} if scored else None,
        curves=run_curves(model, STAGES) if model else (),
    )
    _write_numbers(output.with_suffix(".json"), result, tested, scored)
    _say(result, tested, output)


def _check(
    model: str | None,
    reports: Path | None,
    output: Path,
    section: str,
    metrics: tuple[str, ...],
    label_source: str,
) -> None:
    """What can be known to fail before anything is loaded."""
    from ..data.study import TEXT_FIELDS
    from ..errors import ConfigError
    from ..evaluation.experts import check_source
    from ..evaluation.settings import ScoreSettings

    if model is None and reports is None:
        raise ConfigError("There is nothing to show: give --model, which writes reports, or --reports.")
    if section not in TEXT_FIELDS:
        raise ConfigError(f"--section {section!r} is no text of a study. There are {', '.join(TEXT_FIELDS)}.")
    if output.is_dir() or output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output {output} must be a file that ends in .html.")
    check_source(label_source)
    ScoreSettings(metrics=metrics).check()


def _write_reports(
    model: str,
    data: str,
    split: str,
    output: Path,
    batch_size: int,
    num_beams: int | None,
    max_new_tokens: int | None,
    device: str,
) -> Path:
    from .generate import generate

    target = output.with_suffix(".reports.jsonl")
    generate(
        model,
        [data],
        output=target,
        split=split,
        batch_size=batch_size,
        indication=None,
        num_beams=num_beams,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        seed=0,
        device=device,
        revision=None,
    )
    return target


def _read(reports: Path, loaded: ReportModel | None) -> ReportsFile:
    from ..errors import ConfigError
    from ..evaluation.inputs import read_reports

    predicted = read_reports(reports)
    revisions = predicted.generation.get("revisions", [])
    if loaded is not None and revisions and revisions != [loaded.revision]:
        raise ConfigError(
            f"{reports.name} was written by {', '.join(map(str, revisions))}, but --model is {loaded.revision}: the "
            "evidence and the heat maps would be another model's. Give the model that wrote the reports."
        )
    return predicted


def _as_written(
    loaded: ReportModel, predicted: ReportsFile, device: str, num_beams: int | None, max_new_tokens: int | None
) -> ReportGenerationPipeline:
    """The model with the settings that the reports were written with, as far as their file states them."""
    from ..pipeline import ReportGenerationPipeline
    from .generate import _device

    stated = predicted.generation.get("settings") or [{}]
    settings: Mapping[str, Any] = stated[0] if isinstance(stated[0], Mapping) else {}
    if settings.get("do_sample"):
        typer.echo(
            "The reports were sampled; the evidence test writes the likeliest ones, or a drop may be chance.", err=True
        )
    decoding = {"num_beams": num_beams, "max_new_tokens": max_new_tokens} | {
        name: settings[name] for name in _DECODING if name in settings
    }
    return ReportGenerationPipeline(
        loaded.model,
        loaded.processor,
        device=_device(device),
        do_sample=False,
        indication=settings.get("indication"),
        **loaded.text_settings,
        **{name: value for name, value in decoding.items() if value is not None},
    )


def _as_the_model_reads(look: Callable[..., Any], pipeline: ReportGenerationPipeline) -> Callable[..., Any]:
    """`look` with a study's indication as the pipeline passed it to the model."""

    def looked(image: Image.Image, report: str, indication: str | None) -> Any:
        return look(image, report, pipeline.model_indication(indication))

    return looked


def _spread(places: list[int], count: int) -> list[int]:
    """At most `count` of the places, spread evenly."""
    if count >= len(places):
        return places
    return [places[at * len(places) // count] for at in range(count)]


def _evidence(
    pipeline: ReportGenerationPipeline, rows: Any, section: str, bootstrap: int, seed: int, batch_size: int
) -> EvidenceResult:
    from ..evaluation import evidence_test
    from ..evaluation.protocol import library_versions

    typer.echo(f"Evidence test on {len(rows)} studies ...", err=True)
    tested = evidence_test(
        pipeline.write_studies, rows, section=section, bootstrap=bootstrap, seed=seed, batch_size=batch_size
    )
    tested.protocol["versions"] |= library_versions(networks=True)
    return tested


def _experts(
    pipeline: ReportGenerationPipeline,
    rows: Any,
    section: str,
    label_source: str,
    bootstrap: int,
    seed: int,
    batch_size: int,
) -> ExpertResult:
    from ..evaluation.experts import evaluate_experts

    typer.echo(f"Experts on {len(rows)} studies ...", err=True)
    return evaluate_experts(
        pipeline.model,
        pipeline.processor,
        rows,
        label_source=label_source,
        section=section,
        bootstrap=bootstrap,
        seed=seed,
        batch_size=batch_size,
    )


def _write_numbers(
    path: Path, result: EvaluationResult, tested: EvidenceResult | None, scored: ExpertResult | None
) -> None:
    import json

    from ..evaluation.result import write_atomically

    numbers = {"result": result.to_dict(), "evidence": tested.to_dict() if tested else None}
    if scored is not None:
        numbers["experts"] = scored.to_dict()
    write_atomically(path, json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def _say(result: EvaluationResult, tested: EvidenceResult | None, output: Path) -> None:
    from rich.console import Console

    from ..evaluation.tables import result_tables

    console = Console()
    for part in result_tables(result):
        console.print(part)
    if tested:
        drops = ", ".join(f"{name} {entry['drop']['value']:+.3f}" for name, entry in tested.regions.items())
        console.print(f"{tested.metric} lost when occluded ({tested.mask_kind}): {drops}")
    console.print(f"Page: {output}. Its numbers with their protocol: {output.with_suffix('.json')}")
