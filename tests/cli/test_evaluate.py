from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rrg_hf.cli.evaluate import evaluate
from rrg_hf.errors import ConfigError, DataError
from rrg_hf.evaluation import EvaluationResult

app = typer.Typer()
app.command()(evaluate)

TEXTS = {
    "a": "The lungs are clear.",
    "b": "Cardiomegaly. Small pleural effusion.",
    "c": "Right lower lobe consolidation.",
    "d": None,
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    def rows(texts: dict[str, Any], column: str, **extra: Any) -> str:
        return "".join(json.dumps({"study_id": key, column: text, **extra}) + "\n" for key, text in texts.items())

    (tmp_path / "references.jsonl").write_text(rows(TEXTS, "findings", source="phantom"))
    good = dict(TEXTS, d="Clear.")
    (tmp_path / "good.jsonl").write_text(rows(good, "report", model="good", settings={"num_beams": 3}))
    (tmp_path / "bad.jsonl").write_text(rows(dict.fromkeys(good, "The lungs are clear."), "report"))
    (tmp_path / "short.jsonl").write_text(rows({"a": TEXTS["a"]}, "report"))
    return tmp_path


def run(files: Path, *arguments: str, reports: str = "good.jsonl") -> Any:
    command = [str(files / reports), "--references", str(files / "references.jsonl"), "-o", str(files / "m.json")]
    return CliRunner().invoke(app, [*command, "--metrics", "nlg,rules", "--bootstrap", "50", *arguments])


def test_scores_tables_and_files(files: Path) -> None:
    done = run(files, "--per-sample", str(files / "rows.jsonl"))
    assert done.exit_code == 0, done.output
    assert "BLEU-4" in done.output and "Cardiomegaly" in done.output and "left out: 1" in done.output
    result = EvaluationResult.load(files / "m.json", per_sample=files / "rows.jsonl")
    assert result.n == 3 and result.value("rules_micro_f1") == 1.0
    assert [row["study_id"] for row in result.per_sample] == ["a", "b", "c"]
    assert result.protocol.generation == {"models": ["good"], "settings": [{"num_beams": 3}]}
    assert result.protocol.phantom is True and result.protocol.column == "findings"


def test_comparison_with_another_system(files: Path) -> None:
    done = run(files, "--versus", str(files / "bad.jsonl"))
    assert done.exit_code == 0, done.output
    comparison = json.loads((files / "m.json").read_text())["comparison"]
    assert comparison["file"] == "bad.jsonl" and comparison["permutations"] == 1000
    assert comparison["scores"]["rules_micro_f1"]["difference"] > 0
    assert EvaluationResult.load(files / "m.json").comparison == comparison


def test_missing_predictions(files: Path) -> None:
    done = run(files, reports="short.jsonl")
    assert isinstance(done.exception, DataError) and "2 of 3 studies have no prediction" in str(done.exception)
    assert not (files / "m.json").exists()
    assert run(files, "--allow-missing", reports="short.jsonl").exit_code == 0
    assert EvaluationResult.load(files / "m.json").protocol.skipped["no prediction"]["count"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "bleu"], "Unknown metrics"),
        (["--cleaning", "x"], "Unknown cleaning"),
        (["--policy", "x"], "Unknown uncertainty policy"),
        (["--bootstrap", "2"], "2 bootstrap resamples"),
        (["--allow-missing", "--versus", "x"], "drop --allow-missing"),
        (["--seed", "-1"], "seed is -1"),
        (["--set", "radgraph"], "is not METRIC.SETTING=VALUE"),
        (["--set", "radgraph.backend=rules"], "the metric is not requested"),
        (["--metrics", "radgraph", "--set", "radgraph.backend=rules", "--set", "radgraph.backend=x"], "given twice"),
    ],
)
def test_bad_settings(files: Path, arguments: list[str], message: str) -> None:
    done = run(files, *arguments)
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)


def test_clinical_metrics_and_shards_of_the_same_files(files: Path) -> None:
    options = ["--metrics", "nlg,chexbert,radgraph,ratescore", "--set", "chexbert.backend=rules", "--set",
               "radgraph.backend=rules", "--set", "radgraph.lowercase=false", "--set", "ratescore.backend=rules",
               "--versus", str(files / "bad.jsonl"), "--per-sample", str(files / "rows.jsonl")]  # fmt: skip
    done = run(files, *options)
    assert done.exit_code == 0, done.output
    assert "rules_radgraph_partial" in done.output and "Change against" in done.output
    whole = EvaluationResult.load(files / "m.json", per_sample=files / "rows.jsonl")
    assert whole.protocol.metrics == ["nlg", "rules", "radgraph", "ratescore"]
    assert "rules_ratescore" in whole.per_sample[0] and whole.comparison["file"] == "bad.jsonl"
    done = run(files, *options, "--shards", str(files / "shards"), "--shard-size", "2")
    assert done.exit_code == 0, done.output
    parts = EvaluationResult.load(files / "m.json", per_sample=files / "rows.jsonl")
    assert parts.to_dict(per_sample=True) == whole.to_dict(per_sample=True)


def test_references_in_the_reports_file(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prediction": "Clear.", "reference": "Clear."}\n{"prediction": "Edema.", "reference": "Clear."}')
    command = [str(path), "--metrics", "rules", "--bootstrap", "0", "-o", str(tmp_path / "m.json")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert EvaluationResult.load(tmp_path / "m.json").n == 2


def test_settings_reach_the_protocol(files: Path) -> None:
    arguments = ["--cleaning", "r2gen_iu", "--policy", "uncertain_as_negative", "--zero-division", "1", "--seed", "5"]
    assert run(files, *arguments).exit_code == 0
    protocol = EvaluationResult.load(files / "m.json").protocol
    assert (protocol.cleaning, protocol.tokenizer, protocol.policy) == (
        "r2gen_iu",
        "whitespace",
        "uncertain_as_negative",
    )
    assert protocol.zero_division == 1 and protocol.bootstrap == {
        "resamples": 50, "seed": 5, "confidence": 0.95, "method": protocol.bootstrap["method"]
    }  # fmt: skip
