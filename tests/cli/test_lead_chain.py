"""LEAD by the command line alone: train, generate, evaluate and a page, on the phantom and a tiny backbone."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.data.phantom import phantom_splits
from rrg_hf.data.report_file import ReportFile
from rrg_hf.data.store import save_studies
from rrg_hf.errors import CheckpointError, ConfigError
from rrg_hf.pipeline import ReportGenerationPipeline, load_report_model, weights_sha256
from tests.data.conftest import build_dicom
from tests.tiny_lead import make_checkpoint


def run(*words: object) -> Result:
    """Errors come back as they are raised; `rrg` itself prints them as one line."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    result = CliRunner().invoke(app, [str(word) for word in words])
    root.handlers[:], root.level = handlers, level
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a backbone, phantom studies, and what `rrg train lead` made of them in `out`."""
    root = tmp_path_factory.mktemp("chain")
    make_checkpoint("qwen3_vl", root / "backbone")
    save_studies(phantom_splits({"train": 8, "validation": 3, "test": 6}, size=64), root / "studies")
    content = {
        "model": {
            "path": str(root / "backbone"),
            "lead": {"expert_hidden_size": 8, "projection_rank": 6, "gate_rank": 4},
            "processor": {"image_size": 32},
        },
        "data": {"train_dataset": str(root / "studies")},
        "training": {
            "output_dir": str(root / "out"),
            "max_steps": 3,
            "learning_rate": 0.01,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "lora_r": 4,
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "generation_max_new_tokens": 6,
        },
    }
    (root / "recipe.yaml").write_text(yaml.safe_dump(content))
    result = run(
        "train",
        "lead",
        root / "recipe.yaml",
        "--eval-strategy",
        "steps",
        "eval_steps=1",
        "save_strategy=steps",
        "save_steps=1",
    )
    assert result.exit_code == 0, result.output
    assert f"Model saved to {root / 'out'}" in result.output
    yield root


GENERATE = ("--device", "cpu", "--max-new-tokens", 12)


def test_a_finished_run_is_left_alone(root: Path) -> None:
    before = weights_sha256(root / "out")
    result = run("train", "lead", root / "recipe.yaml")
    assert result.exit_code == 0 and "finished earlier" in result.output
    assert weights_sha256(root / "out") == before
    with pytest.raises(ConfigError, match="did you mean 'training_mode'"):
        run("train", "lead", root / "recipe.yaml", "--trainig-mode", "llm")


def test_train_generate_evaluate(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "reports.jsonl"
    result = run("generate", root / "out", root / "studies", "--split", "test", "-o", output, *GENERATE)
    assert result.exit_code == 0 and "6 reports written" in result.output
    assert "this model knows only the phantom" in result.output
    rows = read(output)
    assert len({row["study_id"] for row in rows}) == 6
    assert rows[0]["source"] == "trained on phantom" and rows[0]["revision"] == weights_sha256(root / "out")
    decoding = {"num_beams": 2, "max_new_tokens": 12, "do_sample": False, "repetition_penalty": 1.05}
    assert rows[0]["settings"] == decoding  # as the trainer saved them
    loaded = load_report_model(root / "out")
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu", max_new_tokens=12)
    from rrg_hf.data.store import load_studies

    assert [row["report"] for row in rows] == [
        entry[0]["report"] for entry in write(load_studies(root / "studies", "test"))
    ]
    scores = tmp_path / "scores.json"
    words = ("--references", root / "studies", "--split", "test", "--metrics", "rules", "--bootstrap", 20)
    result = run("evaluate", output, *words, "-o", scores)
    assert result.exit_code == 0, result.output
    evaluated = json.loads(scores.read_text())
    assert evaluated["n"] == 6 and evaluated["protocol"]["phantom"] is True
    assert evaluated["protocol"]["generation"]["settings"] == [decoding]
    assert 0 <= evaluated["scores"]["rules_micro_f1"]["value"] <= 1


def test_explicit_decoding_wins(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "greedy.jsonl"
    command = ("generate", root / "out", root / "studies", "--split", "test", "-o", output, *GENERATE)
    assert run(*command, "--num-beams", 1).exit_code == 0
    assert read(output)[0]["settings"]["num_beams"] == 1
    with pytest.raises(ConfigError, match=r"other settings \(num_beams\)"):
        run(*command)


def test_files_folders_and_dicom_are_read_and_bad_ones_listed(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for index, name in enumerate(("a.png", "b.jpg")):
        pixels = np.random.default_rng(index).integers(0, 256, (70, 90), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    pixels = np.random.default_rng(3).integers(0, 4096, (64, 64), dtype=np.uint16)
    (folder / "c.dcm").write_bytes(build_dicom(pixels))
    (folder / "bad.png").write_bytes(b"")
    output = tmp_path / "reports.jsonl"
    result = run("generate", root / "out", folder, "-o", output, *GENERATE, "--indication", "Cough.")
    assert result.exit_code == 0 and "1 skipped" in result.output
    assert [row["study_id"] for row in read(output)] == ["a", "b", "c"]
    assert [row["study_id"] for row in read(tmp_path / "reports.skipped.jsonl")] == ["bad"]
    loaded = load_report_model(root / "out")
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu", max_new_tokens=12)
    expected = [write(folder / name, indication="Cough.")[0]["report"] for name in ("a.png", "b.jpg", "c.dcm")]
    assert [row["report"] for row in read(output)] == expected and len(set(expected)) > 1


class Killed(BaseException):
    """What `kill -9` looks like from inside: nothing below runs."""


def test_a_killed_run_goes_on(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("generate", root / "out", root / "studies", "--split", "test", "--batch-size", 2, *GENERATE)
    whole, output = tmp_path / "whole.jsonl", tmp_path / "reports.jsonl"
    run(*command, "-o", whole)
    append = ReportFile.append

    def kill(self: ReportFile, rows: Any) -> None:
        if len(self.done) == 2:
            self._stream.write(b'{"study_id": "c", "rep')
            raise Killed
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(ReportFile, "append", kill)
        with pytest.raises(Killed):
            run(*command, "-o", output)
    result = run(*command, "-o", output)
    assert "the last line was torn" in result.output and "2 of 6 are already there" in result.output
    assert read(output) == read(whole)


def test_an_adapter_folder_writes_what_the_merged_model_writes(root: Path, tmp_path: Path) -> None:
    reports = {}
    for name in ("out", "out/adapter"):
        output = tmp_path / f"{name.replace('/', '_')}.jsonl"
        run("generate", root / name, root / "studies", "--split", "test", "-o", output, *GENERATE)
        reports[name] = read(output)
    merged, adapter = reports.values()
    assert [row["report"] for row in adapter] == [row["report"] for row in merged]
    assert adapter[0]["settings"] == merged[0]["settings"] and adapter[0]["source"] == "trained on phantom"
    assert adapter[0]["revision"] == weights_sha256(root / "out" / "adapter") != merged[0]["revision"]
    lost = tmp_path / "lost"
    shutil.copytree(root / "out" / "adapter", lost)
    content = json.loads((lost / "adapter_config.json").read_text())
    (lost / "adapter_config.json").write_text(
        json.dumps({**content, "base_model_name_or_path": str(tmp_path / "gone")})
    )
    with pytest.raises(CheckpointError, match=r"is an adapter of .*gone, which cannot be found"):
        run("generate", lost, root / "studies", "--split", "test", "-o", tmp_path / "lost.jsonl", *GENERATE)
    assert not (tmp_path / "lost.jsonl").exists()


@pytest.mark.parametrize("name", ["out", "out/adapter"])
def test_a_page_with_evidence_maps_and_curves(name: str, root: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    result = run(
        "page", "--model", root / name, "--data", root / "studies", "-o", output, "--device", "cpu",
        "--max-new-tokens", 12, "--evidence", 3, "--cases", 2, "--bootstrap", 20, "--batch-size", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    numbers = json.loads(output.with_suffix(".json").read_text())
    assert numbers["evidence"]["n"] == 3 and numbers["evidence"]["mask_kind"] == "dataset"
    assert numbers["evidence"]["protocol"]["phantom"] is True
    page = output.read_text()
    assert 'id="case-2"' in page
    curves = "language loss" in page and "expert loss" in page
    assert curves == (name == "out")  # the folder that the trainer's state lies in
    assert read(output.with_suffix(".reports.jsonl"))[0]["settings"]["num_beams"] == 2
