"""`rrg data`: the printed table, the saved folder, and one-line errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from rrg_hf.cli.data import app
from rrg_hf.data.store import check_single_world, load_studies
from rrg_hf.errors import ConfigError, DataError, RrgError

XML = """<?xml version="1.0" encoding="utf-8"?><eCitation><uId id="CXR{number}"/><MedlineCitation><Article><Abstract>
<AbstractText Label="COMPARISON">None.</AbstractText><AbstractText Label="INDICATION">Cough</AbstractText>
<AbstractText Label="FINDINGS">{findings}</AbstractText><AbstractText Label="IMPRESSION">Normal.</AbstractText>
</Abstract></Article></MedlineCitation><parentImage id="CXR{number}_IM-0001-1001"/></eCitation>"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder of four XML reports, of which one has no findings and one no picture."""
    folder = tmp_path / "ecgen-radiology"
    folder.mkdir()
    (tmp_path / "png").mkdir()
    for number, findings in ((2, "Lungs are clear."), (3, ""), (4, "Small effusion."), (5, "Heart is large.")):
        (folder / f"{number}.xml").write_text(XML.format(number=number, findings=findings))
        if number != 4:
            picture = Image.fromarray(np.full((8, 8), number, dtype=np.uint8))
            picture.save(tmp_path / "png" / f"CXR{number}_IM-0001-1001.png")
    return folder


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def cells(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in output.splitlines() if "│" in line]


def test_iu_xray_prints_every_drop_and_saves(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("iu_xray", release, "--images", tmp_path / "png", "--out", out, "--label", "rules")
    assert result.exit_code == 0, result.output
    table = cells(result.output)
    assert ["read", "4", ""] in table
    assert ["dropped: no findings", "1", "CXR3"] in table
    assert ["dropped: image listed but absent", "1", "CXR4"] in table
    assert ["kept", "2", ""] in table
    assert ["comparison", "0", "4"] in table and ["findings", "1", "0"] in table
    assert "Labels are from: rules" in result.output
    ids = {study for part in load_studies(out).values() for study in part["study_id"]}
    assert ids == {"CXR2", "CXR5"}
    tally = json.loads((out / "tally.json").read_text())
    assert tally["studies"]["dropped"]["no findings"] == {"count": 1, "ids": ["CXR3"]}
    assert "Lungs are clear" not in result.output


def test_fractions_seed_and_target_reach_the_data(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--no-images", "--fractions", "0,0,1", "--target", "impression", "--seed", "3")
    assert run("iu_xray", release, "--out", out, *options).exit_code == 0
    studies = load_studies(out)
    assert list(studies) == ["test"] and studies["test"]["study_id"][:] == ["CXR2", "CXR3", "CXR4", "CXR5"]
    tally = json.loads((out / "tally.json").read_text())
    assert tally["settings"]["seed"] == 3 and tally["images"] is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ([], ConfigError, "--no-images"),
        (["--no-images", "--fractions", "0.7,0.3"], ConfigError, "three numbers"),
        (["--no-images", "--fractions", "a,b,c"], ConfigError, "three numbers"),
        (["--no-images", "--target", "report"], ConfigError, "target='report'"),
        (["--images", "gone"], DataError, "not a folder"),
    ],
)
def test_mistakes_are_expected_errors(
    release: Path, tmp_path: Path, options: list[str], error: type[RrgError], message: str
) -> None:
    result = run("iu_xray", release, "--out", tmp_path / "out", *options)
    assert isinstance(result.exception, error) and message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_second_run_needs_overwrite(release: Path, tmp_path: Path) -> None:
    command = ("iu_xray", release, "--no-images", "--out", tmp_path / "out")
    assert run(*command).exit_code == 0
    assert "already there" in str(run(*command).exception)
    assert run(*command, "--overwrite").exit_code == 0


def test_phantom_saves_four_labelled_splits(tmp_path: Path) -> None:
    out = tmp_path / "phantom"
    common = ("--size", 64, "--seed", 1)
    result = run("phantom", "--out", out, "--train", 6, "--validation", 2, "--test", 3, "--test-shifted", 2, *common)
    assert result.exit_code == 0, result.output
    studies = load_studies(out)
    assert {name: len(part) for name, part in studies.items()} == {
        "train": 6, "validation": 2, "test": 3, "test_shifted": 2,
    }  # fmt: skip
    assert check_single_world(studies) == "phantom"
    assert studies["train"][0]["images"][0].size == (64, 64)
    assert json.loads((out / "tally.json").read_text())["seed"] == 1
    again = tmp_path / "again"
    rest = ("--validation", 0, "--test", 0, "--test-shifted", 0)
    assert run("phantom", "--out", again, "--train", 6, *rest, *common).exit_code == 0
    assert load_studies(again)["train"]["findings"][:] == studies["train"]["findings"][:]
    assert list(load_studies(again)) == ["train"]


def test_phantom_without_studies_is_an_error(tmp_path: Path) -> None:
    none = ("--train", 0, "--validation", 0, "--test", 0, "--test-shifted", 0)
    assert isinstance(run("phantom", "--out", tmp_path / "out", *none).exception, ConfigError)
    assert run("phantom", "--out", tmp_path / "out", "--size", 5).exit_code == 2


@pytest.mark.parametrize("command", ["iu_xray", "phantom"])
def test_help_explains_every_option(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    for option in ("--out", "--seed", "--overwrite"):
        assert option in result.output
    assert "Example: rrg data" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("given", "message"),
    [("release", "--no-images"), ("a" * 300, "File name too long. Choose another file or folder.")],
)
def test_the_installed_command_reports_one_line_and_exit_code_2(
    release: Path, tmp_path: Path, given: str, message: str
) -> None:
    source = str(release) if given == "release" else given
    code = "import sys; from rrg_hf.cli import main; sys.argv[0] = 'rrg'; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "data", "iu_xray", source, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("rrg: ") and result.stderr.count("\n") == 1 and message in result.stderr


def test_labels_are_saved_with_the_data(tmp_path: Path) -> None:
    from rrg_hf.data.phantom import phantom_splits
    from rrg_hf.data.store import save_studies
    from rrg_hf.text.rules import label_report

    studies = phantom_splits({"train": 3, "test": 2}, size=64, masks=())
    studies["train"] = studies["train"].map(
        lambda row, index: {"findings": None if index == 1 else row["findings"]}, with_indices=True
    )
    save_studies(studies, tmp_path / "drawn")
    refused = run("label", tmp_path / "drawn", "--out", tmp_path / "out")
    assert isinstance(refused.exception, ConfigError) and "5 studies of" in str(refused.exception)
    assert not (tmp_path / "out").exists()
    result = run("label", tmp_path / "drawn", "--out", tmp_path / "out", "--relabel")
    assert result.exit_code == 0, result.output
    assert ["train", "2", "1 without findings"] in cells(result.output)
    done = load_studies(tmp_path / "out")
    for name, split in done.items():
        assert split["study_id"] == studies[name]["study_id"] and split.features == studies[name].features
        for row in split:
            expected = label_report(row["findings"]) if row["findings"] else {}
            assert row["labels"] == {key: expected.get(key) for key in row["labels"]}
    assert json.loads((tmp_path / "out" / "labels.json").read_text())["labels"] == "rules"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labeler", "study"], "already there"),
        (["--labeler", "radiologist"], "choose one of"),
        (["--labeler", "rules", "--model", "x"], "goes with"),
        (["--section", "history"], "findings or impression"),
        (["--labeler", "chexbert", "--model", "nowhere/at/all"], "nowhere"),
    ],
)
def test_labelling_that_cannot_work(options: list[str], message: str, tmp_path: Path) -> None:
    result = run("label", tmp_path / "in", "--out", tmp_path / "out", *options)
    assert isinstance(result.exception, RrgError) and message in str(result.exception)
    assert not (tmp_path / "out").exists()
