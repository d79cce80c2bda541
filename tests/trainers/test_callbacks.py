"""The training log and the report table."""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from rrg_hf.trainers.callbacks import ReportTable, TrainLogCallback, read_train_log


def test_train_log_repeats_no_step_after_a_resume(tmp_path: Path) -> None:
    args, control = TrainingArguments(str(tmp_path / "run"), use_cpu=True), TrainerControl()
    callback = TrainLogCallback("mem")
    state = TrainerState(is_world_process_zero=True)
    callback.on_train_begin(args, state, control)
    for step in (1, 2, 3):
        state.log_history.append({"loss": 1 / step, "step": step, "note": "no number"})
        callback.on_log(args, state, control)
    assert [line["step"] for line in read_train_log(tmp_path / "run")] == [1, 2, 3]

    resumed = TrainerState(is_world_process_zero=True, log_history=state.log_history[:2])
    callback.on_train_begin(args, resumed, control)
    resumed.log_history.append({"eval_loss": 0.5, "step": 3})
    callback.on_log(args, resumed, control)
    assert read_train_log(tmp_path / "run" / "train_log.jsonl") == [
        {"stage": "mem", "loss": 1.0, "step": 1},
        {"stage": "mem", "loss": 0.5, "step": 2},
        {"stage": "mem", "eval_loss": 0.5, "step": 3},
    ]


def test_other_processes_write_no_log(tmp_path: Path) -> None:
    args, state = TrainingArguments(str(tmp_path / "run"), use_cpu=True), TrainerState(is_world_process_zero=False)
    TrainLogCallback("mem").on_train_begin(args, state, TrainerControl())
    assert not (tmp_path / "run" / "train_log.jsonl").exists()


def test_a_line_cut_short_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train_log.jsonl").write_text(json.dumps({"step": 1}) + '\n{"ste')
    with caplog.at_level(logging.WARNING):
        assert read_train_log(tmp_path) == [{"step": 1}]
    assert "left out" in caplog.text


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_report_table_sends_what_it_is_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    module = types.ModuleType(name)
    module.log = sent.append  # type: ignore[attr-defined]
    module.Table = lambda columns, data: (columns, data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    table = ReportTable(["tensorboard", name])
    table.send([{"study_id": "s1", "reference": "Clear.", "report": "Edema."}], step=4)
    assert sent == [
        {"reports": (["study_id", "reference", "report"], [["s1", "Clear.", "Edema."]]), "train/global_step": 4}
    ]
