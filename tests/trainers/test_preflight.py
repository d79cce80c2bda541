"""What is tried out before a model or any data is loaded."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.trainers import PalmTrainer
from rrg_hf.trainers.preflight import check_optimization, check_output_dir, check_trackers

from .conftest import tiny_args


def test_trackers_that_exist_and_those_that_do_not() -> None:
    check_trackers(["none"])
    with pytest.raises(ConfigError, match="no tracker that transformers knows"):
        check_trackers(["none", "blah"])
    with pytest.raises(ConfigError, match="Did you mean 'wandb'"):
        check_trackers(["wandbb"])


def test_a_tracker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformers.integrations.integration_utils.get_available_reporting_integrations", lambda: ["tensorboard"]
    )
    check_trackers(["tensorboard"])
    with pytest.raises(ConfigError, match="pip install comet_ml"):
        check_trackers(["comet_ml"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr_scheduler_type": "cosine"},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
        {"optim": "sgd"},
        {"optim": "adafactor"},
        {"torch_compile_backend": "inductor"},
    ],
)
def test_optimizers_and_schedules_that_work(settings: dict[str, Any], tmp_path: Path) -> None:
    check_optimization(tiny_args(tmp_path, "mem", **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_scheduler_kwargs": {"a": 1}}, "unexpected keyword argument 'a'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr"),
        ({"optim": "adamw_bnb_8bit"}, "bitsandbytes"),
        ({"torch_compile_backend": "inductr"}, "Did you mean 'inductor'"),
    ],
)
def test_optimizers_and_schedules_that_cannot_work(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_optimization(tiny_args(tmp_path, "mem", **settings))


def test_the_trainer_checks_before_it_opens_a_model(tmp_path: Path) -> None:
    args = tiny_args(tmp_path, "mem", lr_scheduler_kwargs={"a": 1})
    with pytest.raises(ConfigError, match="lr_scheduler_kwargs"):
        PalmTrainer(tmp_path / "no model here", args)


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    check_output_dir(tmp_path / "a" / "b")
    check_output_dir(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    for place in ("file", "file/below"):
        with pytest.raises(ConfigError, match=r"file is a file\. Choose another folder"):
            check_output_dir(tmp_path / place)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)  # root may write to a closed folder
    with pytest.raises(ConfigError, match=r"closed cannot be written to .* Choose another folder"):
        check_output_dir(closed / "run")
