"""reports.jsonl: torn ends repaired, other runs refused, nothing written twice."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.data.report_file import ReportFile
from rrg_hf.errors import ConfigError, DataError

IDENTITY: dict[str, Any] = {"model": "demo", "revision": "sha256:1", "settings": {"num_beams": 1, "do_sample": False}}
ROWS = [{"study_id": f"s{index}", "report": f"Größe normal, № {index}.", "images": []} for index in range(4)]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> bytes:
    with ReportFile(path, IDENTITY) as file:
        file.append(rows[:2])
        file.append(rows[2:])
    return path.read_bytes()


def test_writes_one_json_line_a_study(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "reports.jsonl"
    lines = write(path).decode().splitlines()
    assert [json.loads(line) for line in lines] == [{**row, **IDENTITY} for row in ROWS]
    assert list(json.loads(lines[0]))[:2] == ["study_id", "report"]


def test_goes_on_from_every_possible_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    whole = write(path)
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with ReportFile(path, IDENTITY) as file:
            # A line that lacks only its newline is whole.
            kept = sum(end <= cut + 1 for end in ends)
            assert file.done == {row["study_id"] for row in ROWS[:kept]}
            assert file.repaired == (cut not in {0, *ends, *(end - 1 for end in ends)})
            file.append([row for row in ROWS if row["study_id"] not in file.done])
        assert path.read_bytes() == whole


def test_a_kill_inside_a_character_is_repaired_too(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    whole = write(path)
    inside = whole.rindex("№".encode()) + 1
    path.write_bytes(whole[:inside])
    with ReportFile(path, IDENTITY) as file:
        assert file.repaired and len(file.done) == 3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": "other"}, "the model 'demo', not 'other'"),
        ({"revision": "sha256:2"}, "the revision 'sha256:1', not 'sha256:2'"),
        ({"settings": {"num_beams": 4, "do_sample": False}}, r"other settings \(num_beams\)"),
        ({"settings": {"num_beams": 1, "do_sample": False, "indication": "Cough."}}, r"other settings \(indication\)"),
    ],
)
def test_another_run_is_refused_and_the_file_stays(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    path = tmp_path / "reports.jsonl"
    before = write(path)
    with pytest.raises(ConfigError, match=match):
        ReportFile(path, {**IDENTITY, **change})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b'{"study_id": "a"}\n', b"[1, 2]\n", b"[" * 100_000 + b"\n"],
    ids=["text", "no report", "list", "deep"],
)
def test_a_broken_line_before_the_end_is_an_error(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "reports.jsonl"
    before = line + write(path)
    path.write_bytes(before)
    with pytest.raises(DataError, match="line 1 is no report"):
        ReportFile(path, IDENTITY)
    assert path.read_bytes() == before


def test_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_bytes(write(path) + b"\n")
    with ReportFile(path, IDENTITY) as file:
        assert len(file.done) == 4 and not file.repaired


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "reports.jsonl"):
        with pytest.raises(DataError, match="cannot be written"):
            ReportFile(path, IDENTITY)
    with pytest.raises(DataError, match="not a regular file"):
        ReportFile("/dev/null", IDENTITY)


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reports.jsonl"
    file = ReportFile(path, IDENTITY)
    file.append(ROWS[:2])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with file, pytest.raises(DataError, match=r"No space left.*run the same command again"):
        file.append(ROWS[2:])
    assert file.done == {"s0", "s1"}
