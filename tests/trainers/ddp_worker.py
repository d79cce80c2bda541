"""Run by test_distributed.py, alone or under torchrun: trains align and generate and writes what came out.

Usage: ddp_worker.py MODEL_DIR DATA_DIR OUTPUT_DIR PER_DEVICE_BATCH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from safetensors.torch import save_file

from rrg_hf.data.collators import DataCollatorForPalm
from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from rrg_hf.trainers import PalmTrainer, PalmTrainingArguments, load_palm


def spread_embeddings(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    """A random model gives every study about the same embedding, and then a batch of 2 is aligned like one of 4.
    Take the common part away, so that it matters who is in the batch."""
    with torch.no_grad():
        image = model.model.vision_model(pixel_values=batch["pixel_values"]).last_hidden_state[:, 0]
        text = model.model.text_model(batch["report_input_ids"], batch["report_attention_mask"]).last_hidden_state[
            :, 0
        ]
        for projection, features in ((model.model.image_projection, image), (model.model.text_projection, text)):
            projection.layers.bias.copy_(-projection.layers.weight @ features.mean(0))


def main(model_dir: str, data_dir: str, output_dir: str, batch: int) -> None:
    studies = load_from_disk(data_dir)
    processor = PalmProcessor.from_pretrained(model_dir)
    results: dict[str, Any] = {}
    for name, alignment in (("align", "prototype"), ("contrastive", "contrastive"), ("generate", "prototype")):
        stage = "generate" if name == "generate" else "align"
        model = load_palm(model_dir, fusion_dropout=0.0, alignment=alignment)
        spread_embeddings(model, DataCollatorForPalm(processor, "align")(list(studies["train"])))
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        args = PalmTrainingArguments(
            f"{output_dir}/{name}",
            stage=stage,
            skip_stages=["mem"] if stage == "align" else ["mem", "align"],
            max_steps=2,
            learning_rate=1e-4 if name == "contrastive" else 1e-2,  # its gradients are 10,000 times those of align
            optim="sgd",
            max_grad_norm=0.0,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=2,
            initialize_prototypes=False,
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
        trainer = PalmTrainer(model, args, studies["train"], studies["validation"], processor)
        start = {key: value.detach().clone() for key, value in model.state_dict().items()}
        trainer.train()
        trainer.save_model()
        moved = max((value - start[key]).abs().max().item() for key, value in model.state_dict().items())
        results[name] = {"world": args.world_size, "log": trainer.state.log_history, "moved": moved}
    if trainer.is_world_process_zero():
        for name in results:
            weights = load_palm(f"{output_dir}/{name}").state_dict()
            weights.pop("lm_head.weight")  # shares the memory of the embeddings
            save_file(weights, f"{output_dir}/{name}.safetensors")
        (Path(output_dir) / "results.json").write_text(json.dumps(results))
    trainer.accelerator.wait_for_everyone()
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
