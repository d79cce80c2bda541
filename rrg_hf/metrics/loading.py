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


def best_device() -> str:
    """CUDA, else MPS, else CPU."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_dtype(dtype: str) -> Any:
    """The torch dtype of that name.

    Raises:
        ConfigError: not one of `DTYPES`.
    """
    import torch

    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}. Use one of {list(DTYPES)}.")
    return getattr(torch, dtype)


def weights_revision(name: str | os.PathLike[str], config: Any, revision: str | None = None) -> str:
    """What was loaded, so that two numbers can be compared: a folder's content hash, or the commit on the Hub.

    Args:
        name: folder or Hub id.
        config: as loaded from it.
        revision: as asked for.
    """
    if not Path(name).is_dir():
        return str(getattr(config, "_commit_hash", None) or revision or "unknown")
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
