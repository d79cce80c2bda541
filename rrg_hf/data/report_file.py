"""`reports.jsonl`, written so that a killed run loses at most its last batch and the next one goes on from there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import ConfigError, DataError

# What must agree between the lines of one file; a difference would mix two systems under one name.
_IDENTITY = ("model", "revision", "settings")


class ReportFile:
    """An open `reports.jsonl`: finds what is there, repairs a torn last line, and appends batches durably.

    Args:
        path: the file; its folder is created.
        identity: "model", "revision" and "settings" of this run.

    Raises:
        DataError: the file cannot be opened, or a line before the last is no report.
        ConfigError: the file holds reports of another model, revision or other settings.

    Attributes:
        done: study ids that the file already holds.
        repaired: whether a torn last line was cut off.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.identity = {name: identity[name] for name in _IDENTITY}
        self.done: set[str] = set()
        self.repaired = False
        try:
            if self.path.exists() and not self.path.is_file():
                raise DataError(f"{path} cannot be written (not a regular file). Choose another output file.")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self.path.open("r+b" if self.path.exists() else "x+b")
        except OSError as error:
            raise DataError(f"{path} cannot be written ({error.strerror}). Choose another output file.") from error
        try:
            self._read()
        except BaseException:
            self._stream.close()
            raise

    def _read(self) -> None:
        """Go through the lines, and leave the stream at the end of the last good one."""
        good_until = 0
        for number, line in enumerate(self._stream, start=1):
            row = _report(line)
            if row is None:
                if line.endswith(b"\n") and line.strip():
                    raise DataError(
                        f"{self.path}, line {number} is no report (a JSON object with study_id and report). Choose "
                        "another output file, or mend this one."
                    )
                if line.endswith(b"\n"):  # a blank line does no harm
                    good_until += len(line)
                    continue
                self.repaired = True
                break
            self._check(row, number)
            self.done.add(str(row["study_id"]))
            good_until += len(line)
            if not line.endswith(b"\n"):
                # The line is whole, only its end is missing.
                self._stream.seek(good_until)
                self._stream.write(b"\n")
                good_until += 1
        self._stream.seek(good_until)
        self._stream.truncate()

    def _check(self, row: Mapping[str, Any], number: int) -> None:
        for name, wanted in self.identity.items():
            found = row.get(name)
            if found == wanted:
                continue
            if isinstance(found, Mapping) and isinstance(wanted, Mapping):
                differing = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
                what = f"other settings ({', '.join(differing)})"
            else:
                what = f"the {name} {found!r}, not {wanted!r}"
            raise ConfigError(
                f"{self.path} already holds reports of {what} (line {number}). Choose another output file with -o, or "
                "delete this one to start over."
            )

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write reports and wait until they are on disk.

        Args:
            rows: each with "study_id", "report" and further fields; the identity is added to each.

        Raises:
            DataError: the disk is full or the file cannot be written. What was there before stays.
        """
        rows = list(rows)
        lines = []
        for row in rows:
            line = {"study_id": row["study_id"], "report": row["report"], **self.identity, **row}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        try:
            # surrogateescape: a file name that is not UTF-8 is kept as its bytes.
            self._stream.write("".join(lines).encode("utf-8", errors="surrogateescape"))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise DataError(
                f"{self.path} could not be written ({error.strerror}). Free some space and run the same command "
                "again: it goes on after the last whole report."
            ) from error
        self.done.update(str(row["study_id"]) for row in rows)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> ReportFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _report(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8", errors="surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and "study_id" in row and "report" in row else None
