from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.evaluation.inputs import read_pairs, read_references, read_reports
from rrg_hf.evaluation.pair_index import PairSources
from rrg_hf.evaluation.result import EvaluationResult, to_json
from rrg_hf.evaluation.run import evaluate_reports
from rrg_hf.evaluation.settings import ScoreSettings
from rrg_hf.evaluation.shard_files import ShardFolder
from rrg_hf.evaluation.shards import Processes, evaluate_shards
from rrg_hf.evaluation.summary import Resampling
from tests.evaluation.pairs import write_files, write_pairs

RULES = {"radgraph": {"backend": "rules"}, "ratescore": {"backend": "rules"}}
SETTINGS = ScoreSettings(metrics=("nlg", "rules", "radgraph", "ratescore"), options=RULES)
FEW = Resampling(bootstrap=50)


def in_memory(
    reports: Path, references: Path, other: Path | None = None, settings: ScoreSettings = SETTINGS
) -> EvaluationResult:
    predicted, truth = read_reports(reports), read_references(references)
    result = evaluate_reports(
        predicted.reports,
        truth.texts,
        metrics=settings.metrics,
        options=settings.options,
        bootstrap=50,
        versus=read_reports(other).reports if other else None,
        generation=predicted.generation,
        sources=truth.sources,
    )
    result.protocol.split, result.protocol.column = truth.split, truth.column
    return result


def shard_times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*.npz")}


@pytest.mark.parametrize("size", [1, 37, 5000])
def test_shards_give_bit_for_bit_the_result_of_one_piece(tmp_path: Path, size: int) -> None:
    paths = write_files(tmp_path, 30 if size == 1 else 150)
    expected = in_memory(*paths)
    sources = PairSources(paths[0], paths[1], paths[2])
    result = evaluate_shards(
        sources, tmp_path / "shards", SETTINGS, shard_size=size, resampling=FEW, per_sample=tmp_path / "rows.jsonl"
    )
    assert result is not None and result.n == expected.n
    assert result.to_dict() == expected.to_dict()
    rows = "".join(to_json(row) + "\n" for row in expected.per_sample)
    assert (tmp_path / "rows.jsonl").read_text() == rows
    assert result.comparison["scores"]["cider"]["p_permutation"] > 0


def test_pairs_in_one_file_and_an_empty_side(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", 40)
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["prediction"] = row.pop("report")
    del rows[0]["study_id"]
    rows[1]["prediction"] = None
    path.write_text("\ufeff" + "\r\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    predicted, truth = read_pairs(path)
    expected = evaluate_reports(predicted.reports, truth.texts, bootstrap=50)
    result = evaluate_shards(PairSources(path), tmp_path / "s", ScoreSettings(), shard_size=9, resampling=FEW)
    assert result is not None and result.n == 40 and result.protocol.empty_predictions == 1
    assert result.scores == expected.scores and result.diversity == expected.diversity
    assert result.protocol.sha256 == expected.protocol.sha256 and result.protocol.column == "reference"


def test_data_set_folder_as_references(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    reports, references, _ = write_files(tmp_path, 30)
    rows = [json.loads(line) for line in references.read_text().splitlines()]
    split = Dataset.from_list([{**row, "source": "phantom"} for row in rows])
    DatasetDict({"train": split.select([0]), "test": split}).save_to_disk(tmp_path / "data")
    settings = ScoreSettings(metrics=("rules",))
    result = evaluate_shards(
        PairSources(reports, tmp_path / "data"), tmp_path / "s", settings, shard_size=8, resampling=FEW
    )
    assert result is not None and result.protocol.split == "test" and result.protocol.phantom is True
    assert result.to_dict() == in_memory(reports, tmp_path / "data", settings=settings).to_dict()


def test_finished_shards_are_not_scored_again(tmp_path: Path) -> None:
    reports, references, _ = write_files(tmp_path, 60)
    folder = tmp_path / "s"
    first = evaluate_shards(PairSources(reports, references), folder, SETTINGS, shard_size=10, resampling=FEW)
    times = shard_times(folder)
    assert len(times) == 6
    (folder / "shard-00003.npz").write_bytes(b"torn")
    (folder / "shard-00001.rows.jsonl").unlink()
    again = evaluate_shards(PairSources(reports, references), folder, SETTINGS, shard_size=10, resampling=FEW)
    assert first is not None and again is not None and again.to_dict() == first.to_dict()
    changed = {name for name, then in shard_times(folder).items() if then != times[name]}
    assert changed == {"shard-00001.npz", "shard-00003.npz"}
    # nothing is left to do: only the statistics' layout has to be found out; intervals may be made anew
    more = evaluate_shards(
        PairSources(reports, references), folder, SETTINGS, shard_size=10, resampling=replace(FEW, bootstrap=60)
    )
    assert more is not None and more.value("bleu_4") == first.value("bleu_4")
    assert more.protocol.bootstrap is not None and more.protocol.bootstrap["resamples"] == 60


def test_another_input_or_setting_is_refused(tmp_path: Path) -> None:
    reports, references, _ = write_files(tmp_path, 20)
    sources, folder = PairSources(reports, references), tmp_path / "s"
    evaluate_shards(sources, folder, ScoreSettings(metrics=("rules",)), resampling=FEW)
    with pytest.raises(ConfigError, match=r"holds shards of another evaluation: settings\.policy.*delete this one"):
        evaluate_shards(sources, folder, ScoreSettings(metrics=("rules",), policy="uncertain_ignored"))
    with pytest.raises(ConfigError, match="shard_size"):
        evaluate_shards(sources, folder, ScoreSettings(metrics=("rules",)), shard_size=7)
    with reports.open("a") as file:
        file.write(json.dumps({"study_id": "extra", "report": "Clear."}) + "\n")
    with pytest.raises(ConfigError, match=r"inputs\.reports\.sha256"):
        evaluate_shards(sources, folder, ScoreSettings(metrics=("rules",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0].pop("report"), "line 1: no 'report'"),
        (lambda rows: rows[3].update(study_id=rows[2]["study_id"]), r"1 repeated study ids, first \['s\d+'\]"),
        (lambda rows: rows.pop(0), r"1 of 18 studies have no prediction.*--allow-missing"),
        (lambda rows: rows[4].update(report=7), "line 5, 'report' is a int"),
        (lambda rows: rows.clear(), "holds no studies"),
        (lambda rows: [row.update(study_id=f"x{i}") for i, row in enumerate(rows)], "No prediction belongs"),
    ],
)
def test_bad_files_fail_as_they_do_in_memory(tmp_path: Path, change: Any, message: str) -> None:
    reports, references, _ = write_files(tmp_path, 20)
    rows = [row for row in map(json.loads, reports.read_text().splitlines()) if row["study_id"] != "s0"]
    change(rows)
    reports.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=message):
        evaluate_shards(PairSources(reports, references), tmp_path / "s", ScoreSettings(metrics=("rules",)))
    with pytest.raises(DataError, match=message):
        in_memory(reports, references, settings=ScoreSettings(metrics=("rules",)))
    assert not (tmp_path / "s" / "manifest.json").exists()


def test_left_out_studies_are_counted_as_in_memory(tmp_path: Path) -> None:
    reports, references, other = write_files(tmp_path, 40)
    rows = reports.read_text().splitlines(keepends=True)
    reports.write_text("".join(rows[3:]) + json.dumps({"study_id": "zz", "report": "x"}) + "\n")
    settings = ScoreSettings(metrics=("rules",))
    result = evaluate_shards(
        PairSources(reports, references), tmp_path / "s", settings, resampling=FEW, allow_missing=True
    )
    expected = evaluate_reports(
        read_reports(reports).reports, read_references(references).texts, metrics=["rules"], bootstrap=50,
        allow_missing=True,
    )  # fmt: skip
    assert result is not None and result.protocol.skipped == expected.protocol.skipped
    assert result.protocol.studies == expected.protocol.studies and result.scores == expected.scores
    with pytest.raises(ConfigError, match="both systems"):
        evaluate_shards(PairSources(reports, references, other), tmp_path / "t", settings, allow_missing=True)


def test_files_that_cannot_be_read_in_pieces(tmp_path: Path) -> None:
    reports, references, _ = write_files(tmp_path, 5)
    csv = references.rename(tmp_path / "references.csv")
    with pytest.raises(ConfigError, match=r"'references\.csv' cannot be scored in shards.*\.jsonl"):
        evaluate_shards(PairSources(reports, csv), tmp_path / "s", SETTINGS)
    with pytest.raises(DataError, match=r"'gone\.jsonl' does not exist"):
        evaluate_shards(PairSources(reports, tmp_path / "gone.jsonl"), tmp_path / "s", SETTINGS)
    with pytest.raises(ConfigError, match="shard_size is 0"):
        evaluate_shards(PairSources(reports, reports), tmp_path / "s", SETTINGS, shard_size=0)


def test_processes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(Processes.from_environment().own(8)) == [1, 4, 7]
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    assert Processes.from_environment() == Processes()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert Processes.from_environment() == Processes(1, 2, 0)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ConfigError, match="RANK=3 and WORLD_SIZE=3"):
        Processes.from_environment()


def python(*arguments: str, **extra: str) -> dict[str, Any]:
    """Arguments of a subprocess that finds the package and leaves this one's settings alone."""
    return {
        "args": [sys.executable, *arguments],
        "env": {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2]), **extra},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }


SLOW_RUN = """
import sys, time
from pathlib import Path
from rrg_hf.evaluation import shards
real = shards.score_systems
def slow(*given, **named):
    time.sleep(0.15)
    with open(sys.argv[3], "a") as log:
        log.write("scored\\n")
    return real(*given, **named)
shards.score_systems = slow
shards.evaluate_shards(shards.PairSources(Path(sys.argv[1])), sys.argv[2],
    shards.ScoreSettings(metrics=("rules",)), shard_size=5, resampling=shards.Resampling(bootstrap=20))
"""


def test_killed_run_is_continued_where_it_stopped(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", 100)
    folder, log = tmp_path / "s", tmp_path / "log"
    command = python("-c", SLOW_RUN, str(pairs), str(folder), str(log))
    process = subprocess.Popen(**command)
    deadline = time.monotonic() + 60
    while len(shard_times(folder)) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before, scored = shard_times(folder), len(log.read_text().splitlines())
    assert 5 <= len(before) < 20
    done = subprocess.run(**command, check=False)
    assert done.returncode == 0, done.stdout
    after = shard_times(folder)
    assert len(after) == 20 and all(after[name] == then for name, then in before.items())
    assert len(log.read_text().splitlines()) - scored == 20 - len(before)
    result = evaluate_shards(
        PairSources(pairs), folder, ScoreSettings(metrics=("rules",)), shard_size=5, resampling=FEW
    )
    predicted, truth = read_pairs(pairs)
    assert result is not None
    assert result.scores == evaluate_reports(predicted.reports, truth.texts, metrics=["rules"], bootstrap=50).scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
        # what `accelerate launch` does with two GPUs; for CPUs it would start mpirun
        ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no"],
    ],
    ids=["torchrun", "accelerate"],
)  # fmt: skip
def test_two_processes_share_the_shards(tmp_path: Path, launcher: list[str]) -> None:
    reports, references, other = write_files(tmp_path, 120)
    out = tmp_path / "m.json"
    arguments = [
        "evaluate", str(reports), "-r", str(references), "--versus", str(other), "--metrics", "nlg,rules", "-o",
        str(out), "--shards", str(tmp_path / "s"), "--shard-size", "13", "--bootstrap", "50",
        "--per-sample", str(tmp_path / "rows.jsonl"),
    ]  # fmt: skip
    done = subprocess.run(**python(*launcher, "-m", "rrg_hf.cli", *arguments), check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Scores written to") == 1
    written = ShardFolder(tmp_path / "s", json.loads((tmp_path / "s" / "manifest.json").read_text())["fingerprint"])
    ranks = [(written.about(number) or {})["rank"] for number in range(9)]
    assert ranks == [0, 1] * 4 + [0]
    expected = in_memory(reports, references, other, ScoreSettings(metrics=("nlg", "rules")))
    result = EvaluationResult.load(out, per_sample=tmp_path / "rows.jsonl")
    assert result.scores == expected.scores and result.per_sample == expected.per_sample
    assert result.comparison.pop("file") == "other.jsonl"
    assert result.comparison["scores"] == expected.comparison["scores"]


def test_ranks_work_in_turn_without_talking(tmp_path: Path) -> None:
    """Rank 1 scores only its shards and returns; rank 0 adds up what it finds."""
    pairs = write_pairs(tmp_path / "pairs.jsonl", 40)
    settings, folder = ScoreSettings(metrics=("rules",)), tmp_path / "s"
    options: dict[str, Any] = {"shard_size": 7, "resampling": FEW}
    evaluate_shards(PairSources(pairs), folder, settings, **options)  # makes the index
    for path in folder.glob("shard-*.npz"):
        path.unlink()
    assert evaluate_shards(PairSources(pairs), folder, settings, **options, processes=Processes(1, 2)) is None
    assert sorted(shard_times(folder)) == ["shard-00001.npz", "shard-00003.npz", "shard-00005.npz"]
    times = shard_times(folder)
    result = evaluate_shards(PairSources(pairs), folder, settings, **options, processes=Processes(0, 2))
    assert result is not None and result.n == 40
    assert {name: shard_times(folder)[name] for name in times} == times


MEASURE = """
import resource, sys
from pathlib import Path
from rrg_hf.evaluation.shards import PairSources, Resampling, ScoreSettings, evaluate_shards
result = evaluate_shards(PairSources(Path(sys.argv[1])), sys.argv[2], ScoreSettings(metrics=("nlg",)),
    shard_size=1000, resampling=Resampling(bootstrap=20))
print(result.n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Ten times the studies, at most some MB more: the resamples' weights, 8 bytes per study each."""
    peaks = []
    for n in (3_000, 30_000):
        pairs = write_pairs(tmp_path / f"{n}.jsonl", n)
        done = subprocess.run(**python("-c", MEASURE, str(pairs), str(tmp_path / str(n))), check=False)
        assert done.returncode == 0, done.stdout
        counted, peak = map(int, done.stdout.split()[-2:])
        assert counted == n
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 60, peaks
