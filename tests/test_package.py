"""What a user meets first: import time, public names, the command line's help, `rrg env`."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import rrg_hf


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


def best_of(runs: int, *arguments: str) -> float:
    """Wall seconds of the fastest run: a busy machine can only add time."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        result = run(*arguments)
        times.append(time.perf_counter() - start)
        assert result.returncode == 0, result.stderr
    return min(times)


def test_import_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "datasets", "numpy", "PIL")
    code = f"import sys, rrg_hf; print([name for name in {heavy} if name in sys.modules])"
    assert run("-c", code).stdout.strip() == "[]"


def test_import_and_help_are_quick() -> None:
    bare = best_of(5, "-c", "pass")
    assert best_of(5, "-c", "import rrg_hf") - bare < 0.3
    assert (
        best_of(5, "-c", "import sys; sys.argv = ['rrg', '--help']; from rrg_hf.cli import main; main()") - bare < 1.0
    )


@pytest.mark.parametrize("name", rrg_hf.__all__)
def test_public_names_load(name: str) -> None:
    assert getattr(rrg_hf, name).__name__ == name


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PalmTrainr'"):
        rrg_hf.PalmTrainr  # noqa: B018


def test_type_checking_twin_lists_the_same_names() -> None:
    assert sorted(rrg_hf._PUBLIC) == sorted(rrg_hf.__all__)


def test_version_matches_the_metadata() -> None:
    assert rrg_hf.__version__ == importlib.metadata.version("rrg_hf")


@pytest.mark.parametrize(
    "command",
    [[], ["data"], ["data", "iu_xray"], ["data", "phantom"], ["train"], ["train", "palm"], ["generate"], ["evaluate"],
     ["page"], ["metrics"], ["demo"], ["env"]],
    ids=lambda command: " ".join(command) or "rrg",
)  # fmt: skip
def test_every_command_has_help(command: list[str]) -> None:
    result = run("-m", "rrg_hf.cli", *command, "--help")
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout


def test_env_prints_versions_and_no_paths() -> None:
    result = run("-m", "rrg_hf.cli", "env")
    assert result.returncode == 0, result.stderr
    assert f"rrg_hf             {rrg_hf.__version__}".split() == result.stdout.splitlines()[3].split()
    assert "/" not in result.stdout.replace("Linux", "")


def test_lower_bounds_are_the_versions_that_were_tested() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML reader")
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    stated = [*project["dependencies"], *(line for name in ("metrics", "dicom", "report") for line in extras[name])]
    bounds = {}
    for line in stated:
        requirement = Requirement(line)
        (lowest,) = (part.version for part in requirement.specifier if part.operator == ">=")
        bounds[canonicalize_name(requirement.name)] = Version(lowest)
    lines = (root / "constraints-min.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {canonicalize_name(name): Version(pin) for name, pin in pins.items()} == bounds
