"""The direction of imports that ARCHITECTURE.md draws, checked on the source tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rrg_hf"

# A layer may import itself and any layer listed for it; nothing else of rrg_hf.
BASE = {"observations", "errors"}
MIDDLE = {"data", "text", "metrics"}
ALLOWED: dict[str, set[str]] = {
    "observations": set(),
    "errors": set(),
    "modeling": set(),
    "text": BASE,
    "data": BASE | {"text"},
    "metrics": BASE | {"text", "modeling"},
    "evaluation": BASE | MIDDLE | {"modeling"},
    "model_cards": BASE | {"evaluation"},
    "pipeline": BASE | MIDDLE | {"modeling"},
    "trainers": BASE | MIDDLE | {"modeling", "evaluation"},
    "demo": BASE | MIDDLE | {"modeling", "evaluation", "model_cards", "pipeline", "trainers"},
    "cli": BASE | MIDDLE | {"modeling", "evaluation", "model_cards", "pipeline", "trainers", "demo"},
}


def layer_of(module: str) -> str:
    """First name under rrg_hf: 'rrg_hf.data.images' -> 'data'."""
    return module.split(".")[1] if "." in module else ""


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module) of every import of rrg_hf in a file, TYPE_CHECKING and function bodies included."""
    module = ["rrg_hf", *path.relative_to(PACKAGE).with_suffix("").parts]
    package = module if path.name == "__init__.py" else module[:-1]
    if path.name == "__init__.py":
        package = module[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "rrg_hf"]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                base = node.module or ""
            else:
                base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            if base.split(".")[0] != "rrg_hf":
                continue
            # `from .. import data` names the layer itself
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "rrg_hf" else [base]
            found += [(node.lineno, name) for name in names]
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.name == "pipeline.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    layer = layer_of(".".join(["rrg_hf", *path.relative_to(PACKAGE).with_suffix("").parts]))
    wrong = [
        f"line {line}: {module}"
        for line, module in imported_modules(path)
        if layer_of(module) not in ALLOWED[layer] | {layer, "", "__version__"}
    ]
    assert not wrong, f"{layer} must not import these: {wrong}"


def test_modeling_folders_use_flat_relative_imports_only() -> None:
    """Hub custom code copies a model's folder and nothing else."""
    for path in (PACKAGE / "modeling").rglob("*.py"):
        if path.parent == PACKAGE / "modeling" or path.name == "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module and "." not in node.module, f"{path.name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith("rrg_hf"), f"{path.name}:{node.lineno}"


def test_the_checker_sees_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the guard: relative, absolute and nested imports are all found."""
    monkeypatch.setattr("tests.test_architecture.PACKAGE", tmp_path)
    (tmp_path / "text").mkdir()
    bad = tmp_path / "text" / "bad.py"
    bad.write_text("from ..cli import main\nimport rrg_hf.trainers\ndef f():\n    from .. import evaluation\n")
    assert [layer_of(module) for _, module in imported_modules(bad)] == ["cli", "trainers", "evaluation"]


def test_files_stay_readable() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 650
    }
    assert not long, f"over 650 lines, split them by concept: {long}"
    assert not list(PACKAGE.rglob("utils.py"))
