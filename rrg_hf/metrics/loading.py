"""What every reader with a network needs: a device, a dtype, and a name for the weights it read with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "special_tokens*")


def choose_device(device: str | None = None) -> Any:
    """The torch device of that name; without one CUDA, else MPS, else the CPU.

    Raises:
        ConfigError: no name of a device, or one that is not there.
    """
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device is None:
        return torch.device(next(name for name, found in there.items() if found))
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device is {device!r}. Use 'cpu', 'cuda', 'cuda:1', 'mps' ...") from error
    if not there.get(chosen.type, True):
        raise ConfigError(f"device is {device!r}, but torch finds no such device here. Leave it out for the best one.")
    return chosen


def check_dtype(dtype: str) -> Any:
    """The torch dtype of that name.

    Raises:
        ConfigError: not one of `DTYPES`.
    """
    import torch

    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}. Use one of {list(DTYPES)}.")
    return getattr(torch, dtype)


def check_no_network(**settings: Any) -> None:
    """Refuse what names a network beside the backend "rules".

    Raises:
        ConfigError: one of the settings is not None.
    """
    given = {name: str(value) for name, value in settings.items() if value is not None}
    if given:
        raise ConfigError(f"backend 'rules' reads without a network, but {given} was given. Drop one.")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hub_commit(name: str, revision: str | None = None) -> str | None:
    """Commit of a Hub repository that has just been loaded, read from where the Hub's cache keeps its config.json.

    Args:
        name: Hub id.
        revision: branch, tag or commit as asked for; None for main.

    Returns:
        The commit; None if the cache does not hold it. transformers 5.24 keeps no commit in its configs.
    """
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, "config.json", revision=revision)
    parts = Path(path).parts if isinstance(path, str) else ()
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None


def weights_revision(name: str | os.PathLike[str], revision: str | None = None) -> str:
    """What was loaded, so that two numbers can be compared: a folder's content hash, or the commit on the Hub.

    Args:
        name: folder or Hub id.
        revision: as asked for.
    """
    if not Path(name).is_dir():
        return hub_commit(os.fspath(name), revision) or revision or "unknown"
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _FILES for path in Path(name).glob(pattern)}):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No load reports of transformers; what is missing is checked by the caller."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
