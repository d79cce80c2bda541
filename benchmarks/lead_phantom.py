"""The rows of LEAD's ablation (paper, Tables II and VI) on phantoms: same backbone, same data, same budget, 3 seeds.

    python benchmarks/lead_phantom.py --out runs                                   # all of it, one after the other
    python benchmarks/lead_phantom.py --out runs --prepare                         # data and backbone only, then ...
    python benchmarks/lead_phantom.py --out runs --rows vanilla lead --seeds 0     # ... parts, at the same time
    python benchmarks/lead_phantom.py --out runs --table                           # what is finished

Every finished run is one JSON file in OUT/runs and is not repeated. All rows start from one small backbone in
Qwen3-VL's layout (`_lead_backbone.py`) and are trained by `LeadTrainer` on the same studies; a seed changes the fresh
parts and the order of the studies. `test` follows the training distribution; in `test_shifted` findings no longer come
in their usual company, and no longer with their usual indications, so that a language prior misleads.

Scores are `rules` F1 over the 14 observations. Intervals are 95 % percentile bootstraps over studies and seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _lead_backbone import PROMPT, BackboneRecipe, write_backbone
from datasets import Dataset, load_from_disk

from rrg_hf.data.phantom import phantom_splits
from rrg_hf.evaluation.experts import evaluate_experts
from rrg_hf.metrics.observation_scores import label_statistics
from rrg_hf.text.rules import label_report
from rrg_hf.trainers.lead_config import LeadTrainingArguments
from rrg_hf.trainers.lead_loading import load_lead, load_lead_processor
from rrg_hf.trainers.lead_trainer import LeadTrainer

logger = logging.getLogger("lead_phantom")

SPLITS = ("test", "test_shifted")
PARTS: dict[str, Any] = {"expert_hidden_size": 32, "projection_rank": 64, "gate_rank": 32}
# row -> (what it is called in the table, fields of LeadConfig)
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("backbone", {"fusion": "none", "expert_loss_weight": 0.0}),
    "experts": ("experts, nothing injected", {"fusion": "none"}),
    "shared": ("shared projection, gate", {"projection": "shared"}),
    "add": ("layer projections, add", {"fusion": "add"}),
    "prompt": ("expert prompting", {"fusion": "none", "expert_prompting": True}),
    "lead": ("LEAD (layer projections, gate)", {}),
}
SCORES = ("rules_macro_f1", "rules_micro_f1")


@dataclass(frozen=True)
class Recipe:
    """Data and training of every run; chosen for one CPU core, none of it from the paper."""

    train: int = 3000
    test: int = 400
    epochs: float = 4.0
    batch_size: int = 32
    learning_rate: float = 1e-3
    vision_learning_rate: float = 1e-4
    max_new_tokens: int = 96
    bootstrap: int = 1000


def load_data(out: Path, recipe: Recipe, size: int) -> Any:
    """Train, test and test_shifted, drawn once."""
    folder = out / f"data-{size}-{recipe.train}-{recipe.test}"
    if not folder.is_dir():
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        sizes = {"train": recipe.train, **dict.fromkeys(SPLITS, recipe.test)}
        phantom_splits(sizes, size=size, masks=()).save_to_disk(temporary)
        temporary.replace(folder)
    return load_from_disk(str(folder))


def train_row(row: str, seed: int, backbone: Path, data: Any, recipe: Recipe, folder: Path) -> LeadTrainer:
    """One run, trained; nothing but logs is written."""
    size = BackboneRecipe().image_size
    model = load_lead(backbone, {**PARTS, **ROWS[row][1]})
    processor = load_lead_processor(backbone, image_size=size, prompt=PROMPT)
    arguments = LeadTrainingArguments(
        output_dir=str(folder),
        training_mode="full",
        seed=seed,
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=50,
        gradient_accumulation_steps=1,
        learning_rate=recipe.learning_rate,
        vision_learning_rate=recipe.vision_learning_rate,
        generation_num_beams=1,
        generation_repetition_penalty=1.0,
        generation_max_new_tokens=recipe.max_new_tokens,
        save_strategy="no",
        eval_strategy="no",
        logging_steps=25,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    trainer = LeadTrainer(model, arguments, train_dataset=data["train"], processing_class=processor)
    trainer.train()
    return trainer


def run_row(row: str, seed: int, out: Path, recipe: Recipe, data: Any, backbone: Path) -> Path:
    """Train and score one row with one seed; a finished one is left as it is."""
    path = out / "runs" / f"{row}-{seed}.json"
    settings = {"recipe": asdict(recipe), "parts": {**PARTS, **ROWS[row][1]}}
    if path.is_file():
        if json.loads(path.read_text(encoding="utf-8"))["settings"] != settings:
            raise SystemExit(f"{path.name} was made with other settings. Use another --out, or remove it.")
        logger.info("%s seed %d: finished earlier", row, seed)
        return path
    start = time.perf_counter()
    folder = out / "work" / f"{row}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    trainer = train_row(row, seed, backbone, data, recipe, folder)
    trained = time.perf_counter() - start
    curve = [
        {name: entry[name] for name in ("epoch", "language_loss", "expert_loss") if name in entry}
        for entry in trainer.state.log_history
        if "language_loss" in entry
    ]
    result: dict[str, Any] = {"row": row, "seed": seed, "settings": settings, "train_s": trained, "curve": curve}
    for split in SPLITS:
        reports = trainer.generate_reports(data[split])
        result[split] = {"reports": {entry["study_id"]: entry["report"] for entry in reports}}
        if ROWS[row][1].get("expert_loss_weight", 1.0):
            experts = evaluate_experts(trainer.lead, trainer.processing_class, data[split], bootstrap=0, batch_size=50)
            result[split]["expert_scores"] = {name: score["value"] for name, score in experts.scores.items()}
    result["seconds"] = time.perf_counter() - start
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result), encoding="utf-8")
    temporary.replace(path)
    shutil.rmtree(folder, ignore_errors=True)
    logger.info(
        "%s seed %d: %.0f s, macro-F1 %s",
        row,
        seed,
        result["seconds"],
        ", ".join(f"{split} {_corpus(result, data[split], split)['rules_macro_f1']:.3f}" for split in SPLITS),
    )
    return path


def _values(result: Mapping[str, Any], rows: Dataset, split: str) -> Any:
    written = result[split]["reports"]
    missing = [study_id for study_id in rows["study_id"] if study_id not in written]
    if missing:
        raise SystemExit(f"{result['row']}-{result['seed']} lacks reports of {len(missing)} studies of {split}.")
    references = [label_report(text) for text in rows["findings"]]
    hypotheses = [label_report(written[study_id]) for study_id in rows["study_id"]]
    return label_statistics(references, hypotheses)


def _corpus(result: Mapping[str, Any], rows: Dataset, split: str) -> dict[str, float]:
    return _values(result, rows, split).corpus()


def prior_result(data: Any) -> dict[str, Any]:
    """Reports written without any image: the most typical training report of the study's indication."""
    from rrg_hf.demo.baselines import prior_reports

    train = list(zip(data["train"]["indication"], data["train"]["findings"], strict=True))
    result: dict[str, Any] = {"row": "prior", "seed": 0, "seconds": 0.0}
    for split in SPLITS:
        studies = list(zip(data[split]["study_id"], data[split]["indication"], strict=True))
        result[split] = {"reports": prior_reports(train, studies)}
    return result


class Resampled:
    """Scores of one row on one split under common resamples of studies and of its seeds."""

    def __init__(self, results: Sequence[Mapping[str, Any]], rows: Dataset, split: str, resamples: int) -> None:
        statistics = [_values(result, rows, split) for result in results]
        self.score = statistics[0].score
        values = np.stack([item.values for item in statistics])  # (seeds, N, K)
        generator = np.random.default_rng(0)  # the same studies for every row, so that differences are paired
        count = values.shape[1]
        weights = generator.multinomial(count, np.full(count, 1 / count), size=resamples).astype(float)
        chosen = np.random.default_rng(1).integers(len(values), size=(resamples, len(values)))
        sums = np.einsum("bn,snk->bsk", weights, values)
        by_seed = self.score(values.sum(1))
        self.seeds = {name: by_seed[name] for name in SCORES}
        self.values = {name: float(scores.mean()) for name, scores in self.seeds.items()}
        drawn = self.score(sums)
        self.draws = {name: np.take_along_axis(drawn[name], chosen, axis=1).mean(1) for name in SCORES}
        macro = [result[split].get("expert_scores", {}).get("macro_auroc") for result in results]
        self.auroc = [value for value in macro if value is not None]


def make_table(out: Path, recipe: Recipe, data: Any) -> str:
    """Markdown of all finished runs; also written to OUT/table.md and, with every number, OUT/table.json."""
    results: dict[str, list[dict[str, Any]]] = {"prior": [prior_result(data)]}
    for row in ROWS:
        paths = sorted((out / "runs").glob(f"{row}-*.json"))
        if paths:
            results[row] = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    scored = {
        row: {split: Resampled(found, data[split], split, recipe.bootstrap) for split in SPLITS}
        for row, found in results.items()
    }
    header = ["row", "seeds"]
    for split in SPLITS:
        header += [f"{split}: macro-F1", "micro-F1", "expert macro AUROC"]
    lines = ["| " + " | ".join([*header, "s/run"]) + " |", "|" + "---|" * (len(header) + 1)]
    content: dict[str, Any] = {"recipe": asdict(recipe), "backbone": asdict(BackboneRecipe()), "rows": {}}
    for row, splits in scored.items():
        name = "prior report, no image" if row == "prior" else ROWS[row][0]
        cells = [name, str(len(results[row]))]
        entry: dict[str, Any] = {"seconds": [result["seconds"] for result in results[row]]}
        for split, resampled in splits.items():
            entry[split] = {}
            for score in SCORES:
                low, high = np.percentile(resampled.draws[score], [2.5, 97.5])
                cells.append(f"{resampled.values[score]:.3f} ({low:.3f}-{high:.3f})")
                entry[split][score] = {
                    "value": resampled.values[score],
                    "low": float(low),
                    "high": float(high),
                    "seeds": resampled.seeds[score].tolist(),
                }
            area = resampled.auroc
            cells.append(f"{np.mean(area):.3f} ({min(area):.3f}-{max(area):.3f})" if area else "-")
            entry[split]["expert_macro_auroc"] = area
        content["rows"][row] = entry
        lines.append("| " + " | ".join([*cells, f"{np.mean(entry['seconds']):.0f}" if row in ROWS else "-"]) + " |")
    lines += ["", *_differences(scored, content)]
    table = "\n".join(lines) + "\n"
    for path, text in ((out / "table.md", table), (out / "table.json", json.dumps(content, indent=1))):
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return table


def _differences(scored: Mapping[str, Mapping[str, Resampled]], content: dict[str, Any]) -> list[str]:
    """LEAD minus each other row, over the same resampled studies."""
    if "lead" not in scored:
        return []
    lines = ["| LEAD minus | " + " | ".join(f"{split}: macro-F1" for split in SPLITS) + " |"]
    lines.append("|" + "---|" * (1 + len(SPLITS)))
    score = SCORES[0]
    for row in scored:
        if row == "lead":
            continue
        cells = []
        for split in SPLITS:
            ours, theirs = scored["lead"][split], scored[row][split]
            gap = ours.values[score] - theirs.values[score]
            low, high = np.percentile(ours.draws[score] - theirs.draws[score], [2.5, 97.5])
            cells.append(f"{gap:+.3f} ({low:+.3f} to {high:+.3f})")
            content["rows"][row][split]["lead_minus_this"] = {"value": gap, "low": float(low), "high": float(high)}
        name = "prior report, no image" if row == "prior" else ROWS[row][0]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data, backbone, runs and table")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prepare", action="store_true", help="make data and backbone and stop")
    parser.add_argument("--table", action="store_true", help="only write the table of what is finished")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of this process")
    for name, default in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("rrg_hf", "transformers", "datasets", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    recipe = Recipe(**{name: getattr(arguments, name) for name in asdict(Recipe())})
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = load_data(arguments.out, recipe, BackboneRecipe().image_size)
    if not arguments.table:
        backbone = write_backbone(arguments.out / "backbone", BackboneRecipe())
        if arguments.prepare:
            print((backbone / "pretraining.json").read_text(encoding="utf-8"))
            return
        for seed in arguments.seeds:
            for row in arguments.rows:
                run_row(row, seed, arguments.out, recipe, data, backbone)
    print(make_table(arguments.out, recipe, data))


if __name__ == "__main__":
    main()
