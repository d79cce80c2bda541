"""Ctrl-C leaves a checkpoint, a resumed run equals an uninterrupted one, a full disk leaves nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import DatasetDict
from transformers import TrainerCallback

from rrg_hf.errors import CheckpointError
from rrg_hf.trainers import PalmTrainer, load_palm

from .conftest import MakeTrainer

STAGES = ["mem", "align", "generate"]


class At(TrainerCallback):
    """Does something once, at the end of a step."""

    def __init__(self, step: int, action: Any) -> None:
        self.step, self.action = step, action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def full_state(trainer: PalmTrainer) -> dict[str, torch.Tensor]:
    """PALM, and what only the stage has: predictor, queue, teacher."""
    return {**trainer.palm.state_dict(), **{f"stage.{k}": v for k, v in trainer.model.state_dict().items()}}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(other)
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("stop_at", [2, 3])
def test_resumed_run_equals_uninterrupted_run(
    stage: str, stop_at: int, make_trainer: MakeTrainer, palm_dir: Path, tmp_path: Path, studies: DatasetDict
) -> None:
    """With dropout, random masks and shuffling on; step 2 is inside an epoch of 3 steps, step 3 at its end."""

    def make(name: str, **changes: Any) -> PalmTrainer:
        model = load_palm(palm_dir, alignment_queue_size=6)
        return make_trainer(
            stage,
            model=model,
            output_dir=tmp_path / name,
            max_steps=5,
            save_strategy="epoch",
            eval_dataset=studies["validation"],
            eval_generate_samples=1,
            **changes,
        )

    whole = make("whole")
    whole.train()

    interrupted = make("parts", callbacks=[At(stop_at, ctrl_c)])
    with pytest.raises(
        KeyboardInterrupt, match=rf"interrupted at step {stop_at} of 5\. Resume from checkpoint-{stop_at}\."
    ):
        interrupted.train()
    assert (tmp_path / "parts" / f"checkpoint-{stop_at}").is_dir()
    assert load_palm(tmp_path / "parts" / f"checkpoint-{stop_at}").config.training_stage is None

    resumed = make("parts")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 5
    assert_equal(full_state(whole), full_state(resumed))
    keys = [name for name in whole.state.log_history[-2] if name.startswith("eval_") and "_per_second" not in name]
    scores = [[line for line in t.state.log_history if "eval_loss" in line] for t in (whole, resumed)]
    assert [line["step"] for line in scores[0]] == [line["step"] for line in scores[1]] == [3, 5]
    for one, other in zip(*scores, strict=True):
        assert all(one[name] == other[name] for name in keys if "runtime" not in name)


def test_ctrl_c_raised_by_a_callback_is_saved_too(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    trainer = make_trainer("mem", max_steps=4, callbacks=[At(3, interrupt)])
    with pytest.raises(KeyboardInterrupt, match="checkpoint-3"):
        trainer.train()
    assert (tmp_path / "mem" / "checkpoint-3" / "trainer_state.json").is_file()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_ctrl_c_stops_at_once(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    def twice() -> None:
        ctrl_c()
        ctrl_c()

    trainer = make_trainer("mem", max_steps=4, callbacks=[At(2, twice)])
    with pytest.raises(KeyboardInterrupt, match="No checkpoint was written"):
        trainer.train()
    assert not list((tmp_path / "mem").glob("checkpoint-*"))


def test_ctrl_c_during_the_last_step_resumes_to_the_end(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer("mem", max_steps=2, callbacks=[At(2, ctrl_c)])
    with pytest.raises(KeyboardInterrupt, match="checkpoint-2"):
        trainer.train()
    resumed = make_trainer("mem", max_steps=2)
    resumed.train(resume_from_checkpoint=True)
    resumed.save_model()
    assert load_palm(tmp_path / "mem").config.training_stage == "mem"


def test_resume_needs_the_same_stage_and_teacher(make_trainer: MakeTrainer, tmp_path: Path, palm_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="Nothing to resume"):
        make_trainer("mem").train(resume_from_checkpoint=True)
    trainer = make_trainer("mem", save_strategy="steps", save_steps=1)
    trainer.train()
    checkpoint = str(tmp_path / "mem" / "checkpoint-1")
    with pytest.raises(CheckpointError, match="written by stage 'mem', so stage 'align'"):
        make_trainer("align").train(resume_from_checkpoint=checkpoint)
    other = load_palm(palm_dir)
    with torch.no_grad():
        other.model.vision_model.layernorm.bias.add_(1.0)
    with pytest.raises(CheckpointError, match="another teacher"):
        make_trainer("mem", model=other).train(resume_from_checkpoint=checkpoint)
    (tmp_path / "mem" / "checkpoint-1" / "stage_state.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks what stage mem needs"):
        make_trainer("mem").train(resume_from_checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="not a checkpoint of a run under way"):
        make_trainer("mem").train(resume_from_checkpoint=str(palm_dir))
    trainer.save_model()
    with pytest.raises(CheckpointError, match="mem is not a checkpoint of a run under way"):
        make_trainer("mem").train(resume_from_checkpoint=str(tmp_path / "mem"))


@pytest.mark.parametrize("what", ["weights", "optimizer", "state", "stage_state"])
def test_full_disk_leaves_no_half_written_checkpoint(
    what: str, make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("mem", max_steps=3, save_strategy="steps", save_steps=1)

    def full(*args: Any, **kwargs: Any) -> None:
        if what == "optimizer":
            raise RuntimeError(
                "[enforce fail at inline_container.cc] . PytorchStreamWriter failed writing file data/0"
            )
        raise OSError(28, "No space left on device")

    def fill_the_disk() -> None:
        targets = {
            "weights": (trainer.palm, "save_pretrained"),
            "optimizer": (trainer, "_save_optimizer_and_scheduler"),
            "state": (trainer.state, "save_to_json"),
        }
        if what == "stage_state":
            monkeypatch.setattr("rrg_hf.trainers.report_trainer.save_file", full)
        else:
            monkeypatch.setattr(*targets[what], full)

    trainer.add_callback(At(2, fill_the_disk))
    with pytest.raises(CheckpointError, match=r"checkpoint-2 could not be written .* checkpoint-1 is still there"):
        trainer.train()
    assert [path.name for path in (tmp_path / "mem").iterdir() if path.is_dir()] == ["checkpoint-1"]
    monkeypatch.undo()
    resumed = make_trainer("mem", max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3


def test_full_disk_at_the_end_keeps_the_model_that_was_there(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("mem", max_steps=1)
    trainer.train()
    trainer.save_model()
    before = (tmp_path / "mem" / "model.safetensors").read_bytes()
    trainer.train()

    def full(folder: Path, **kwargs: Any) -> None:
        (Path(folder) / "config.json").write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer.palm, "save_pretrained", full)
    with pytest.raises(CheckpointError, match="mem could not be written"):
        trainer.save_model()
    assert (tmp_path / "mem" / "model.safetensors").read_bytes() == before
    assert load_palm(tmp_path / "mem").config.training_stage == "mem"
    assert not list((tmp_path / "mem").glob("tmp-*"))


def test_only_the_newest_checkpoints_are_kept(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer("mem", max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=2).train()
    assert sorted(path.name for path in (tmp_path / "mem").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]


SCRIPT = """
import sys
from datasets import load_from_disk
from rrg_hf.trainers import PalmTrainer, PalmTrainingArguments

args = PalmTrainingArguments(
    sys.argv[1],
    stage="mem",
    max_steps=100000,
    use_cpu=True,
    save_strategy="no",
    logging_steps=1,
    disable_tqdm=True,
    per_device_train_batch_size=2,
    dataloader_num_workers=1,
)
PalmTrainer(sys.argv[2], args, train_dataset=load_from_disk(sys.argv[3])["train"]).train()
"""


@pytest.mark.slow
def test_a_real_ctrl_c_with_data_workers(tmp_path: Path, palm_dir: Path, studies_dir: Path) -> None:
    """The terminal sends SIGINT to the whole process group, data workers included."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), str(palm_dir), str(studies_dir)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    log = tmp_path / "run" / "train_log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.is_file() and len(log.read_text().splitlines()) > 3) and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "Stage mem was interrupted at step" in errors and "DataLoader worker" not in errors
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert {"model.safetensors", "optimizer.pt", "stage_state.safetensors"} <= {
        path.name for path in checkpoint.iterdir()
    }
