"""The cache of readings saves time and never decides a result."""

from __future__ import annotations

import logging
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rrg_hf.metrics.chexbert import RulesLabelReader
from rrg_hf.metrics.reading import ReadingCache

TEXTS = ["No pleural effusion.", "Small left effusion.", "Cardiomegaly."]


class CountingReader(RulesLabelReader):
    read: int = 0

    def read_batch(self, texts: list[str]) -> list:
        self.read += len(texts)
        return super().read_batch(texts)


def reader(folder: Path) -> CountingReader:
    return CountingReader(cache=ReadingCache(folder))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    expected = reader(tmp_path)(TEXTS, persist=True)
    again = reader(tmp_path)
    assert again(TEXTS, persist=True) == expected and again.read == 0
    (file,) = tmp_path.glob("*.sqlite")
    return file


@pytest.mark.parametrize("value", ["[1", "5", "null", "{}", '"', "[[1]]"])
def test_damaged_values_are_read_anew_and_mended(filled: Path, value: str) -> None:
    with sqlite3.connect(filled) as connection:
        connection.execute("UPDATE checked SET value = ? WHERE key IN (SELECT key FROM checked LIMIT 2)", (value,))
    connection.close()
    again = reader(filled.parent)
    assert again(TEXTS, persist=True) == RulesLabelReader()(TEXTS) and again.read == 2
    third = reader(filled.parent)
    assert third(TEXTS, persist=True) == RulesLabelReader()(TEXTS) and third.read == 0


@pytest.mark.parametrize("size", [0, 10, 3000])
def test_a_damaged_file_is_said_once_and_done_without(
    filled: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled.write_bytes(b"no database " * 400 if size else b"")
    with filled.open("r+b") as file:
        file.truncate(size)
    again = reader(filled.parent)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert again(TEXTS, persist=True) == RulesLabelReader()(TEXTS)
            again._memory.clear()
    assert len(caplog.records) == (1 if size else 0)  # an empty file is a new cache
    assert all(filled.name in record.getMessage() for record in caplog.records)
    assert again.read == (6 if size else 3)


def test_a_full_disk_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
        found = reader(tmp_path)(TEXTS, persist=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert found == RulesLabelReader()(TEXTS)
    assert any("is not used" in record.getMessage() for record in caplog.records)


def test_a_command_on_a_full_disk_ends_with_one_line(tmp_path: Path) -> None:
    """Scores of shards, their index and plain files: no traceback, and the same command then succeeds."""
    rows = [f'{{"study_id": "s{i}", "report": "No effusion.", "reference": "Small effusion."}}' for i in range(400)]
    (tmp_path / "reports.jsonl").write_text("\n".join(rows))
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))\n"
        "from rrg_hf.cli import main\n"
        "sys.argv[:2] = ['rrg']\n"
        "main()\n"
    )
    command = ["evaluate", str(tmp_path / "reports.jsonl"), "--metrics", "rules", "--bootstrap", "0"]
    command += ["-o", str(tmp_path / "scores.json"), "--shards", str(tmp_path / "shards"), "--shard-size", "100"]
    for limit in (4096, 1 << 24):
        done = subprocess.run(
            [sys.executable, "-c", code, str(limit), *command], capture_output=True, text=True, check=False
        )
        if limit == 4096:
            assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
            assert "ake space" in " ".join(done.stderr.split())
            assert not (tmp_path / "scores.json").exists()
    assert done.returncode == 0 and (tmp_path / "scores.json").exists(), done.stderr
