"""The demo's job: draw phantoms, train PALM in three stages, generate, evaluate, test the evidence, write a page.

Everything goes through the library's public parts, in the order in which a user would call them on real data.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .backbones import ENCODER_DIR, write_decoder_backbone, write_text_backbone
from .baselines import prior_reports
from .recipe import DemoRecipe

if TYPE_CHECKING:
    from datasets import DatasetDict

    from ..pipeline import ReportGenerationPipeline

Say = Callable[[str], None]

PALM = "PALM"
ABLATION = "PALM without MEM and PAA"
PRIOR = "prior only (no image)"
SYSTEMS = (PALM, ABLATION, PRIOR)
TEST_SPLITS = ("test", "test_shifted")
EVIDENCE_MASKS = ("left lung", "right lung", "cardiac silhouette", "upper mediastinum")
EXAMPLE_IMAGE = Path(__file__).parent / "example_images" / "nih_00000001_000.png"
EXAMPLE_CREDIT = (
    "NIH ChestX-ray14, image 00000001_000, provided by the NIH Clinical Center (nihcc.app.box.com/v/ChestXray-NIHCC); "
    "Wang et al., CVPR 2017."
)
PHANTOM_ONLY = "This model knows only the phantom: what it writes about a real radiograph means nothing."
_MARKER = "rrg_demo.json"
EVAL_BATCH_SIZE = 100


def run_demo(recipe: DemoRecipe, out: Path, *, say: Say, overwrite: bool = False) -> dict[str, Any]:
    """Run the whole demo.

    Args:
        recipe: sizes and schedules.
        out: folder for everything the demo writes. An earlier demo there is replaced; any other folder is refused
            unless it is empty.
        say: called with one line of progress at a time.
        overwrite: also replace a folder that holds something else.

    Returns:
        What metrics.json holds.

    Raises:
        ConfigError: `out` holds something that is not a demo's.
    """
    start = time.perf_counter()
    prepare_folder(out, overwrite=overwrite)
    (out / _MARKER).write_text(json.dumps({"recipe": asdict(recipe), "finished": False}))

    def report(line: str) -> None:
        say(f"[{time.perf_counter() - start:4.0f} s] {line}")

    report(f"drawing {recipe.train + recipe.validation + recipe.test + recipe.test_shifted} phantoms")
    studies = draw_studies(recipe)
    backbones = write_backbones(recipe, studies["train"], out / "backbones")

    models = {
        PALM: train_palm(recipe, studies, backbones, out / "palm", ablation=False, say=report),
        ABLATION: train_palm(recipe, studies, backbones, out / "ablation", ablation=True, say=report),
    }
    results, reports = evaluate_systems(recipe, studies, models, out, say=report)
    evidence = measure_evidence(recipe, studies, models, say=report)
    example = describe_example(models[PALM], out)
    report(f"a real image, through a fresh AutoModelForImageTextToText: {example['report']}")
    report(f"  ({PHANTOM_ONLY} Image: {EXAMPLE_CREDIT})")

    seconds = time.perf_counter() - start
    metrics = summary(recipe, results, evidence, example, seconds)
    write_json(out / "metrics.json", metrics)
    write_card(models[PALM], results[PALM], evidence[PALM])
    write_report_page(recipe, studies, models, reports, results, evidence, example, out, say=report)
    write_json(out / _MARKER, {"recipe": asdict(recipe), "finished": True})
    for line in verdict(metrics):
        say(line)
    report(f"done. Open {out / 'report.html'}")
    return metrics


def prepare_folder(out: Path, *, overwrite: bool) -> None:
    """An empty folder; an earlier demo in it is removed.

    Raises:
        ConfigError: a file, or a folder with something else in it.
    """
    if out.is_file():
        raise ConfigError(f"--out {out} is a file. Name a folder.")
    if out.is_dir() and any(out.iterdir()):
        if not (out / _MARKER).is_file() and not overwrite:
            raise ConfigError(
                f"{out} is not empty and holds no earlier demo. Choose another --out or add --overwrite."
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    from ..evaluation.result import write_atomically

    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


# --- data and backbones ----------------------------------------------------------------------------------------


def draw_studies(recipe: DemoRecipe) -> DatasetDict:
    """The four splits; the test splits with the masks of the evidence test."""
    from datasets import DatasetDict

    from ..data.phantom import phantom_dataset

    sizes = {"train": recipe.train, "validation": recipe.validation}
    sizes |= {"test": recipe.test, "test_shifted": recipe.test_shifted}
    return DatasetDict(
        {
            split: phantom_dataset(
                count,
                seed=recipe.seed,
                split=split,
                size=recipe.image_size,
                masks=EVIDENCE_MASKS if split in TEST_SPLITS else (),
            )
            for split, count in sizes.items()
        }
    )


def write_backbones(recipe: DemoRecipe, train: Any, folder: Path) -> dict[str, str]:
    """Folders of the three backbones, as `PalmForReportGeneration.from_backbones` reads them."""
    texts = [*train["findings"], *(text for text in train["indication"] if text)]
    sizes: dict[str, Any] = {"hidden_size": recipe.projection_dim, "seed": recipe.seed}
    text = write_text_backbone(folder / "text", texts, num_layers=recipe.text_layers, **sizes)
    decoder = write_decoder_backbone(folder / "decoder", texts, num_layers=recipe.decoder_layers, **sizes)
    return {"vision": str(ENCODER_DIR), "text": str(text), "decoder": str(decoder)}


# --- training --------------------------------------------------------------------------------------------------


def train_palm(
    recipe: DemoRecipe, studies: DatasetDict, backbones: dict[str, str], folder: Path, *, ablation: bool, say: Say
) -> Path:
    """The three stages (without MEM and with contrastive alignment for the ablation); the generate stage's folder."""
    from ..data.store import save_studies
    from ..trainers.palm_recipe import PalmRecipe, check_recipe, run_recipe

    data = folder.parent / "studies"
    if not data.is_dir():
        save_studies(studies, data)
    config: dict[str, Any] = {
        "projection_dim": recipe.projection_dim,
        "fusion_layers": recipe.fusion_layers,
        "fusion_dropout": 0.0,
    }
    if ablation:
        config["alignment"] = "contrastive"
    common = {
        "output_dir": str(folder),
        "per_device_eval_batch_size": EVAL_BATCH_SIZE,
        "eval_strategy": "steps",
        "eval_steps": 0.25,  # a share of all steps
        "save_strategy": "steps",
        "save_steps": 0.25,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 20,
        "weight_decay": 0.01,
        "logging_steps": 10,
        "cache_pixel_values": True,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": recipe.seed,
        "save_total_limit": 1,
        "generation_max_new_tokens": recipe.max_new_tokens,
        # the text encoder starts untrained, so encoded names would all start at one point
        "initialize_prototypes": False,
    }
    plan = PalmRecipe(
        model={"backbones": backbones, "config": config},
        data={"train_dataset": str(data), "split": "train", "eval_split": "validation"},
        training={**common, **({"skip_stages": ["mem"]} if ablation else {})},
        stages={
            "mem": {
                "num_train_epochs": recipe.mem_epochs,
                "learning_rate": recipe.mem_learning_rate,
                "vision_learning_rate": recipe.vision_learning_rate,
                "per_device_train_batch_size": recipe.mem_batch_size,
            },
            "align": {
                "num_train_epochs": recipe.align_epochs,
                "learning_rate": recipe.align_learning_rate,
                "vision_learning_rate": recipe.vision_learning_rate,
                "per_device_train_batch_size": recipe.align_batch_size,
            },
            "generate": {
                "num_train_epochs": recipe.generate_epochs,
                "learning_rate": recipe.generate_learning_rate,
                "vision_learning_rate": recipe.generate_vision_learning_rate,
                "per_device_train_batch_size": recipe.generate_batch_size,
            },
        },
    )
    check_recipe(plan)
    name = ABLATION if ablation else PALM
    folders = run_recipe(plan, say=lambda line: say(f"{name}: {line}"))
    return folders["generate"]


# --- generation and scores -------------------------------------------------------------------------------------


def writer(model_dir: Path, recipe: DemoRecipe) -> ReportGenerationPipeline:
    """A checkpoint that writes greedy reports."""
    from ..pipeline import ReportGenerationPipeline, load_report_model

    loaded = load_report_model(model_dir)
    return ReportGenerationPipeline(
        loaded.model, loaded.processor, device="cpu", do_sample=False, max_new_tokens=recipe.max_new_tokens
    )


def evaluate_systems(
    recipe: DemoRecipe, studies: DatasetDict, models: Mapping[str, Path], out: Path, *, say: Say
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, dict[str, str]]]]:
    """Reports and scores of the three systems on both test splits.

    Returns:
        system to split to `EvaluationResult`, and system to split to study_id to report.
    """
    from ..evaluation import evaluate_reports
    from ..evaluation.protocol import library_versions

    train = studies["train"]
    pairs = list(zip(train["indication"], train["findings"], strict=True))
    reports: dict[str, dict[str, dict[str, str]]] = {}
    for system in SYSTEMS:
        pipeline = writer(models[system], recipe) if system in models else None
        reports[system] = {}
        for split in TEST_SPLITS:
            rows = studies[split]
            ids = list(rows["study_id"])
            if pipeline is None:
                reports[system][split] = prior_reports(pairs, list(zip(ids, rows["indication"], strict=True)))
            else:
                texts = [written[0]["report"] for written in pipeline(rows, batch_size=EVAL_BATCH_SIZE)]
                reports[system][split] = dict(zip(ids, texts, strict=True))
    results: dict[str, dict[str, Any]] = {}
    for system in SYSTEMS:
        results[system] = {}
        for split in TEST_SPLITS:
            rows = studies[split]
            references = dict(zip(rows["study_id"], rows["findings"], strict=True))
            result = evaluate_reports(
                reports[system][split],
                references,
                bootstrap=recipe.bootstrap,
                seed=recipe.seed,
                sources={"phantom"},
                generation={"do_sample": False, "max_new_tokens": recipe.max_new_tokens},
            )
            result.protocol.split = split
            result.protocol.versions |= library_versions(networks=True)  # networks wrote the reports
            results[system][split] = result
            say(f"{system}, {split}: rules micro-F1 {value(result, 'rules_micro_f1'):.3f}, BLEU-4 "
                f"{value(result, 'bleu_4'):.3f}")  # fmt: skip
    write_jsonl(out / "reports.jsonl", report_lines(recipe, models[PALM], reports[PALM]))
    return results, reports


def value(result: Any, name: str) -> float:
    return float(result.scores[name]["value"])


def report_lines(
    recipe: DemoRecipe, model: Path, reports: Mapping[str, Mapping[str, str]]
) -> Iterable[dict[str, Any]]:
    from ..pipeline import weights_sha256

    revision = weights_sha256(model)
    for split, texts in reports.items():
        for study_id, text in texts.items():
            yield {
                "study_id": study_id,
                "report": text,
                "model": "palm/generate",
                "revision": revision,
                "settings": {"do_sample": False, "max_new_tokens": recipe.max_new_tokens},
                "images": [],
                "split": split,
                "source": "phantom",
            }


def write_jsonl(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    from ..evaluation.result import write_atomically

    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def measure_evidence(
    recipe: DemoRecipe, studies: DatasetDict, models: Mapping[str, Path], *, say: Say
) -> dict[str, Any]:
    """PALM's Table 4 on the first studies of `test`, for both trained systems."""
    from ..evaluation import evidence_test
    from ..evaluation.protocol import library_versions

    rows = studies["test"].select(range(min(recipe.evidence, len(studies["test"]))))
    results = {}
    for system, folder in models.items():
        results[system] = evidence_test(
            writer(folder, recipe).write_studies,
            rows,
            bootstrap=recipe.bootstrap,
            seed=recipe.seed,
            batch_size=EVAL_BATCH_SIZE,
        )
        results[system].protocol["versions"] |= library_versions(networks=True)
        drops = ", ".join(f"{name} {entry['drop']['value']:+.3f}" for name, entry in results[system].regions.items())
        say(f"{system}, drop of micro-F1 when occluded: {drops}")
    return results


def describe_example(model_dir: Path, out: Path) -> dict[str, Any]:
    """A report for the real example image, by a model loaded afresh through the Auto classes."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from ..data.images import read_image

    model = AutoModelForImageTextToText.from_pretrained(model_dir).eval()
    processor = AutoProcessor.from_pretrained(model_dir)
    inputs = processor(images=read_image(EXAMPLE_IMAGE))
    text = processor.batch_decode(model.generate(**inputs, max_new_tokens=128), skip_special_tokens=True)[0].strip()
    example = {"image": EXAMPLE_IMAGE.name, "report": text, "warning": PHANTOM_ONLY, "credit": EXAMPLE_CREDIT}
    write_json(out / "example_report.json", example)
    return example


# --- what is written -------------------------------------------------------------------------------------------


def summary(
    recipe: DemoRecipe,
    results: Mapping[str, Mapping[str, Any]],
    evidence: Mapping[str, Any],
    example: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """metrics.json: every score with its protocol."""
    return {
        "data": "phantom: drawn images and written reports, from no patient",
        "recipe": asdict(recipe),
        "seconds": round(seconds, 1),
        "systems": {
            system: {split: result.to_dict() for split, result in by_split.items()}
            for system, by_split in results.items()
        },
        "evidence": {system: result.to_dict() for system, result in evidence.items()},
        "example": dict(example),
    }


def verdict(metrics: Mapping[str, Any]) -> list[str]:
    """The lines a newcomer reads last."""

    def f1(system: str, split: str) -> str:
        score = metrics["systems"][system][split]["scores"]["rules_micro_f1"]
        return f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"

    width = max(len(system) for system in SYSTEMS)
    lines = ["", f"{'rules micro-F1':<{width}}  {'test':<22}  test_shifted (the language prior is broken)"]
    lines += [f"{system:<{width}}  {f1(system, 'test'):<22}  {f1(system, 'test_shifted')}" for system in SYSTEMS]
    palm, ablation = (metrics["systems"][system]["test"]["scores"]["rules_micro_f1"] for system in (PALM, ABLATION))
    if palm["low"] <= ablation["high"] and ablation["low"] <= palm["high"]:
        lines.append("The intervals of PALM and its ablation overlap on test: at this size there is no clear gain.")
    evidence = metrics["evidence"][PALM]
    exceeds = evidence["anatomical_exceeds_background"]
    lines.append(
        f"occlusion: anatomy costs {evidence['anatomical_drop']:+.3f}, background "
        f"{evidence['regions']['background']['drop']['value']:+.3f}: the model "
        + ("uses the anatomy" if exceeds else "does NOT depend on the anatomy more than on the background")
    )
    return [*lines, ""]


def write_card(model_dir: Path, results: Mapping[str, Any], evidence: Any) -> None:
    from ..evaluation.result import write_atomically
    from ..model_cards import build_card

    card = build_card(
        model_dir, name="PALM on the phantom (demo)", metrics=results, evidence=evidence, license="apache-2.0"
    )
    write_atomically(model_dir / "README.md", card)


def write_report_page(
    recipe: DemoRecipe,
    studies: DatasetDict,
    models: Mapping[str, Path],
    reports: Mapping[str, Mapping[str, Mapping[str, str]]],
    results: Mapping[str, Mapping[str, Any]],
    evidence: Mapping[str, Any],
    example: Mapping[str, Any],
    out: Path,
    *,
    say: Say,
) -> None:
    """report.html: scores, evidence, cases with a heat map per sentence, training curves, the real example."""
    from ..data.images import read_image
    from ..evaluation.page import PageCase, write_page
    from ..evaluation.page_studies import explain_with, run_curves, study_cases
    from ..trainers.palm_config import STAGES

    say("explaining cases sentence by sentence")
    pipeline = writer(models[PALM], recipe)
    explain = explain_with(pipeline.model, pipeline.processor)
    cases = [
        case
        for split in TEST_SPLITS
        for case in study_cases(studies[split], reports[PALM][split], count=4, explain=explain, split=split)
    ]
    cases.append(
        PageCase(
            study_id="A real radiograph",
            image=read_image(EXAMPLE_IMAGE),
            generated=example["report"],
            source="nih_chestxray14",
            note=f"{PHANTOM_ONLY} Image: {EXAMPLE_CREDIT}",
        )
    )
    write_page(
        out / "report.html",
        title="PALM on the phantom",
        cases=cases,
        results=results,
        curves=run_curves(models[PALM], STAGES),
        evidence=dict(evidence),
        notes=[
            f"Made by `rrg demo` ({recipe.name}): {recipe.train} training phantoms of {recipe.image_size} pixels.",
            "test_shifted draws the same anatomy and findings, but breaks the correlations between indications, "
            "findings and stock phrases that the training reports have.",
            f"“{PRIOR}” writes the most typical training report for a study's indication and never sees an image.",
            f"“{ABLATION}” is the same model trained with a contrastive alignment instead of prototypes and without "
            "masked evidence modelling (the first row of the paper's Table 3).",
            "Unlike the paper: text encoder and decoder start untrained, so the prototypes start at random and "
            f"not from encoded pathology names; the tower learns at {recipe.vision_learning_rate:g} in the first two "
            "stages and is frozen in the last, to save time.",
            f"The last case is a real radiograph. {PHANTOM_ONLY}",
        ],
        phantom=True,
    )
