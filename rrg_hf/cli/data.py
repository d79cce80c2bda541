"""`rrg data`: build data sets of `Study` rows from published files, or from the phantom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..data.sources.iu_xray import IuSummary

app = typer.Typer(
    name="data",
    help="Build a data set of studies: a folder for load_from_disk, rrg train, rrg generate and rrg evaluate.",
    no_args_is_help=True,
)

_FIRST_IDS = 4


@app.command("iu_xray")
def iu_xray(
    inputs: list[Path] = typer.Argument(
        ...,
        help="The reports in one form: the XML archive NLMCXR_reports.tgz or a folder of .xml files; "
        "indiana_reports.csv; or an R2Gen annotation.json. Add indiana_projections.csv to any of them for the views "
        "(the csv reports need it to know their pictures). A folder with the download works too.",
        show_default=False,
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder to create.", show_default=False),
    images: Path = typer.Option(
        None,
        "--images",
        help="Folder with the pictures, named as in the NLM archives (CXR2_IM-0652-1001.png, also .dcm), in the "
        "Kaggle copy (2_IM-0652-1001.dcm.png) or in the R2Gen copy (CXR2_IM-0652/0.png). Subfolders are searched.",
        show_default=False,
    ),
    no_images: bool = typer.Option(False, "--no-images", help="Save the reports without pictures."),
    target: str = typer.Option(
        "findings", help="The section a study must have: findings, impression, both or any. Others are dropped."
    ),
    splits_from: Path = typer.Option(
        None,
        help="R2Gen annotation.json whose splits to use; reports outside it are dropped. An annotation given as input "
        "always uses its own.",
        show_default=False,
    ),
    fractions: str = typer.Option(
        "0.7,0.1,0.2", help="Shares of train, validation and test where no split is given. Never splits a patient."
    ),
    seed: int = typer.Option(0, help="Another seed gives other splits."),
    label: str = typer.Option(
        None, help='"rules" fills the 14 labels from findings and impression by the rule labeller.', show_default=False
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a data set that is already in the folder."),
) -> None:
    """Build a data set from IU X-Ray (Open-i), whose licence is CC BY-NC-ND 4.0.

    Prints what was kept and what was dropped, by reason, and writes the same with every id to OUT/tally.json.

    Example: rrg data iu_xray NLMCXR_reports.tgz indiana_projections.csv --images NLMCXR_png --out data/iu_xray
    """
    import datasets

    from ..data.sources.iu_xray import prepare_iu_xray

    datasets.disable_progress_bars()  # one line a split, on top of the bar below
    with _Progress("reading pictures") as progress:
        summary = prepare_iu_xray(
            inputs,
            out,
            images=images,
            text_only=no_images,
            target=target,
            splits_from=splits_from,
            fractions=_shares(fractions),
            seed=seed,
            label=label,
            overwrite=overwrite,
            progress=progress.update if not no_images else None,
        )
    _print_summary(summary, out)


@app.command("phantom")
def phantom(
    out: Path = typer.Option(..., "--out", "-o", help="Folder to create.", show_default=False),
    train: int = typer.Option(2000, min=0, help="Studies in the split train."),
    validation: int = typer.Option(200, min=0, help="Studies in the split validation."),
    test: int = typer.Option(200, min=0, help="Studies in the split test."),
    test_shifted: int = typer.Option(
        200, min=0, help="Studies in test_shifted, where findings and stock phrases no longer go together."
    ),
    size: int = typer.Option(128, min=32, max=1024, help="Side of the square pictures in pixels."),
    seed: int = typer.Option(0, help="Another seed draws other patients."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a data set that is already in the folder."),
) -> None:
    """Draw a data set of phantom chest X-rays with known findings, masks and reports.

    Every row says source "phantom"; such rows are never mixed with real studies.

    Example: rrg data phantom --out data/phantom --train 5000 --size 96
    """
    import json

    import datasets

    from ..data.phantom import phantom_splits
    from ..data.store import check_target, save_studies
    from ..errors import ConfigError

    sizes = {"train": train, "validation": validation, "test": test, "test_shifted": test_shifted}
    wanted = {name: count for name, count in sizes.items() if count > 0}
    if not wanted:
        raise ConfigError("Every split has 0 studies. Ask for at least one study, for instance with --train 100.")
    check_target(out, overwrite=overwrite)
    datasets.disable_progress_bars()
    studies = phantom_splits(wanted, seed=seed, size=size)
    tally = {"source": "phantom", "splits": wanted, "size": size, "seed": seed, "labels": "drawn"}
    save_studies(studies, out, overwrite=overwrite, files={"tally.json": json.dumps(tally, indent=2) + "\n"})
    _table("phantom studies", ("split", "studies"), [(name, f"{count:,}") for name, count in wanted.items()])
    typer.echo(f"Saved to {out}")


@app.command("label")
def label_command(
    source: Path = typer.Argument(..., help="Folder of a saved data set.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="Folder to create.", show_default=False),
    labeler: str = typer.Option("rules", help='"rules", or "chexbert" (see `rrg metrics prepare chexbert`).'),
    model: str = typer.Option(None, help="Folder or Hub id of a converted CheXbert.", show_default=False),
    section: str = typer.Option("findings", help="The section that is read: findings or impression."),
    relabel: bool = typer.Option(False, "--relabel", help="Replace labels that the studies have."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a data set that is already in the folder."),
) -> None:
    """Read the 14 observations from the reports of a data set and save them with it, in the column `labels`.

    Training LEAD with `label_source: study` then takes them from there. A phantom's labels are what was drawn.

    Example: rrg data label data/iu_xray --labeler chexbert --out data/iu_xray_labelled
    """
    import json

    import datasets

    from ..data.store import check_target, load_studies, save_studies
    from ..errors import ConfigError
    from ..metrics.study_labels import label_reader, label_studies

    if labeler == "study":
        raise ConfigError("--labeler 'study' would read what is already there. Use rules or chexbert.")
    if section not in ("findings", "impression"):
        raise ConfigError(f"--section is {section!r}; choose findings or impression.")
    if source.resolve() == out.resolve():
        raise ConfigError("--out is the folder that is read. Choose another one.")
    reader = label_reader(labeler, model=model)
    if reader is None:
        raise ConfigError(f"--labeler {labeler!r} reads no reports.")
    check_target(out, overwrite=overwrite)
    datasets.disable_progress_bars()
    studies = load_studies(source)
    labelled = sum(any(row.values()) for split in studies.values() for row in split["labels"])
    if labelled and not relabel:
        raise ConfigError(
            f"{labelled:,} studies of {source} have labels already. Add --relabel to replace them, or use them with "
            "label_source: study."
        )
    done = datasets.DatasetDict(
        {name: label_studies(split, reader, section=section) for name, split in studies.items()}
    )
    about = {"labels": labeler, "section": section, "revision": reader.revision}
    save_studies(done, out, overwrite=overwrite, files={"labels.json": json.dumps(about, indent=2) + "\n"})
    rows = []
    for name, split in done.items():
        unread = sum(not any(row.values()) for row in split["labels"])
        rows.append((name, f"{len(split) - unread:,}", f"{unread:,} without {section}"))
    _table(f"labelled by {labeler}", ("split", "studies", "left unlabelled"), rows)
    typer.echo(f"Saved to {out}")


def _shares(text: str) -> dict[str, float]:
    from ..errors import ConfigError

    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != 3:
        raise ConfigError(
            f"--fractions {text!r} is not three numbers. Give train,validation,test, such as 0.7,0.1,0.2."
        )
    return dict(zip(("train", "validation", "test"), shares, strict=True))


def _print_summary(summary: IuSummary, out: Path) -> None:
    for tally in (summary.studies, summary.images):
        if tally is None:
            continue
        rows = [("read", f"{tally.read:,}", "")]
        for reason, ids in tally.dropped.items():
            first = ", ".join(ids[:_FIRST_IDS]) + (" ..." if len(ids) > _FIRST_IDS else "")
            rows.append((f"dropped: {reason}", f"{len(ids):,}", first))
        rows.append(("kept", f"{tally.kept:,}", ""))
        _table(f"IU X-Ray {tally.unit} ({summary.form})", ("what", tally.unit, "first ids"), rows)
    _table(
        "reports without a section",
        ("section", "blank", 'says "None", "nan"...'),
        [(name, f"{count['blank']:,}", f"{count['says_none']:,}") for name, count in summary.sections.items()],
    )
    _table("splits", ("split", "studies"), [(name, f"{count:,}") for name, count in summary.splits.items()])
    for note in summary.notes:
        typer.echo(f"Note: {note}")
    if summary.labels:
        typer.echo(f"Labels are from: {summary.labels}")
    typer.echo(f"Saved to {out} (every dropped id is in tally.json there)")


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place == 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text, as "[0]" in an id would read as markup
    Console().print(table)


class _Progress:
    """A bar on stderr that appears with the first step, and only on a terminal."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> _Progress:
        return self

    def update(self, done: int, total: int) -> None:
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            console = Console(stderr=True)
            self.bar = Progress(
                TextColumn(self.title),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=total)
        self.bar.update(self.task, completed=done, total=total)

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
