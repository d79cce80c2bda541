"""Fixtures shared by the whole suite: where local sample data lives, and tiny random PALM checkpoints."""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path

import pytest

# Sockets are never needed: a test that reaches for the Hub is a bug, and should fail at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")

# One empty folder of dynamic modules for the whole run: what an earlier run left in the home must not make a test
# pass, and a process keeps the first such folder it imports from, so tests must not set their own.
_modules = tempfile.TemporaryDirectory(prefix="rrg_hf_modules_")
atexit.register(_modules.cleanup)
os.environ["HF_MODULES_CACHE"] = _modules.name


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with sample data that may not ship with the package (IU X-Ray, NIH ChestX-ray14, public cases)."""
    candidates = [os.environ.get("RRG_HF_SHARED"), Path(__file__).parents[2] / "shared"]
    for candidate in candidates:
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("no sample data: set RRG_HF_SHARED to the folder that holds data/ and cases/")
