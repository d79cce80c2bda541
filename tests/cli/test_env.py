"""`rrg env` says what a bug report needs and nothing about whose machine it is."""

from __future__ import annotations

import getpass
import importlib.metadata
import platform
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.cli.env import _PACKAGES


def table() -> dict[str, str]:
    result = CliRunner().invoke(app, ["env"], catch_exceptions=False)
    assert result.exit_code == 0
    return {line.split("  ", 1)[0].strip(): line.split("  ", 1)[1].strip() for line in result.output.splitlines()}


def test_versions_are_those_installed() -> None:
    rows = table()
    assert rows["python"] == platform.python_version()
    for name in ("rrg_hf", "torch", "transformers", "datasets"):
        assert rows[name] == importlib.metadata.version(name)


def test_a_missing_package_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.cli.env._PACKAGES", ("rrg_hf", "no-such-package"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    rows = table()
    assert rows["no-such-package"] == "not installed" and rows["java (METEOR 1.5)"] == "not found"


def test_nothing_says_whose_machine_it_is() -> None:
    text = "\n".join(f"{name} {value}" for name, value in table().items())
    assert str(Path.home()) not in text and str(Path.cwd()) not in text
    assert platform.node() not in text.split() and getpass.getuser() not in text.split()


def test_every_dependency_with_a_version_of_its_own_is_listed() -> None:
    """But those that only print or template."""
    needed = {
        canonicalize_name(Requirement(line).name)
        for line in importlib.metadata.requires("rrg_hf") or []
        if "extra ==" not in line
    }
    listed = {canonicalize_name(name) for name in _PACKAGES}
    assert needed - listed <= {"typer", "rich", "pyyaml", "jinja2"}
