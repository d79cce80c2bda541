"""The errors a user can cause: one base, told apart by kind, and none of them a surprise to `except ValueError`."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import typer

import rrg_hf
from rrg_hf import cli, errors
from rrg_hf.errors import RrgError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RrgError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_caught_by_the_base_and_documented(kind: type[RrgError]) -> None:
    assert issubclass(kind, ValueError) and kind.__doc__
    with pytest.raises(RrgError, match=r"^what and why$"):
        raise kind("what and why")


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_prints_one_line_and_exits_with_2(
    kind: type[RrgError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise kind("the file is broken. Mend it.")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.err == "rrg: the file is broken. Mend it.\n" and captured.out == ""


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ValueError, match="a bug"):
        cli.main()
    assert isinstance(typer.Exit(2), RuntimeError)  # a command's own exit code passes through as well


def test_every_message_in_the_package_is_a_sentence() -> None:
    """Raised with something to read: not empty, and not only the name of what went wrong."""
    names = {kind.__name__ for kind in KINDS}
    found = 0
    for path in Path(rrg_hf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", None) in names:
                found += 1
                assert len(call.args) == 1, f"{path.name}:{node.lineno}"
                if isinstance(call.args[0], ast.Constant):
                    text = str(call.args[0].value)
                    ends = text.endswith(".") or "Run: " in text
                    assert len(text) > 20 and ends, f"{path.name}:{node.lineno}: {text}"
    assert found > 100
