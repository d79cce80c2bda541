"""Reading the two sides of an evaluation from files: generated reports and reference texts."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..text.cleaning import is_missing
from .protocol import FIRST_IDS

_ID_COLUMNS = ("study_id", "id")
_FALLBACK_COLUMNS = ("reference", "report")
# Long reports exceed the csv module's default of 128 KiB a field only if a quote is unbalanced; still, be generous.
_CSV_FIELD_LIMIT = 1 << 24


@dataclass
class ReportsFile:
    """A file written by `rrg generate`.

    Attributes:
        reports: study_id to generated report.
        generation: "models", "revisions" and "settings", each the distinct values the file states.
    """

    reports: dict[str, str | None]
    generation: dict[str, Any] = field(default_factory=dict)


@dataclass
class References:
    """Reference texts.

    Attributes:
        texts: study_id to reference text, None where there is none.
        sources: names of the data sets the rows come from, as far as the rows tell.
        split: the split that was read, None if the file has none.
        column: the column the text was read from.
    """

    texts: dict[str, str | None]
    sources: list[str] = field(default_factory=list)
    split: str | None = None
    column: str = ""


@dataclass
class Statements:
    """What the lines of a reports file say about how the reports were made: distinct values, in order."""

    values: dict[str, list[Any]] = field(default_factory=lambda: {"models": [], "revisions": [], "settings": []})

    def add(self, row: Mapping[str, Any]) -> None:
        for key, name in (("models", "model"), ("revisions", "revision"), ("settings", "settings")):
            value = row.get(name)
            if value is not None and value not in self.values[key]:
                self.values[key].append(value)

    def to_dict(self) -> dict[str, list[Any]]:
        return {key: values for key, values in self.values.items() if values}


def read_reports(path: str | os.PathLike[str]) -> ReportsFile:
    """Read `reports.jsonl`: one JSON object a line with at least "study_id" and "report" (or "prediction").

    Raises:
        DataError: the file is missing or empty, a line is no such object, or a study_id appears twice.
    """
    reports, _, stated, _ = _read_lines(Path(path), pairs=False)
    return ReportsFile(reports, stated.to_dict())


def read_pairs(path: str | os.PathLike[str]) -> tuple[ReportsFile, References]:
    """Read a .jsonl whose lines hold both sides: "report" (or "prediction") and "reference".

    A line without "study_id" is named by its number, e.g. "line 000000012".

    Raises:
        DataError: as `read_reports`, or a line without "reference".
    """
    reports, references, stated, sources = _read_lines(Path(path), pairs=True)
    return ReportsFile(reports, stated.to_dict()), References(references, sorted(sources), None, "reference")


def _read_lines(
    path: Path, *, pairs: bool
) -> tuple[dict[str, str | None], dict[str, str | None], Statements, set[str]]:
    reports: dict[str, str | None] = {}
    references: dict[str, str | None] = {}
    duplicates: list[str] = []
    stated, sources = Statements(), set()
    for number, row in _json_lines(path):
        where = f"{path.name}, line {number}"
        study_id = row_study_id(row, where, number if pairs else None)
        if study_id in reports:
            duplicates.append(study_id)
        reports[study_id] = report_text(row, where)
        if pairs:
            references[study_id] = pair_text(row, where)
            if row.get("source"):
                sources.add(str(row["source"]))
        stated.add(row)
    _check_ids(path, reports, duplicates)
    return reports, references, stated, sources


def report_text(row: Mapping[str, Any], where: str) -> str | None:
    """The generated report of a line.

    Raises:
        DataError: the line has none, or it is no text.
    """
    name = next((name for name in ("report", "prediction") if name in row), None)
    if name is None:
        raise DataError(f"{where}: no 'report' (or 'prediction'), only {sorted(row)}.")
    return row_text(row[name], f"{where}, {name!r}")


def pair_text(row: Mapping[str, Any], where: str) -> str | None:
    """The reference of a line that holds both sides.

    Raises:
        DataError: the line has none, or it is no text.
    """
    if "reference" not in row:
        raise DataError(
            f"{where}: no 'reference', only {sorted(row)}. Give the references' file or folder (--references), or one "
            "in every line."
        )
    return row_text(row["reference"], f"{where}, 'reference'")


def row_study_id(row: Mapping[str, Any], where: str, number: int | None, column: str = "study_id") -> str:
    """The id of a row; one made of the line's number where a line may go without.

    Raises:
        DataError: no id, or one that is neither a text nor an integer.
    """
    if number is not None and column not in row:
        return f"line {number:09d}"
    if column not in row:
        raise DataError(f"{where}: no {column!r}, only {sorted(row)}.")
    return _study_id(row[column], where, column)


def read_references(
    path: str | os.PathLike[str], *, split: str | None = None, section: str = "findings", column: str | None = None
) -> References:
    """Read reference texts.

    Args:
        path: a folder saved with `datasets` (`Study` rows; a `DatasetDict` or one split), a .jsonl or .csv file with
            one study a row, or an R2Gen annotation .json (split -> list of {"id", "report"}).
        split: which split. None: "test" where the data has named splits, else all rows.
        section: which text: a section, or several joined by "+" ("findings+impression"), in that order.
        column: read this column instead. Without it, a file that lacks the column "findings" but has "reference" or
            "report" is read from there; other sections are never guessed.

    Raises:
        DataError: the path is missing or of another kind, has no such split or column, or repeats a study_id.
    """
    source = Path(path)
    if not source.exists():
        raise DataError(
            f"The references {source.name!r} do not exist. Give a data set folder, a .jsonl, .csv or .json."
        )
    if source.is_dir():
        rows, split = _dataset_rows(source, split, [column] if column else section.split("+"))
    elif source.suffix.lower() == ".csv":
        rows = _csv_rows(source)
    elif source.suffix.lower() == ".jsonl":
        rows = (row for _, row in _json_lines(source))
    elif source.suffix.lower() == ".json":
        rows, split = _annotation_rows(source, split)
    else:
        raise DataError(
            f"Cannot read references from {source.name!r}. Give a data set folder, a .jsonl, .csv or .json."
        )
    return _collect(source, rows, split, section, column)


def _collect(
    path: Path, rows: Iterable[Mapping[str, Any]], split: str | None, section: str, column: str | None
) -> References:
    rows = list(rows)
    if not rows:
        raise DataError(f"{path.name} holds no studies.")
    # A JSON row may leave out what it does not have: a column is any row's.
    id_column, columns = choose_columns(path, {name for row in rows for name in row}, section, column)
    chosen = choose_row_split(path, {str(row["split"]) for row in rows if row.get("split")}, split)
    if chosen is not None:
        split, rows = chosen, [row for row in rows if row.get("split") == chosen]
    texts: dict[str, str | None] = {}
    sources: set[str] = set()
    duplicates: list[str] = []
    for row in rows:
        where = f"{path.name}: the row after {len(texts)} others"
        study_id = _study_id(row.get(id_column), where, id_column)
        if study_id in texts:
            duplicates.append(study_id)
        parts = [row_text(row.get(name), f"{path.name}, study {study_id}, {name!r}") for name in columns]
        texts[study_id] = join_parts(parts)
        if row.get("source"):
            sources.add(str(row["source"]))
    _check_ids(path, texts, duplicates)
    return References(texts, sorted(sources), split, "+".join(columns))


def choose_columns(path: Path, known: set[str], section: str, column: str | None) -> tuple[str, list[str]]:
    """Column of the ids and columns of the text, of the columns that any row has.

    Raises:
        DataError: one of them is missing.
    """
    id_column = next((name for name in _ID_COLUMNS if name in known), None)
    if id_column is None:
        raise DataError(f"{path.name} has no study_id column, only {sorted(known)}.")
    columns = [column] if column else section.split("+")
    if column is None and section == "findings" and section not in known:
        fallback = next((name for name in _FALLBACK_COLUMNS if name in known), None)
        columns = [fallback] if fallback else columns
    missing = [name for name in columns if name not in known]
    if missing:
        raise DataError(
            f"{path.name} has no column {missing}, only {sorted(known)}. Name the text's column (--column)."
        )
    return id_column, columns


def choose_row_split(path: Path, splits: set[str], split: str | None) -> str | None:
    """The split to keep where rows name theirs; None: all rows.

    Raises:
        DataError: there is no such split.
    """
    if splits and (split is not None or len(splits) > 1):
        return _choose_split(path, dict.fromkeys(splits), split)
    return None


def join_parts(parts: list[str | None]) -> str | None:
    """Sections below each other; None where none has text."""
    if len(parts) == 1:
        return parts[0]
    kept = [part for part in parts if part is not None and not is_missing(part)]
    return "\n".join(kept) if kept else None


def _study_id(value: Any, where: str, column: str) -> str:
    if value is None or value == "":
        raise DataError(f"{where} has no {column}.")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{where}: {column} is a {type(value).__name__}, not a text or an integer.")
    return str(value)


def row_text(value: Any, where: str) -> str | None:
    """A cell as text; None where there is none.

    Raises:
        DataError: the cell is no text, or not UTF-8.
    """
    if value is None:
        return value
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:  # of a line in another encoding, which only names may be in
            raise DataError(f"{where} is not UTF-8 text. Save the file as UTF-8.") from error
        return value
    if isinstance(value, float) and value != value:  # NaN, as pandas writes an empty cell
        return None
    raise DataError(f"{where} is a {type(value).__name__}, not a text.")


def _check_ids(path: str | os.PathLike[str], texts: Mapping[str, Any], duplicates: list[str]) -> None:
    name = Path(path).name
    if duplicates:
        raise DataError(
            f"{name} has {len(duplicates)} repeated study ids, first {sorted(set(duplicates))[:FIRST_IDS]}. "
            "Keep one row a study: repeated studies would count twice."
        )
    if not texts:
        raise DataError(f"{name} holds no studies.")


def json_line(name: str, number: int, line: str | bytes, *, first: bool = False) -> dict[str, Any]:
    """One line of a .jsonl file.

    Args:
        name: of the file, for messages.
        number: of the line.
        line: its text or bytes. Bytes that are no UTF-8 are kept as surrogates: a file name of another encoding, which
            `rrg generate` writes as its bytes, must not stop the reading.
        first: whether a byte order mark may precede it.

    Raises:
        DataError: not a JSON object.
    """
    if isinstance(line, bytes):
        line = line.decode("utf-8-sig" if first else "utf-8", errors="surrogateescape")
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{name}, line {number} is not JSON. Expected one JSON object a line.") from error
    if not isinstance(row, dict):
        raise DataError(f"{name}, line {number} is a {type(row).__name__}, not a JSON object.")
    return row


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        raise DataError(f"The file {path.name!r} does not exist.")
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, json_line(path.name, number, line)


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text. Save it as UTF-8.") from error
    # Strict: an unbalanced quote would take the rows after it into its own text.
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        repeated = sorted(name for name, count in Counter(reader.fieldnames or ()).items() if count > 1)
        if repeated:
            raise DataError(f"{path.name} has the columns {repeated} more than once. Keep one of each.")
        for row in reader:
            if None in row:
                raise DataError(f"{path.name}: a row has more cells than the header. Quote texts that hold commas.")
            yield row
    except csv.Error as error:
        raise DataError(
            f"{path.name}: the csv is broken before line {reader.line_num + 1} ({error}). Is a quote not closed?"
        ) from error


def _annotation_rows(path: Path, split: str | None) -> tuple[Iterable[dict[str, Any]], str | None]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path.name} is not JSON. For one JSON object a line, name the file .jsonl.") from error
    if isinstance(content, list):
        rows, chosen = content, split
    elif isinstance(content, dict):
        chosen = _choose_split(path, {name: None for name, value in content.items() if isinstance(value, list)}, split)
        rows = content[chosen]
    else:
        raise DataError(f"{path.name} is neither a list of studies nor a mapping of split to studies.")
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path.name} holds entries that are not studies (JSON objects).")
    # The key has decided: an item's own "split" may use another word ("val") or be missing.
    return ({**row, "split": chosen} for row in rows) if isinstance(content, dict) else rows, chosen


def _dataset_rows(path: Path, split: str | None, columns: list[str]) -> tuple[Iterable[Mapping[str, Any]], str | None]:
    dataset, chosen = open_dataset(path, split)
    wanted = ["study_id", *columns, "source", *(() if chosen is not None else ("split",))]
    # Images stay on disk.
    return dataset.select_columns([name for name in wanted if name in dataset.column_names]), chosen or split


def open_dataset(path: Path, split: str | None) -> tuple[Any, str | None]:
    """A data set folder: the chosen split and its name, or the one data set and None.

    Raises:
        DataError: not a folder saved with `datasets`, or no such split.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except Exception as error:  # pyarrow, json and fsspec each raise their own on a damaged folder
        raise DataError(
            f"The folder {path.name!r} is not a data set saved with `datasets`, or a damaged one "
            f"({type(error).__name__})."
        ) from error
    if isinstance(dataset, DatasetDict):
        split = _choose_split(path, dataset, split)
        return dataset[split], split
    return dataset, None


def _choose_split(path: Path, splits: Mapping[str, Any], split: str | None) -> str:
    if split is None:
        split = next(iter(splits)) if len(splits) == 1 else "test"
    if split not in splits:
        raise DataError(f"{path.name} has no split {split!r}, only {sorted(splits)}. Choose one (--split).")
    return split
