"""`rrg env`: what a bug report needs."""

from __future__ import annotations

import typer

_PACKAGES = (
    "rrg_hf",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "huggingface_hub",
    "tokenizers",
    "safetensors",
    "peft",
    "trl",
    "evaluate",
    "POT",
    "numpy",
    "scipy",
    "pillow",
    "pydicom",
    "pycocoevalcap",
    "nltk",
    "regex",
)


def env() -> None:
    """Print versions of rrg_hf and of what it stands on, for bug reports. No paths, no user names."""
    import importlib.metadata
    import os
    import platform
    import shutil

    rows: list[tuple[str, str]] = [
        ("python", platform.python_version()),
        ("platform", f"{platform.system()} {platform.machine()}"),
        ("cpu cores", str(os.cpu_count())),
    ]
    for name in _PACKAGES:
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    try:
        import torch

        device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
        rows.append(("cuda device", device))
    except ImportError:
        rows.append(("cuda device", "torch not installed"))
    rows.append(("java (METEOR 1.5)", "found" if shutil.which("java") else "not found"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
