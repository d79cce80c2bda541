"""What a trainer saved writes through the pipeline and `rrg generate` what it wrote in the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from typer.testing import CliRunner

from rrg_hf.cli import app
from rrg_hf.data.store import save_studies
from rrg_hf.errors import ConfigError
from rrg_hf.pipeline import ReportGenerationPipeline, load_report_model
from tests.trainers.conftest import MakeLeadTrainer, MakeTrainer

LENGTH = 8
INDICATIONS = ["___ year old with  cough.\n1. Fever", None, "Shortness of breath", "___", "N/A"]


@pytest.fixture(scope="module")
def rows(studies: DatasetDict) -> list[dict[str, Any]]:
    """Studies whose indications hold what real ones hold: placeholders, line breaks, list numbers, nothing."""
    found = [dict(row) for row in studies["validation"]]
    return [{**row, "indication": text} for row, text in zip(found, INDICATIONS, strict=True)]


def one_line(texts: list[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def train_and_save(trainer: Any) -> None:
    trainer.train()
    trainer.save_model()
    trainer.model.eval()


def written(folder: Path, rows: list[dict[str, Any]], *, honour: bool = True) -> list[str]:
    """By the pipeline, with or without what the training record says about indications."""
    loaded = load_report_model(folder)
    settings = loaded.text_settings if honour else {}
    pipeline = ReportGenerationPipeline(
        loaded.model, loaded.processor, device="cpu", max_new_tokens=LENGTH, **settings
    )
    return [entry[0]["report"] for entry in pipeline(rows, batch_size=3)]


@pytest.mark.parametrize("prompting", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("family", ["qwen3_vl", "internvl", "mistral3"])
def test_lead_folders_write_what_their_trainer_writes(
    family: str, merge: bool, prompting: bool, make_lead_trainer: MakeLeadTrainer, rows: list[dict[str, Any]],
    tmp_path: Path,
) -> None:  # fmt: skip
    trainer = make_lead_trainer(
        family, merge_adapter=merge, generation_max_new_tokens=LENGTH, lead={"expert_prompting": prompting}
    )
    train_and_save(trainer)
    expected = one_line(trainer.write_texts(rows))
    assert len(set(expected)) > 2
    for folder in [tmp_path / "lead", *([tmp_path / "lead" / "adapter"] if merge else [])]:
        assert written(folder, rows) == expected


@pytest.mark.parametrize("settings", [{"use_indication": False}, {"cleaning": "r2gen_mimic"}])
def test_lead_reads_indications_as_it_was_trained(
    settings: dict[str, Any], make_lead_trainer: MakeLeadTrainer, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    trainer = make_lead_trainer(generation_max_new_tokens=LENGTH, **settings)
    train_and_save(trainer)
    assert load_report_model(tmp_path / "lead").text_settings == settings
    assert written(tmp_path / "lead", rows) == one_line(trainer.write_texts(rows))
    assert written(tmp_path / "lead", rows, honour=False) != written(tmp_path / "lead", rows)


@pytest.mark.parametrize("settings", [{}, {"use_indication": False}, {"cleaning": "r2gen_mimic"}])
def test_palm_reads_indications_as_it_was_trained(
    settings: dict[str, Any], make_trainer: MakeTrainer, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    trainer = make_trainer("generate", generation_max_new_tokens=LENGTH, generation_num_beams=1, **settings)
    train_and_save(trainer)
    assert load_report_model(tmp_path / "generate").text_settings == settings
    assert written(tmp_path / "generate", rows) == one_line(trainer.write_texts(rows))


def test_generate_writes_the_same_and_refuses_an_indication_that_nobody_reads(
    make_lead_trainer: MakeLeadTrainer, studies: DatasetDict, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    trainer = make_lead_trainer(merge_adapter=False, generation_max_new_tokens=LENGTH, use_indication=False)
    train_and_save(trainer)
    data = Dataset.from_list(rows, features=studies["validation"].features)
    save_studies(DatasetDict({"validation": data}), tmp_path / "data")
    output = tmp_path / "reports.jsonl"
    command = ["generate", tmp_path / "lead", tmp_path / "data", "-o", output, "--device", "cpu"]
    command += ["--max-new-tokens", LENGTH, "--batch-size", 2]
    result = CliRunner().invoke(app, list(map(str, command)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["report"] for line in lines] == one_line(trainer.write_texts(rows))
    assert lines[0]["settings"] == {
        "num_beams": 2, "max_new_tokens": LENGTH, "do_sample": False, "repetition_penalty": 1.05
    }  # fmt: skip
    with pytest.raises(ConfigError, match="was trained without indications"):
        CliRunner().invoke(app, [*map(str, command), "--indication", "Cough."], catch_exceptions=False)
