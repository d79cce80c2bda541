"""Run by test_lead_resume.py, alone or under torchrun: trains a tiny LEAD and writes what came out.

Usage: lead_ddp_worker.py MODEL_DIR DATA_DIR OUTPUT_DIR PER_DEVICE_BATCH [stream]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datasets import load_from_disk
from safetensors.torch import save_file

from rrg_hf.trainers import LeadTrainer, load_lead
from rrg_hf.trainers.lead_loading import load_lead_processor
from tests.trainers.conftest import LEAD_SETTINGS, lead_args


def main(model_dir: str, data_dir: str, output_dir: str, batch: int, stream: bool = False) -> None:
    import torch

    studies = load_from_disk(data_dir)
    args = lead_args(
        output_dir,
        max_steps=2,
        learning_rate=1e-3,
        optim="sgd",
        max_grad_norm=0.0,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=2,
        label_source="study",  # few labels are known, so processes have different numbers of them
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=2,
    )
    torch.manual_seed(0)
    model = load_lead(model_dir, LEAD_SETTINGS)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "projections" in name and "output" in name:
                weight.normal_(std=0.1)  # so that the experts matter from the first step
    trainer = LeadTrainer(
        model,
        args,
        studies["train"].to_iterable_dataset() if stream else studies["train"],
        studies["validation"].select(range(4)),  # an odd one would be counted twice to fill a batch
        load_lead_processor(model_dir, image_size=32),
    )
    out = Path(output_dir)
    weights = {name: value.detach().clone() for name, value in trainer.report_model.named_parameters()}
    trainer.train()
    if trainer.is_world_process_zero():
        out.mkdir(parents=True, exist_ok=True)
        save_file(weights, out / "start.safetensors")
        state = {name: value.detach().clone() for name, value in trainer.report_model.named_parameters()}
        save_file(state, out / "model.safetensors")
        (out / "results.json").write_text(json.dumps({"world": args.world_size, "log": trainer.state.log_history}))
    trainer.accelerator.wait_for_everyone()
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:] == ["stream"])
