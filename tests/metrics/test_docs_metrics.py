"""The commands of docs/metrics.md: every flag exists, every setting is accepted, every key is one of the package."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from rrg_hf.cli.evaluate import _options, evaluate
from rrg_hf.errors import ConfigError
from rrg_hf.evaluation.settings import ScoreSettings
from rrg_hf.metrics import METRICS
from rrg_hf.metrics.bertscore import PUBLISHED_BASELINES
from rrg_hf.metrics.meteor import METEOR_JAVA
from rrg_hf.metrics.nlg import NLG_SCORES
from rrg_hf.metrics.observation_scores import label_statistics
from rrg_hf.metrics.radgraph import RadGraphF1, RulesGraphReader

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TEXT = PAGE.read_text()


def commands() -> list[str]:
    block = TEXT.split("```bash\n")[1].split("```")[0].replace("\\\n", " ")
    return [line for line in block.splitlines() if line.startswith("RUN ")]


def parsed(command: str) -> dict[str, Any]:
    app = typer.Typer()
    app.command()(evaluate)
    words = ["reports.jsonl", "--references", "DATA", "--split", "test", *shlex.split(command)[1:]]
    return get_command(app).make_context("evaluate", words, resilient_parsing=False).params


@pytest.mark.parametrize("command", commands())
def test_commands_are_accepted(command: str) -> None:
    values = parsed(command)
    ScoreSettings(
        metrics=tuple(values["metrics"].split(",")),
        cleaning=values["cleaning"],
        tokenizer=values["tokenizer"] if values["tokenizer"] != "ptb" else None,  # needs Java
        policy=values["policy"],
        clinical_cleaning=values["clinical_cleaning"],
        options=_options(values["settings"] or []),
    ).check()


@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stand-ins for what needs weights, and without METEOR, whose Java takes 10 s to start."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"study_id": name, "report": report, "findings": findings, "impression": "No acute disease."}
        for name, report, findings in (
            ("a", "The lungs are clear.", "The lungs are clear. Heart size is normal."),
            ("b", "Small left effusion.", "1. Small left pleural effusion. 2. Mild ___ cardiomegaly."),
        )
    ]
    for file in ("reports.jsonl", "DATA.jsonl"):
        Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = shlex.split(command)[1:]
    if "ptb" in words and shutil.which("java") is None:
        pytest.skip("no `java` on this machine")
    metrics, stand_ins = words[words.index("--metrics") + 1].split(","), ("chexbert", "radgraph", "ratescore")
    kept = [name for name in metrics if name in ("nlg", *stand_ins)]
    words[words.index("--metrics") + 1] = ",".join(kept)
    while "--set" in words:  # they choose networks, except for the comparison of tokens
        place = words.index("--set")
        del words[place : place + 2]
    for name in kept:
        if name in stand_ins:
            words += ["--set", f"{name}.backend=rules"]
    app = typer.Typer()
    app.command()(evaluate)
    line = ["reports.jsonl", "--references", "DATA.jsonl", "-o", "out.json", "--bootstrap", "0", *words]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    result = json.loads(Path("out.json").read_text())
    assert result["n"] == 2 and result["protocol"]["metrics"]
    for flag, field in {"--cleaning": "cleaning", "--tokenizer": "tokenizer", "--policy": "policy"}.items():
        if flag in words:
            assert result["protocol"][field] == words[words.index(flag) + 1]


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path))
    import rrg_hf.metrics

    (block,) = [part.split("```")[0] for part in TEXT.split("```python\n")[1:]]
    lines = [line.split("  #")[0] for line in block.splitlines() if line.startswith("load(")]
    assert len(lines) == 3
    names = {"load": rrg_hf.metrics.load}
    for line in lines:
        offline = line.replace('load("chexbert_f1", ', 'load("chexbert_f1", backend="rules", ')
        if "radcliq" in line:  # no stand-in: its settings are read before its networks
            with pytest.raises(ConfigError, match="radgraph is not prepared"):
                eval(offline, names)
            continue
        assert eval(offline, names).compute(predictions=["clear", "edema"], references=["clear", "no edema"])


def test_there_are_commands_for_every_paper() -> None:
    assert len(commands()) >= 12
    for paper in [
        "PALM",
        "LEAD",
        "SS-ACL",
        "DPO-Clin",
        "R2Gen",
        "R2GenGPT",
        "CXRMate",
        "CvT2DistilGPT2",
        "RGRG",
        "PromptMRG",
        "RadEval",
    ]:
        assert re.search(rf"^# .*{paper}", TEXT, re.MULTILINE), paper
        assert re.search(rf"^\| .*{paper}", TEXT, re.MULTILINE), paper


def test_bertscore_commands_have_a_published_baseline() -> None:
    for command in commands():
        options = _options(parsed(command)["settings"] or []).get("bertscore", {})
        if options:
            assert (options["model"], options.get("layer", 5)) in PUBLISHED_BASELINES


def known_keys() -> set[str]:
    keys = {*NLG_SCORES, METEOR_JAVA, "green", "ratescore", "radcliq_v0", "radcliq_v1", "radcliq_v1_reciprocal"}
    keys |= {"bertscore_f1", "chexbert_similarity"}
    keys |= set(label_statistics([{}], [{}], name="chexbert").corpus())
    radgraph = RadGraphF1(RulesGraphReader()).score(["clear"], ["clear"]).corpus()
    return keys | {name.removeprefix("rules_") for name in radgraph}


def test_keys_beside_the_commands_exist() -> None:
    known = known_keys()
    comments = [line for line in TEXT.split("```bash\n")[1].split("```")[0].splitlines() if line.startswith("# ")]
    promised = re.findall(
        r"\b(?:bleu|meteor|rouge|chexbert|radgraph|radcliq|bertscore)_[\w.*{},]*[\w*]", " ".join(comments)
    )
    assert len(promised) > 25
    for key in promised:
        start, brace, rest = key.partition("{")
        middle, _, end = rest.partition("}")
        for name in [start + part + end for part in middle.split(",")] if brace else [key]:
            assert any(fnmatch(real, name) for real in known), key


def test_names_are_those_of_the_package() -> None:
    assert set(re.findall(r'load\("(\w+)"', TEXT)) <= set(METRICS)
    assert len(TEXT.splitlines()) < 200
