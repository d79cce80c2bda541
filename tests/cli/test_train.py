"""`rrg train palm`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.cli.train import _start_logging, overrides_from
from rrg_hf.data.phantom import phantom_splits
from rrg_hf.errors import ConfigError
from tests.tiny_palm import make_tiny_palm

runner = CliRunner()


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, hub = logging.getLogger(), logging.getLogger("huggingface_hub")
    handlers, level, propagate = list(root.handlers), root.level, hub.propagate
    yield
    root.handlers[:], root.level, hub.propagate = handlers, level, propagate


def test_a_line_of_the_hub_comes_once(capfd: pytest.CaptureFixture[str]) -> None:
    import huggingface_hub  # noqa: F401  # its logger gets a handler of its own

    logging.getLogger().handlers.clear()
    _start_logging()
    logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s.")
    assert capfd.readouterr().err.count("Retrying in 1s.") <= 1
    assert not logging.getLogger("huggingface_hub").propagate


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("train")
    make_tiny_palm(root / "palm")
    phantom_splits({"train": 6, "validation": 2}, size=64, masks=()).save_to_disk(root / "studies")
    content = {
        "model": {"path": str(root / "palm")},
        "data": {"train_dataset": str(root / "studies")},
        "training": {"output_dir": str(root / "out"), "max_steps": 1, "use_cpu": True, "disable_tqdm": True},
        "stages": {"generate": {"generation_max_new_tokens": 4}},
    }
    (root / "recipe.yaml").write_text(yaml.safe_dump(content))
    return root / "recipe.yaml"


def test_overrides_in_every_spelling() -> None:
    words = [
        "seed=1",
        "--learning-rate",
        "1e-4",
        "--data.split=dev",
        "--bf16",
        "--stages.mem.max_steps",
        "-1",
        "--use-cpu",
    ]
    assert overrides_from(words) == [
        "seed=1",
        "learning_rate=1e-4",
        "data.split=dev",
        "bf16=true",
        "stages.mem.max_steps=-1",
        "use_cpu=true",
    ]
    with pytest.raises(ConfigError, match="'lonely' is not understood"):
        overrides_from(["lonely"])


def test_help_is_there() -> None:
    result = runner.invoke(app, ["train", "palm", "--help"])
    assert result.exit_code == 0 and "--stage" in result.output and "learning_rate=1e-4" in result.output


def test_all_stages_then_nothing_to_do(recipe: Path, tmp_path: Path) -> None:
    command = ["train", "palm", str(recipe), "--output-dir", str(tmp_path / "out"), "learning_rate=1e-3"]
    result = runner.invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert "mem: starts from the recipe's model" in lines
    assert f"Model saved to {tmp_path / 'out' / 'generate'}" in lines
    result = runner.invoke(app, command, catch_exceptions=False)
    assert result.output.count("finished earlier") == 3


def test_one_stage(recipe: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, ["train", "palm", str(recipe), "--stage", "mem", f"output_dir={tmp_path}"])
    assert result.exit_code == 0 and (tmp_path / "mem" / "config.json").is_file()
    assert not (tmp_path / "align").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lerning_rate=1"], "did you mean 'learning_rate'"),
        (["--stage", "memm"], "did you mean 'mem'"),
        (["--stage", "generate"], "must come first"),
        (["skip_stages=mem,align,generate"], "no stage to train"),
    ],
)
def test_errors_are_one_line(recipe: Path, tmp_path: Path, words: list[str], message: str) -> None:
    result = runner.invoke(app, ["train", "palm", str(recipe), f"output_dir={tmp_path}", *words])
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rrg_hf.trainers import PalmTrainer

    original = PalmTrainer.training_step
    calls: list[int] = []

    def interrupted(self: PalmTrainer, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(PalmTrainer, "training_step", interrupted)
    command = ["train", "palm", str(recipe), "--stage", "mem", f"output_dir={tmp_path}", "max_steps=4"]
    result = runner.invoke(app, command)
    assert result.exit_code == 130
    assert "interrupted at step 2 of 4. Resume from checkpoint-2." in result.output
    result = runner.invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "mem: goes on from checkpoint-2" in result.output
