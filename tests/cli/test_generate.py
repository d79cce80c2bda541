"""`rrg generate` from images to reports.jsonl: skips, resumes, refuses, warns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from rrg_hf.cli.generate import PHANTOM_WARNING, generate
from rrg_hf.data.report_file import ReportFile
from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.pipeline import ReportGenerationPipeline, load_report_model, weights_sha256
from tests.report_model import make_report_model

app = typer.Typer()
app.command()(generate)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generate") / "tiny"
    make_report_model(path, seed=3)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images, one of them in a sub-folder; "bad.png" is empty, "tiny.png" a placeholder, notes.txt no image."""
    place = tmp_path / "images"
    for index, name in enumerate(("a.png", "b.jpg", "c.png", "p1/d.png", "e.png")):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 256, (70, 70), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (place / "bad.png").write_bytes(b"")
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(place / "tiny.png")
    (place / "notes.txt").write_text("no image")
    return place


def run(*arguments: str | Path) -> Result:
    """Errors come back as they are raised; `rrg` itself prints them as one line."""
    command = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, ["--device", "cpu", "--max-new-tokens", "12", *command])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_folder_of_images(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "reports.jsonl"
    result = run(checkpoint, folder, "-o", output, "--batch-size", "2")
    assert result.exit_code == 0, result.output
    rows = read(output)
    assert [row["study_id"] for row in rows] == ["a", "b", "c", "e", "p1/d"]
    loaded = load_report_model(checkpoint)
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu", max_new_tokens=12)
    assert [row["report"] for row in rows] == [
        write(folder / name)[0]["report"] for name in ("a.png", "b.jpg", "c.png", "e.png", "p1/d.png")
    ]
    assert len({row["report"] for row in rows}) == 5
    assert rows[4] == {
        "study_id": "p1/d",
        "report": rows[4]["report"],
        "model": "tiny",
        "revision": weights_sha256(checkpoint),
        "settings": {"num_beams": 1, "max_new_tokens": 12, "do_sample": False},
        "images": ["d.png"],
        "source": None,
    }
    assert str(tmp_path) not in output.read_text()


def test_bad_files_are_named_and_listed(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "reports.jsonl"
    result = run(checkpoint, folder, "-o", output)
    assert "2 skipped" in result.output and "bad:" in result.output and "tiny:" in result.output
    assert "Left alone in the folders, as they are no images: 1 .txt." in result.output
    assert "5 reports written" in result.output
    skipped = read(tmp_path / "reports.skipped.jsonl")
    assert [(row["study_id"], row["images"]) for row in skipped] == [("bad", ["bad.png"]), ("tiny", ["tiny.png"])]
    assert "empty" in skipped[0]["reason"] and "at least 8 x 8" in skipped[1]["reason"]
    for name in ("bad.png", "tiny.png"):
        shutil.copy(folder / "a.png", folder / name)
    result = run(checkpoint, folder, "-o", output)
    assert "5 of 7 are already there" in result.output and "2 reports written, 7 in" in result.output
    assert not (tmp_path / "reports.skipped.jsonl").exists()


def test_a_missing_image_is_skipped_and_listed(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "reports.jsonl"
    result = run(checkpoint, tmp_path / "gone.png", folder / "a.png", tmp_path / "lost.dcm", "-o", output)
    assert result.exit_code == 0, result.output
    assert [row["study_id"] for row in read(output)] == ["a"]
    skipped = read(tmp_path / "reports.skipped.jsonl")
    assert [(row["study_id"], row["reason"]) for row in skipped] == [
        ("gone", "gone.png: no such file."),
        ("lost", "lost.dcm: no such file."),
    ]
    assert "2 skipped" in result.output and "gone: gone.png: no such file." in result.output


def test_only_missing_images_are_an_error_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png: no such file or folder \(2 missing files in all\)"):
        run(tmp_path / "no model", tmp_path / "gone.png", tmp_path / "lost.png", "-o", tmp_path / "reports.jsonl")
    assert not (tmp_path / "reports.jsonl").exists()


def test_nothing_readable_is_exit_code_1(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    result = run(checkpoint, folder / "bad.png", "-o", tmp_path / "reports.jsonl")
    assert result.exit_code == 1 and "0 reports written, 0 in" in result.output


class Killed(BaseException):
    """What `kill -9` looks like from inside: nothing below runs."""


def test_a_killed_run_goes_on(checkpoint: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "reports.jsonl"
    run(checkpoint, folder, "-o", whole, "--batch-size", "2")
    append = ReportFile.append

    def kill(self: ReportFile, rows: Any) -> None:
        if len(self.done) == 2:
            self._stream.write(b'{"study_id": "c", "rep')
            raise Killed
        append(self, rows)

    monkeypatch.setattr(ReportFile, "append", kill)
    with pytest.raises(Killed):
        run(checkpoint, folder, "-o", output, "--batch-size", "2")
    monkeypatch.undo()
    assert not output.read_bytes().endswith(b"\n")
    result = run(checkpoint, folder, "-o", output, "--batch-size", "2")
    assert "the last line was torn" in result.output and "2 of 7 are already there" in result.output
    assert read(output) == read(whole)
    before = output.read_bytes()
    assert run(checkpoint, folder, "-o", output).exit_code == 0
    assert output.read_bytes() == before


def test_other_settings_or_weights_do_not_mix(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "reports.jsonl"
    run(checkpoint, folder / "a.png", "-o", output)
    with pytest.raises(ConfigError, match=r"other settings \(num_beams\)"):
        run(checkpoint, folder, "-o", output, "--num-beams", "2")
    with pytest.raises(ConfigError, match=r"other settings \(indication\)"):
        run(checkpoint, folder, "-o", output, "--indication", "Cough.")
    other = tmp_path / "tiny"
    make_report_model(other, seed=4)
    with pytest.raises(ConfigError, match="the revision"):
        run(other, folder, "-o", output)
    assert len(read(output)) == 1


def test_an_indication_reaches_the_model(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    run(checkpoint, folder / "a.png", "-o", tmp_path / "plain.jsonl")
    run(checkpoint, folder / "a.png", "-o", tmp_path / "cough.jsonl", "--indication", "Cough and fever.")
    plain, cough = read(tmp_path / "plain.jsonl")[0], read(tmp_path / "cough.jsonl")[0]
    assert plain["report"] != cough["report"]
    assert cough["settings"]["indication"] == "Cough and fever."


def test_sampling_follows_the_seed(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    for name, seed in (("one", "1"), ("again", "1"), ("two", "2")):
        run(checkpoint, folder, "-o", tmp_path / f"{name}.jsonl", "--do-sample", "--seed", seed)
    one, again, two = ([row["report"] for row in read(tmp_path / f"{name}.jsonl")] for name in ("one", "again", "two"))
    assert one == again != two


def test_a_phantom_model_says_so(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "demo"
    shutil.copytree(checkpoint, model, ignore=shutil.ignore_patterns("backbones"))
    assert PHANTOM_WARNING not in run(model, folder / "a.png", "-o", tmp_path / "before.jsonl").output
    record = {"datasets": {"train": {"sources": ["phantom"]}}, "previous_stage": None}
    (model / "rrg_training.json").write_text(json.dumps(record))
    result = run(model, folder / "a.png", "-o", tmp_path / "reports.jsonl")
    assert result.output.count(PHANTOM_WARNING) == 1
    assert read(tmp_path / "reports.jsonl")[0]["source"] == "trained on phantom"


def test_an_unfinished_model_is_warned_about(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "demo"
    shutil.copytree(checkpoint, model, ignore=shutil.ignore_patterns("backbones"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "training_stage": "align"}))
    output = run(model, folder / "a.png", "-o", tmp_path / "reports.jsonl").output
    assert "last finished training stage of this checkpoint is 'align'" in " ".join(output.split())


def test_errors_come_before_any_file_is_made(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "reports.jsonl"
    for arguments, error, match in (
        ((checkpoint / "backbones" / "text", folder), CheckpointError, "checkpoint of|No report generation model"),
        ((tmp_path / "nothing", folder), CheckpointError, "No report generation model"),
        ((checkpoint, tmp_path / "nothing.png"), DataError, "no such file"),
    ):
        with pytest.raises(error, match=match):
            run(*arguments, "-o", output)
    with pytest.raises(ConfigError, match="'gpu' is no device"):
        run(checkpoint, folder, "-o", output, "--device", "gpu")
    with pytest.raises(ConfigError, match="--device meta does not work here"):
        run(checkpoint, folder, "-o", output, "--device", "meta")
    assert not output.exists()
    for option, value in (("--batch-size", "0"), ("--num-beams", "0"), ("--seed", "-1"), ("--seed", str(2**64))):
        assert run(checkpoint, folder, "-o", output, option, value).exit_code == 2
