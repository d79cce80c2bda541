"""LEAD runs that stop and go on, and runs on two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from rrg_hf.errors import CheckpointError
from tests.trainers.conftest import MakeLeadTrainer


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("mode", ["frozen", "hybrid", "full"])
def test_resumed_run_equals_uninterrupted_run(mode: str, make_lead_trainer: MakeLeadTrainer, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"training_mode": mode, "max_steps": 5, "save_strategy": "steps", "save_steps": 100,
                                "lora_dropout": 0.3, "lr_scheduler_type": "cosine"}  # fmt: skip
    whole = make_lead_trainer(output_dir=tmp_path / "whole", **settings)
    whole.train()
    first = make_lead_trainer(output_dir=tmp_path / "parts", callbacks=[StopAt(3)], **settings)
    with pytest.raises(KeyboardInterrupt, match=r"LEAD training was interrupted at step 3 of 5\. Resume from"):
        first.train()
    torch.manual_seed(1234)
    second = make_lead_trainer(output_dir=tmp_path / "parts", **settings)
    second.train(resume_from_checkpoint=True)
    keep = ("loss", "language_loss", "expert_loss", "grad_norm", "learning_rate", "step")
    curves = [
        [{name: line[name] for name in keep} for line in trainer.state.log_history if "loss" in line]
        for trainer in (whole, second)
    ]
    assert curves[0] == curves[1] and len(curves[0]) == 5
    state = whole.model.state_dict()
    for name, value in second.model.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_checkpoint_of_another_mode_is_refused(make_lead_trainer: MakeLeadTrainer, tmp_path: Path) -> None:
    first = make_lead_trainer(training_mode="hybrid", save_strategy="steps", save_steps=1, max_steps=1)
    first.train()
    checkpoint = tmp_path / "lead" / "checkpoint-1"
    assert not list(checkpoint.glob("model*.safetensors"))  # the adapter alone
    for mode in ("llm", "full"):
        with pytest.raises(CheckpointError, match="training_mode 'hybrid'"):
            make_lead_trainer(training_mode=mode).train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(CheckpointError, match="tensors are missing, unexpected or of another shape"):
        make_lead_trainer(lora_r=3, training_mode="hybrid").train(resume_from_checkpoint=str(checkpoint))


def test_the_best_checkpoint_is_kept(make_lead_trainer: MakeLeadTrainer, studies: Any) -> None:
    trainer = make_lead_trainer(
        eval_dataset=studies["validation"], save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1,
        metric_for_best_model="loss", max_steps=3, learning_rate=3.0,
    )  # fmt: skip
    trainer.train()
    losses = {line["step"]: line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert trainer.state.best_global_step == best
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses[best], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["on disk", "stream"])
def test_two_processes_equal_one(data: str, lead_dirs: dict[str, Path], studies_dir: Path, tmp_path: Path) -> None:
    worker = Path(__file__).with_name("lead_ddp_worker.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(worker.parents[2])}
    results = []
    for name, launcher, batch in (
        ("one", [sys.executable], 4),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"], 2),
    ):
        out = tmp_path / name
        command = [*launcher, str(worker), str(lead_dirs["qwen3_vl"]), str(studies_dir), str(out), str(batch)]
        command += ["stream"] * (data == "stream")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        record = json.loads((out / "results.json").read_text())
        results.append((record, load_file(out / "model.safetensors"), load_file(out / "start.safetensors")))
    (one, weights, start), (two, other, other_start) = results
    assert (one["world"], two["world"]) == (1, 2)
    assert len(one["log"]) == len(two["log"]) > 2
    for line, other_line in zip(one["log"], two["log"], strict=True):
        for name in ("loss", "language_loss", "expert_loss", "grad_norm", "eval_expert_loss", "eval_rules_micro_f1"):
            if name in line:
                assert other_line[name] == pytest.approx(line[name], rel=2e-3, abs=1e-6), name
    moved = {name for name, value in weights.items() if not torch.equal(value, start[name])}
    assert any("lead_experts" in name for name in moved) and any("self_attn" in name for name in moved)
    for name, value in weights.items():
        assert torch.equal(start[name], other_start[name])
        step = (value - start[name]).abs().max()
        assert (other[name] - value).abs().max() <= 1e-6 + 0.02 * step, name
