"""The `rrg` command. One file a command; heavy imports happen inside the command that needs them."""

from __future__ import annotations

import errno
import sys

import typer

from . import data, env, evaluate, experts, generate, metrics, page, train
from . import demo as demo_command

SCOPE = "Chest X-ray first, English, research only, not a medical device."

app = typer.Typer(
    name="rrg",
    help=f"Faithful radiology report generation on the Hugging Face stack. {SCOPE}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # locals may hold patient text
)
app.add_typer(data.app, name="data")
app.add_typer(train.app, name="train")
app.add_typer(metrics.app, name="metrics")
app.command("generate")(generate.generate)
app.command("evaluate")(evaluate.evaluate)
app.command("experts")(experts.experts)
app.command("page")(page.page)
app.command("demo")(demo_command.demo)
app.command("env")(env.env)


def main() -> None:
    """Entry point: an expected error is one line on stderr and exit code 2, not a traceback."""
    from ..errors import RrgError

    try:
        app()
    except RrgError as error:
        typer.echo(f"rrg: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # writing to an open file names none
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"rrg: {where}{error.strerror}. Make space, then run the same command again.", err=True)
            sys.exit(2)
        if error.filename is None:  # not about a path that somebody gave
            raise
        typer.echo(f"rrg: {error.filename}: {error.strerror}. Choose another file or folder.", err=True)
        sys.exit(2)
