"""Run by test_distributed.py, alone or under torchrun: trains align and generate and writes what came out.

Usage: ddp_worker.py MODEL_DIR DATA_DIR OUTPUT_DIR PER_DEVICE_BATCH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from datasets import load_from_disk
from safetensors.torch import save_file

from rrg_hf.modeling.palm import PalmProcessor
from rrg_hf.trainers import PalmTrainer, PalmTrainingArguments, load_palm


def main(model_dir: str, data_dir: str, output_dir: str, batch: int) -> None:
    studies = load_from_disk(data_dir)
    results = {}
    for stage in ("align", "generate"):
        model = load_palm(model_dir, fusion_dropout=0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        args = PalmTrainingArguments(
            f"{output_dir}/{stage}",
            stage=stage,
            skip_stages=["mem"] if stage == "align" else ["mem", "align"],
            max_steps=2,
            learning_rate=0.1,
            optim="sgd",
            max_grad_norm=0.0,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=2,
            logging_steps=1,
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="steps",
            save_steps=2,
            eval_strategy="steps",
            eval_steps=2,
            generation_max_new_tokens=6,
            per_device_eval_batch_size=2,
        )
        trainer = PalmTrainer(
            model, args, studies["train"], studies["validation"], PalmProcessor.from_pretrained(model_dir)
        )
        trainer.train()
        trainer.save_model()
        results[stage] = {"world": args.world_size, "log": trainer.state.log_history}
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        for stage in results:
            weights = load_palm(f"{output_dir}/{stage}").state_dict()
            weights.pop("lm_head.weight")  # shares the memory of the embeddings
            save_file(weights, f"{output_dir}/{stage}.safetensors")
        (Path(output_dir) / "results.json").write_text(json.dumps(results))
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
