from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import DataError
from rrg_hf.evaluation.inputs import read_pairs, read_references, read_reports
from rrg_hf.text.cleaning import is_missing


def write(path: Path, content: Any) -> Path:
    lines = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(lines, encoding="utf-8")
    return path


def test_reports_of_rrg_generate(tmp_path: Path) -> None:
    rows = [
        {"study_id": "a", "report": "Clear.", "model": "m", "revision": None, "settings": {"num_beams": 3},
         "images": ["a.png"]},
        {"study_id": 7, "report": "", "model": "m", "revision": None, "settings": {"num_beams": 3}, "images": []},
    ]  # fmt: skip
    read = read_reports(write(tmp_path / "reports.jsonl", rows))
    assert read.reports == {"a": "Clear.", "7": ""}
    assert read.generation == {"models": ["m"], "settings": [{"num_beams": 3}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no studies"),
        ("{broken\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is a list"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
        ('{"study_id": null, "report": "x"}\n', "line 1 has no study_id"),
        ('{"study_id": "", "report": "x"}\n', "line 1 has no study_id"),
        ('{"study_id": ["a"], "report": "x"}\n', "line 1: study_id is a list"),
        ('{"study_id": "a"}\n', r"line 1: no 'report' \(or 'prediction'\), only \['study_id'\]"),
        ('{"study_id": "a", "report": "\\ud800"}\n', "line 1, 'report' is not UTF-8 text"),
        ('{"study_id": "a", "report": 3}\n', "line 1, 'report' is a int, not a text"),
        (
            '{"study_id": "a", "report": "x"}\n\n{"study_id": "a", "report": "y"}\n',
            r"1 repeated study ids, first \['a'\]",
        ),
    ],
)
def test_bad_reports_files(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_reports(write(tmp_path / "reports.jsonl", content))
    with pytest.raises(DataError, match="does not exist"):
        read_reports(tmp_path / "none.jsonl")


def test_other_encodings(tmp_path: Path) -> None:
    """`rrg generate` keeps a file name that is not UTF-8 as its bytes; a table in Latin-1 is refused, not guessed."""
    path = tmp_path / "reports.jsonl"
    path.write_bytes(b'{"study_id": "a", "report": "Clear.", "images": ["\xe9.png"]}\n')
    assert read_reports(path).reports == {"a": "Clear."}
    path.write_bytes(b'{"study_id": "a", "report": "Caf\xe9."}\n')
    with pytest.raises(DataError, match="'report' is not UTF-8"):
        read_reports(path)
    annotation = tmp_path / "annotation.json"
    annotation.write_text(json.dumps({"test": [{"id": "a", "report": "Clear."}]}), encoding="utf-8-sig")
    assert read_references(annotation).texts == {"a": "Clear."}
    table = tmp_path / "r.csv"
    table.write_bytes(b"study_id,findings\na,\xe9\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_references(table)


def test_names_of_files_may_be_in_capitals(tmp_path: Path) -> None:
    rows = [
        write(tmp_path / "R.CSV", "study_id,findings\na,Clear.\n"),
        write(tmp_path / "R.JSONL", '{"study_id": "a", "findings": "Clear."}\n'),
        write(tmp_path / "R.Json", '[{"id": "a", "findings": "Clear."}]'),
    ]
    assert all(read_references(path).texts == {"a": "Clear."} for path in rows)


def test_pairs_in_one_file(tmp_path: Path) -> None:
    lines = '{"prediction": "x", "reference": null, "source": "phantom"}\n\n'
    lines += '{"study_id": 7, "report": "y", "reference": "z"}'
    predicted, truth = read_pairs(write(tmp_path / "p.jsonl", lines))
    assert predicted.reports == {"line 000000001": "x", "7": "y"}
    assert truth.texts == {"line 000000001": None, "7": "z"} and truth.sources == ["phantom"]
    with pytest.raises(DataError, match="no 'reference', only"):
        read_pairs(write(tmp_path / "q.jsonl", '{"report": "x"}'))


def test_csv_keeps_missing_cells_recognisable(tmp_path: Path) -> None:
    """cases nan-findings: all four are missing, whatever word the cell holds."""
    path = write(
        tmp_path / "r.csv",
        "study_id,findings,impression\n101,,No acute disease.\n102,None,Clear.\n103,N/A,Stable.\n"
        '104,NA,"Un\nchanged."\n',
    )
    read = read_references(path)
    assert set(read.texts) == {"101", "102", "103", "104"} and all(map(is_missing, read.texts.values()))
    assert read_references(path, section="impression").texts["104"] == "Un\nchanged."
    both = read_references(path, section="findings+impression")
    assert both.texts["102"] == "Clear." and both.column == "findings+impression"


def test_columns(tmp_path: Path) -> None:
    plain = write(tmp_path / "r.jsonl", [{"study_id": "a", "report": "Clear."}])
    assert read_references(plain).texts == {"a": "Clear."} and read_references(plain).column == "report"
    with pytest.raises(DataError, match="no column"):
        read_references(plain, section="impression")  # a "report" need not be an impression
    named = write(tmp_path / "n.csv", "id,text\na,Clear.\n")
    assert read_references(named, column="text").texts == {"a": "Clear."}
    with pytest.raises(DataError, match=r"no column \['findings'\], only \['id', 'text'\]"):
        read_references(named)
    with pytest.raises(DataError, match="no study_id column"):
        read_references(write(tmp_path / "m.csv", "uid,findings\na,Clear.\n"))
    sparse = write(tmp_path / "s.jsonl", [{"study_id": "a"}, {"study_id": "b", "findings": "Clear."}])
    assert read_references(sparse).texts == {"a": None, "b": "Clear."}


def test_split_column_and_r2gen_annotation(tmp_path: Path) -> None:
    rows = [{"study_id": s, "findings": s, "split": s, "source": "x"} for s in ("train", "validation", "test")]
    path = write(tmp_path / "r.jsonl", rows)
    assert read_references(path).texts == {"test": "test"}
    assert read_references(path, split="train").texts == {"train": "train"}
    assert read_references(path).sources == ["x"]
    with pytest.raises(DataError, match="no split 'val'"):
        read_references(path, split="val")
    items = {"val": [{"id": "v", "report": "Clear."}], "test": [{"id": "t", "report": "Edema.", "split": "    "}]}
    annotation = tmp_path / "annotation.json"
    annotation.write_text(json.dumps(items))
    assert read_references(annotation).texts == {"t": "Edema."}
    assert read_references(annotation, split="val").texts == {"v": "Clear."}
    annotation.write_text(json.dumps(items["val"]))
    assert read_references(annotation).texts == {"v": "Clear."}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.csv", "study_id,findings\na,x\na,y\n", "repeated study ids"),
        ("r.csv", "study_id,findings\na,x,y\n", "more cells than the header"),
        ("r.csv", "study_id,findings\n,x\n", "has no study_id"),
        ("r.csv", "study_id,findings\n", "holds no studies"),
        ("r.csv", 'study_id,findings\na,"x\nb,y\n', "Is a quote not closed"),
        pytest.param("r.csv", f"study_id,findings\na,{'x' * (1 << 24)}y\n", "field larger", id="endless cell"),
        ("r.csv", "study_id,findings,findings\na,x,y\n", r"columns \['findings'\] more than once"),
        pytest.param("r.json", "[" * 100_000, "is not JSON", id="deep JSON"),
        ("r.json", "{", "is not JSON"),
        ("r.json", "3", "neither a list"),
        ("r.json", '{"test": [3]}', "not studies"),
        ("r.jsonl", '{"study_id": "a", "findings": ["x"]}\n', "is a list, not a text"),
        ("r.xlsx", "", "Cannot read references"),
    ],
)
def test_bad_reference_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_references(write(tmp_path / name, content))


def test_datasets_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"study_id": ["a", "b"], "findings": ["Clear.", None], "source": ["phantom", "phantom"]}
    one = datasets.Dataset.from_dict(rows)
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one.select([0]), "test": one.select([1])}).save_to_disk(tmp_path / "two")
    read = read_references(tmp_path / "one")
    assert read.texts == {"a": "Clear.", "b": None} and read.sources == ["phantom"] and read.split is None
    assert read_references(tmp_path / "two").texts == {"b": None}
    assert read_references(tmp_path / "two", split="train").texts == {"a": "Clear."}
    with pytest.raises(DataError, match=r"no split 'validation', only \['test', 'train'\]"):
        read_references(tmp_path / "two", split="validation")
    with pytest.raises(DataError, match=r"no column \['impression'\]"):
        read_references(tmp_path / "one", section="impression")
    with pytest.raises(DataError, match="not a data set saved"):
        read_references(tmp_path)
    with pytest.raises(DataError, match="do not exist"):
        read_references(tmp_path / "nowhere")
