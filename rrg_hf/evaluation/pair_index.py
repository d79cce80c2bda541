"""Pairs of report and reference that stay in their files: an index on disk says where each text is.

Scoring hundreds of thousands of studies must not hold them in memory. The files are read once to note ids, byte
offsets and what is missing in a SQLite file; after that any slice of the studies, in the order of their ids, is
fetched by seeking. No report text is copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError
from ..metrics.loading import file_sha256
from ..text.cleaning import is_missing
from .inputs import (
    Statements,
    choose_columns,
    choose_row_split,
    join_parts,
    json_line,
    open_dataset,
    pair_text,
    report_text,
    row_study_id,
    row_text,
)
from .protocol import ALLOW_MISSING, FIRST_IDS, phantom_flag

_INSERT_ROWS = 5_000


@dataclass(frozen=True)
class PairSources:
    """Where the texts are.

    Attributes:
        reports: a .jsonl with study_id and report a line (or "prediction"); with a "reference" too if `references` is
            None.
        references: a .jsonl or a folder saved with `datasets`; None: the column "reference" of `reports`.
        versus: a .jsonl of another system's reports.
        split, section, column: as `rrg_hf.evaluation.read_references` takes them.
    """

    reports: Path
    references: Path | None = None
    versus: Path | None = None
    split: str | None = None
    section: str = "findings"
    column: str | None = None

    def check(self) -> None:
        """Raises `DataError` for a missing file, `ConfigError` for one that cannot be read in pieces."""
        for path in (self.reports, self.references, self.versus):
            if path is None:
                continue
            if not path.exists():
                raise DataError(f"{path.name!r} does not exist.")
            folder = path == self.references and path.is_dir()
            if not folder and path.suffix.lower() != ".jsonl":
                raise ConfigError(
                    f"{path.name!r} cannot be scored in shards: only .jsonl files, and data set folders as "
                    "references, can be read piece by piece. Convert it to .jsonl, or score without shards."
                )

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content: SHA-256 of files; of a data set folder its own fingerprint and size."""
        prints: dict[str, Any] = {"split": self.split, "section": self.section, "column": self.column}
        for name in ("reports", "references", "versus"):
            path = getattr(self, name)
            if path is None:
                prints[name] = None
            elif path.is_dir():
                rows, split = open_dataset(path, self.split)
                prints[name] = {"dataset": rows._fingerprint, "rows": len(rows), "split": split}
            else:
                prints[name] = {"sha256": file_sha256(path)}
        return prints


class _Lines:
    """A .jsonl file: its rows with the offset of each, and any row by offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")

    def scan(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yields (offset, line number, row)."""
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield offset, number, json_line(self.path.name, number, line, first=offset == 0)
                offset += len(line)

    def read(self, offset: int) -> dict[str, Any]:
        self._file.seek(offset)
        return json_line(self.path.name, 0, self._file.readline(), first=offset == 0)


class _Rows:
    """A data set on disk, by row number; pictures are never read."""

    def __init__(self, path: Path, split: str | None) -> None:
        self.path = path
        dataset, self.split = open_dataset(path, split)
        pictures = [name for name in dataset.column_names if name in ("images", "masks")]
        self._dataset = dataset.remove_columns(pictures)

    def scan(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        for index, row in enumerate(self._dataset):
            yield index, index + 1, row

    def read(self, offset: int) -> dict[str, Any]:
        return self._dataset[offset]


@dataclass
class IndexSummary:
    """What the index learnt about the data, for the protocol.

    Attributes:
        n: studies to score.
        studies, skipped, empty_predictions, sources, phantom, generation, split, column: as in `Protocol`.
        has_versus: whether a second system is in the index.
    """

    n: int
    studies: dict[str, int]
    skipped: dict[str, dict[str, Any]]
    empty_predictions: int
    sources: list[str]
    generation: dict[str, Any]
    split: str | None
    column: str | None
    has_versus: bool
    phantom: bool | None = None
    sha256: dict[str, str] = field(default_factory=dict)


class PairIndex:
    """The studies to score, in the order of their ids; fetches any slice of them.

    Args:
        path: SQLite file of `PairIndex.build`.
        sources: the files it was built from, unchanged.
    """

    def __init__(self, path: Path, sources: PairSources) -> None:
        self._path = path
        self._sources = sources
        self._reports = _Lines(sources.reports)
        self._versus = _Lines(sources.versus) if sources.versus is not None else None
        self._references: _Lines | _Rows | None = None
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            self.summary = IndexSummary(**json.loads(connection.execute("SELECT value FROM about").fetchone()[0]))
        connection.close()
        if sources.references is not None:
            self._references = _open_references(sources.references, self.summary.split)
        self._columns = (self.summary.column or "reference").split("+")

    def fetch(self, start: int, stop: int) -> tuple[list[str], list[list[str]], list[str]]:
        """Studies start .. stop: ids, reports of each system, references; an empty report is ""."""
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
        try:
            rows = connection.execute(
                "SELECT study, report, reference, other FROM pairs WHERE place >= ? AND place < ? ORDER BY place",
                (start, stop),
            ).fetchall()
        finally:
            connection.close()
        ids = [_from_key(row[0]) for row in rows]
        systems = [[_present(report_text(self._reports.read(row[1]), "")) for row in rows]]
        if self._versus is not None:
            systems.append([_present(report_text(self._versus.read(row[3]), "")) for row in rows])
        references = [_present(self._reference(row[2], row[1])) for row in rows]
        return ids, systems, references

    def _reference(self, place: int, report: int) -> str | None:
        if self._references is None:
            return pair_text(self._reports.read(report), "")
        return _reference_text(self._references.read(place), self._columns, "")

    @classmethod
    def build(cls, path: Path, sources: PairSources, *, allow_missing: bool = False) -> IndexSummary:
        """Read the files once and write the index, atomically.

        Raises:
            DataError: as reading and aligning the same files in memory would raise.
        """
        sources.check()
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        for left in path.parent.glob(f".{path.name}.*"):  # of a process that was killed
            left.unlink(missing_ok=True)
        temporary.touch(mode=0o600)
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            summary = _Builder(connection, sources, allow_missing).build()
            connection.execute("CREATE TABLE about (value TEXT)")
            connection.execute("INSERT INTO about VALUES (?)", (json.dumps(summary.__dict__),))
            connection.execute("COMMIT")
            connection.close()
            temporary.replace(path)
        except sqlite3.Error as error:
            raise DataError(
                f"{path} could not be written ({error}). Is the disk full? Make space or choose another folder."
            ) from error
        finally:
            connection.close()
            temporary.unlink(missing_ok=True)
        return summary


def _open_references(path: Path, split: str | None) -> _Lines | _Rows:
    return _Rows(path, split) if path.is_dir() else _Lines(path)


def _key(study_id: str) -> bytes:
    """Bytes that sort as the ids do, ids of undecodable file names included."""
    return study_id.encode("utf-8", errors="surrogatepass")


def _from_key(key: bytes) -> str:
    return key.decode("utf-8", errors="surrogatepass")


def _present(text: str | None) -> str:
    return "" if text is None or is_missing(text) else text


def _reference_text(row: Mapping[str, Any], columns: list[str], where: str) -> str | None:
    return join_parts([row_text(row.get(name), f"{where}, {name!r}") for name in columns])


class _Builder:
    """Fills the tables `report`, `reference`, `other` (study, place in its file, missing), and joins them."""

    def __init__(self, connection: sqlite3.Connection, sources: PairSources, allow_missing: bool) -> None:
        self.db = connection
        self.sources = sources
        self.allow_missing = allow_missing
        self.split: str | None = sources.split
        self.column: str | None = sources.column or "reference"
        self.names: set[str] = set()

    def build(self) -> IndexSummary:
        stated = Statements()
        self._add_reports("report", self.sources.reports, stated)
        if self.sources.versus is not None:
            self._add_reports("other", self.sources.versus, Statements())
        if self.sources.references is None:
            self._fill("reference", self.sources.reports.name, self._own_references())
        else:
            self._add_references(self.sources.references)
        phantom = phantom_flag(self.names)
        skipped = self._check_alignment()
        self._join()
        hashes = {"predictions": self._sha256("report"), "references": self._sha256("reference")}
        if self.sources.versus is not None:
            hashes["versus"] = self._sha256("other")
        count = self._number
        summary = IndexSummary(
            n=count("SELECT COUNT(*) FROM pairs"),
            studies={
                "references": count("SELECT COUNT(*) FROM reference"),
                "predictions": count("SELECT COUNT(*) FROM report"),
                "evaluated": count("SELECT COUNT(*) FROM pairs"),
            },
            skipped=skipped,
            empty_predictions=count("SELECT COUNT(*) FROM pairs JOIN report USING (study) WHERE report.missing"),
            sources=sorted(self.names),
            generation=stated.to_dict(),
            split=self.split,
            column=self.column,
            has_versus=self.sources.versus is not None,
            phantom=phantom,
            sha256=hashes,
        )
        for table in ("report", "reference", "other"):
            self.db.execute(f"DROP TABLE IF EXISTS {table}")
        return summary

    def _number(self, query: str) -> int:
        return int(self.db.execute(query).fetchone()[0])

    def _ids(self, query: str) -> list[str]:
        return [_from_key(row[0]) for row in self.db.execute(f"{query} ORDER BY study LIMIT {FIRST_IDS}")]

    def _fill(self, table: str, name: str, rows: Iterator[tuple[str, int, bool]]) -> None:
        self.db.execute(f"CREATE TABLE {table} (study BLOB PRIMARY KEY, place INTEGER, missing INTEGER) WITHOUT ROWID")
        before = after = 0
        repeated: set[str] = set()
        statement = f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)"
        for study, place, missing in rows:
            before += 1
            inserted = self.db.execute(statement, (_key(study), place, missing)).rowcount
            after += inserted
            if not inserted and len(repeated) < FIRST_IDS:
                repeated.add(study)
        if before != after:
            raise DataError(
                f"{name} has {before - after} repeated study ids, first {sorted(repeated)}. Keep one row a study: "
                "repeated studies would count twice."
            )
        if not after:
            raise DataError(f"{name} holds no studies.")

    def _add_reports(self, table: str, path: Path, stated: Statements) -> None:
        def rows() -> Iterator[tuple[str, int, bool]]:
            for offset, number, row in _Lines(path).scan():
                where = f"{path.name}, line {number}"
                text = report_text(row, where)
                stated.add(row)
                yield row_study_id(row, where, number), offset, is_missing(text)

        self._fill(table, path.name, rows())

    def _own_references(self) -> Iterator[tuple[str, int, bool]]:
        for offset, number, row in _Lines(self.sources.reports).scan():
            where = f"{self.sources.reports.name}, line {number}"
            if row.get("source"):
                self.names.add(str(row["source"]))
            yield row_study_id(row, where, number), offset, is_missing(pair_text(row, where))

    def _add_references(self, path: Path) -> None:
        source = _open_references(path, self.split)
        known: set[str] = set()
        splits: set[str] = set()
        for _, _, row in source.scan():
            known.update(row)
            if row.get("split"):
                splits.add(str(row["split"]))
        if not known:
            raise DataError(f"{path.name} holds no studies.")
        id_column, columns = choose_columns(path, known, self.sources.section, self.sources.column)
        if isinstance(source, _Rows):
            self.split = source.split
            chosen = None if source.split is not None else choose_row_split(path, splits, self.split)
        else:
            chosen = choose_row_split(path, splits, self.split)
        self.split = chosen or self.split
        self.column = "+".join(columns)

        def rows() -> Iterator[tuple[str, int, bool]]:
            for offset, number, row in source.scan():
                if chosen is not None and row.get("split") != chosen:
                    continue
                where = f"{path.name}, row {number}"
                if row.get("source"):
                    self.names.add(str(row["source"]))
                text = _reference_text(row, columns, where)
                yield row_study_id(row, where, None, id_column), offset, is_missing(text)

        self._fill("reference", path.name, rows())

    def _check_alignment(self) -> dict[str, dict[str, Any]]:
        total = self._number("SELECT COUNT(*) FROM reference")
        empty = "FROM reference WHERE missing"
        count_empty = self._number(f"SELECT COUNT(*) {empty}")
        section = self.sources.section
        if count_empty == total:
            raise DataError(f"None of the {total} references has a {section} text.")
        skipped = {f"reference without {section}": (count_empty, self._ids(f"SELECT study {empty}"))}
        shared = self._number("SELECT COUNT(*) FROM reference JOIN report USING (study) WHERE NOT reference.missing")
        if not shared:
            raise DataError(
                "No prediction belongs to a reference: predictions have ids like "
                f"{self._ids('SELECT study FROM report')}, references like "
                f"{self._ids('SELECT study FROM reference WHERE NOT missing')}. Check the split and the id column."
            )
        for table, name in (("report", "studies have no prediction"), ("other", "studies are not in --versus")):
            if table == "other" and self.sources.versus is None:
                continue
            absent = f"FROM reference WHERE NOT missing AND study NOT IN (SELECT study FROM {table})"
            count, first = self._number(f"SELECT COUNT(*) {absent}"), self._ids(f"SELECT study {absent}")
            if count and (table == "other" or not self.allow_missing):
                hint = "Generate them" if table == "other" else ALLOW_MISSING
                raise DataError(f"{count} of {total - count_empty} {name}, first {first}. {hint}.")
            if table == "report":
                skipped["no prediction"] = (count, first)
        extra = "FROM report WHERE study NOT IN (SELECT study FROM reference)"
        skipped["prediction without reference"] = (
            self._number(f"SELECT COUNT(*) {extra}"),
            self._ids(f"SELECT study {extra}"),
        )
        return {reason: {"count": count, "first_ids": first} for reason, (count, first) in skipped.items() if count}

    def _join(self) -> None:
        other, join = ("other.place", "JOIN other USING (study)") if self.sources.versus is not None else ("NULL", "")
        self.db.execute(
            "CREATE TABLE pairs "
            "(place INTEGER PRIMARY KEY, study BLOB, report INTEGER, reference INTEGER, other INTEGER)"
        )
        self.db.execute(
            f"INSERT INTO pairs SELECT ROW_NUMBER() OVER (ORDER BY study) - 1, study, report.place, reference.place, "
            f"{other} FROM reference JOIN report USING (study) {join} WHERE NOT reference.missing ORDER BY study"
        )

    def _sha256(self, table: str) -> str:
        """`protocol.text_sha256` of one side, streamed in the order of the ids."""
        if table == "reference" and self.sources.references is not None:
            references = _open_references(self.sources.references, self.split)
            columns = (self.column or "").split("+")
            texts = ((key, _reference_text(references.read(place), columns, "")) for key, place in self._places(table))
        else:
            lines = _Lines(self.sources.versus if table == "other" and self.sources.versus else self.sources.reports)
            get = pair_text if table == "reference" else report_text
            texts = ((key, get(lines.read(place), "")) for key, place in self._places(table))
        digest = hashlib.sha256()
        for key, text in texts:
            pair = [_from_key(key), text if isinstance(text, str) else None]
            digest.update(json.dumps(pair, ensure_ascii=False).encode("utf-8", errors="surrogatepass") + b"\n")
        return digest.hexdigest()

    def _places(self, table: str) -> Iterator[tuple[bytes, int]]:
        yield from self.db.execute(f"SELECT study, place FROM {table} ORDER BY study")
