"""Tiny backbones of the three families, as on the Hub, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_lead import LEAD_CLASSES, make_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plain backbones with tokenizer, image processor and chat template."""
    plain = tmp_path_factory.mktemp("plain")
    return {family: make_checkpoint(family, plain / family) for family in LEAD_CLASSES}
