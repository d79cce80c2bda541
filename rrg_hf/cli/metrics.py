"""`rrg metrics`: the published weights that the clinical metrics need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

app = typer.Typer(
    name="metrics",
    help="Prepare the published weights that CheXbert-F1, RadGraph-F1, RaTEScore, GREEN and RadCliQ need.",
    no_args_is_help=True,
)


@app.command("prepare")
def prepare(
    name: str = typer.Argument(
        ...,
        help="chexbert, radgraph, radgraph-xl, modern-radgraph-xl, echograph, ratescore or green.",
        show_default=False,
    ),
    from_file: list[Path] = typer.Option(
        None,
        "--from-file",
        help="Take this file or folder instead of downloading: chexbert.pth or the .tar.gz; for ratescore a folder "
        "with ner/ and encoder/; for green the model's folder or the prompt archive (may be given twice).",
        show_default=False,
    ),
    tokenizer: str = typer.Option(
        None,
        "--tokenizer",
        help="Folder or Hub id of the tokenizer, instead of the published one.",
        show_default=False,
    ),
    output: Path = typer.Option(
        None, "--output", "-o", help="Folder to make. Default: where the metrics look for it.", show_default=False
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace what is in the folder."),
) -> None:
    """Download a published network, check it, and convert it to a folder that the metrics load.

    Downloads continue where they broke off. Offline, the message names the file to bring by hand.
    """
    from ..metrics import artifacts

    place = Path(tokenizer) if tokenizer and Path(tokenizer).exists() else tokenizer
    folder = artifacts.prepare(name, from_file=from_file or None, tokenizer=place, output=output, overwrite=overwrite)
    note = artifacts.preparation(folder) or {}
    for source in note.get("sources", []):
        typer.echo(f"{source['repo_id']}: {_origin(source)}")
    typer.echo(f"{name} is ready in {folder}. Licence: {note.get('licence', '')}")
    if output is not None:
        typer.echo(f"The metrics look elsewhere by default: give them model={folder}.")


def _origin(source: dict[str, Any]) -> str:
    if source.get("from_file"):
        published = source.get("published")
        if published is None:
            return "brought by hand, not compared: no checksum is published"
        return f"brought by hand, {'the published file' if published else 'NOT the published file'}"
    return f"commit {source.get('commit')}"


@app.command("list")
def list_prepared() -> None:
    """What is prepared, where, and under which licence."""
    from ..metrics import artifacts

    for name, published in artifacts.PREPARED.items():
        folder = artifacts.prepared_folder(name)
        note = artifacts.preparation(folder)
        state = "not prepared" if note is None else "; ".join(_origin(source) for source in note["sources"])
        typer.echo(f"{name}  ({published.metrics})\n  {state}\n  {folder}\n  {published.licence}")
