"""Two processes on gloo equal one process on the same global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

WORKER = Path(__file__).with_name("ddp_worker.py")
ROOT = Path(__file__).parents[2]


def run(processes: int, palm_dir: Path, studies_dir: Path, output: Path, batch: int) -> dict[str, Any]:
    output.mkdir()
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*launcher, str(WORKER), str(palm_dir), str(studies_dir), str(output), str(batch)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((output / "results.json").read_text())


@pytest.mark.slow
def test_two_processes_equal_one(palm_dir: Path, studies_dir: Path, tmp_path: Path) -> None:
    """Alignment gathers its embeddings, generation counts tokens over both: same loss, and the same weights after two
    SGD steps of two accumulated batches each, so the same gradients."""
    one = run(1, palm_dir, studies_dir, tmp_path / "one", batch=4)
    two = run(2, palm_dir, studies_dir, tmp_path / "two", batch=2)
    named = {"align": ["multi_loss", "uni_loss"], "contrastive": ["contrastive_loss"], "generate": ["gen_loss"]}
    for name, losses in named.items():
        assert (one[name]["world"], two[name]["world"]) == (1, 2)
        logs = [[line for line in result[name]["log"] if "loss" in line] for result in (one, two)]
        assert len(logs[0]) == len(logs[1]) == 2
        for line, other in zip(*logs, strict=True):
            for key in ("loss", *losses):
                assert other[key] == pytest.approx(line[key], abs=1e-5), (name, key)
        weights = [load_file(tmp_path / folder / f"{name}.safetensors") for folder in ("one", "two")]
        difference = max((weights[0][key] - weights[1][key]).abs().max().item() for key in weights[0])
        assert difference < 1e-5 and difference < one[name]["moved"] / 100, (name, difference, one[name]["moved"])
    scores = [result["generate"]["log"] for result in (one, two)]
    (first,), (second,) = ([line for line in log if "eval_rules_micro_f1" in line] for log in scores)
    assert first["eval_generated_reports"] == second["eval_generated_reports"] == 5
    for name in ("eval_rules_micro_f1", "eval_distinct_reports"):
        assert first[name] == second[name]
    assert torch.load(tmp_path / "two" / "align" / "checkpoint-2" / "rng_state_1.pth", weights_only=False)
