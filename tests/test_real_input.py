"""Real pixels and real text through every stage. Needs the sample data; see the `shared_dir` fixture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rrg_hf.demo.backbones import ENCODER_DIR, write_decoder_backbone, write_text_backbone

IMAGE_SUFFIXES = {".png", ".jpg"}


def run_cli(*arguments: str) -> None:
    """The `rrg` command in this process; a non-zero exit code raises."""
    from rrg_hf.cli import app

    app(list(arguments), standalone_mode=False)


@pytest.fixture(scope="module")
def memorised(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PALM trained through its three stages on the real IU pairs, by the commands a user would type."""
    import yaml
    from datasets import load_from_disk

    folder = tmp_path_factory.mktemp("memorise")
    studies = folder / "iu_xray"
    source = shared_dir / "data" / "iu_xray"
    run_cli(
        "data", "iu_xray", str(source / "NLMCXR_reports.tgz"), str(source / "indiana_projections.csv"),
        "--images", str(source / "images"), "--out", str(studies), "--fractions", "1,0,0",
    )  # fmt: skip
    texts = list(load_from_disk(str(studies))["train"]["findings"])
    assert len(texts) == 3  # four studies have images here; one of them has no findings
    sizes = {"hidden_size": 128, "num_layers": 2, "seed": 0}
    recipe = {
        "model": {
            "backbones": {
                "vision": str(ENCODER_DIR),
                "text": str(write_text_backbone(folder / "text", texts * 2, **sizes)),
                "decoder": str(write_decoder_backbone(folder / "decoder", texts * 2, **sizes)),
            },
            "config": {"fusion_dropout": 0.0},
        },
        "data": {"train_dataset": str(studies), "split": "train", "eval_split": None},
        "training": {
            "output_dir": str(folder / "palm"),
            "per_device_train_batch_size": 3,
            "max_steps": 20,
            "learning_rate": 1e-3,
            "save_strategy": "no",
            "logging_steps": 20,
            "report_to": "none",
            "cache_pixel_values": True,  # decoding full-size radiographs would take longer than learning
            "use_cpu": True,
            "disable_tqdm": True,
        },
        "stages": {"generate": {"max_steps": 150, "learning_rate": 3e-3, "warmup_steps": 10}},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    run_cli("train", "palm", str(folder / "recipe.yaml"))
    return folder


@pytest.mark.slow
def test_palm_memorises_the_real_iu_pairs(memorised: Path) -> None:
    studies, reports, scores = memorised / "iu_xray", memorised / "reports.jsonl", memorised / "metrics.json"
    model = str(memorised / "palm" / "generate")
    run_cli("generate", model, str(studies), "--split", "train", "-o", str(reports), "--max-new-tokens", "150")
    run_cli(
        "evaluate", str(reports), "--references", str(studies), "--split", "train", "--metrics", "nlg,rules",
        "-o", str(scores),
    )  # fmt: skip
    result = json.loads(scores.read_text())
    assert result["n"] == 3
    assert result["scores"]["bleu_4"]["value"] > 0.9
    assert result["scores"]["rules_micro_f1"]["value"] > 0.9
    assert result["protocol"]["phantom"] is False


@pytest.mark.slow
def test_every_real_image_gets_a_report(memorised: Path, shared_dir: Path) -> None:
    """IU, NIH, RGBA, stored rotated, masks: whatever a folder holds, nothing crashes and nothing is lost."""
    images = sorted(path for path in (shared_dir / "data").rglob("*") if path.suffix in IMAGE_SUFFIXES)
    assert len(images) > 40
    output = memorised / "all_images.jsonl"
    run_cli("generate", str(memorised / "palm" / "generate"), str(shared_dir / "data"), "-o", str(output))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == len({line["study_id"] for line in lines}) == len(images)
    assert all(line["report"].strip() for line in lines)
    assert not output.with_name("all_images.skipped.jsonl").exists()
