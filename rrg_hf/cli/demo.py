"""`rrg demo`: the main job on the embedded phantom."""

from __future__ import annotations

from pathlib import Path

import typer


def demo(
    out: Path = typer.Option(Path("demo_output"), "--out", "-o", help="Folder for everything the demo writes."),
    quick: bool = typer.Option(False, "--quick", help="About two minutes instead of eight, with a weaker model."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a folder that holds something else."),
) -> None:
    """Train a small PALM through its three stages on phantoms, generate, evaluate, and write a page to look at.

    Needs no data, no network and no GPU. Nothing here says anything about real radiographs.
    """
    import logging
    import os
    import warnings

    os.environ.setdefault("TQDM_DISABLE", "1")  # dozens of short bars; must be set before tqdm is imported

    from transformers.utils import logging as transformers_logging

    from ..demo.recipe import FULL, QUICK
    from ..demo.run import run_demo

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    typer.echo("rrg_hf demo on the phantom. Chest X-ray first, English, research only, not a medical device.")
    run_demo(QUICK if quick else FULL, out, say=typer.echo, overwrite=overwrite)
