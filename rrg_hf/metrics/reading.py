"""Reading reports with a network (or with rules): each distinct text once, in batches of like length.

Every clinical metric first turns a text into something (labels, a graph, entities, a vector) and then compares. The
first step costs the time, so it is shared here: duplicates are read once, batches hold texts of like length, several
metrics may share one reader, and readings of references can outlive the process in a `ReadingCache`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ..errors import ConfigError, DataError

logger = logging.getLogger(__name__)

Reading = TypeVar("Reading")
Found = TypeVar("Found")
Progress = Callable[[int], None]

DEFAULT_MEMORY = 50_000
_LOOKUP_CHUNK = 500  # SQLite binds at most 999 values in old builds


def text_key(text: str) -> str:
    """SHA-256 of a text: what a cache stores instead of the text itself."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


class ReadingCache:
    """Readings on disk, by reader, its revision and the text's hash.

    One SQLite file per reader and revision, readable by its owner only, since readings may quote report text. Safe to
    share between processes; a killed process leaves it whole. It only saves time: of a damaged file, or on a full
    disk, it says so once and does without; a damaged value counts as absent.

    Args:
        folder: created if missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._given_up: set[Path] = set()

    def path(self, name: str, revision: str) -> Path:
        """File of one reader."""
        return self.folder / f"{name}-{text_key(revision)[:16]}.sqlite"

    def _use(self, name: str, revision: str, work: Callable[[sqlite3.Connection], Found]) -> Found | None:
        """What the work returns; None where the file cannot be used."""
        path = self.path(name, revision)
        if path in self._given_up:
            return None
        try:
            if not path.exists():
                path.touch(mode=0o600)
            with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
                columns = "key TEXT PRIMARY KEY, value TEXT NOT NULL, digest TEXT NOT NULL"
                connection.execute(f"CREATE TABLE IF NOT EXISTS checked ({columns})")
                return work(connection)
        except (sqlite3.Error, OSError) as error:
            self._given_up.add(path)
            logger.warning(
                "The cache of readings %s is not used: %s. Everything is read anew; if there is space on the disk, "
                "remove the file.",
                path.name,
                error,
            )
            return None

    def get(self, name: str, revision: str, keys: Sequence[str]) -> dict[str, str]:
        """Stored values (JSON) of the keys that are there and undamaged."""

        def look(connection: sqlite3.Connection) -> dict[str, str]:
            found: dict[str, str] = {}
            for start in range(0, len(keys), _LOOKUP_CHUNK):
                chunk = keys[start : start + _LOOKUP_CHUNK]
                marks = ",".join("?" * len(chunk))
                rows = connection.execute(f"SELECT key, value, digest FROM checked WHERE key IN ({marks})", chunk)
                found.update((key, value) for key, value, digest in rows if digest == _digest(key, value))
            return found

        return self._use(name, revision, look) or {}

    def put(self, name: str, revision: str, values: Iterable[tuple[str, str]]) -> None:
        """Store (key, JSON) pairs."""
        rows = [(key, value, _digest(key, value)) for key, value in values]
        store = "INSERT OR REPLACE INTO checked VALUES (?, ?, ?)"
        self._use(name, revision, lambda connection: connection.executemany(store, rows))


def _digest(key: str, value: Any) -> str:
    return text_key(f"{key} {value}")


class TextReader(ABC, Generic[Reading]):
    """Reads texts in batches. Subclasses implement `read_batch`, and `lengths` where characters are a poor measure.

    Attributes:
        name: e.g. "chexbert", "radgraph-xl", "rules"; says `rules` when no network reads.
        revision: changes whenever the same text could be read differently (weights, settings, version of the rules).
        reads_reports: whether it reads whole reports as a scorer gets them, so that they may be read ahead for several
            scorers. False for readers of other texts, such as prompts or entity names.

    Args:
        batch_size: texts per batch at most.
        max_tokens: padded length units (see `lengths`) per batch at most, so that long reports get smaller batches; at
            least one text always goes in.
        memory: distinct readings kept in memory.
        cache: readings that outlive the process, used for texts read with `persist=True`.
    """

    name: str
    revision: str
    reads_reports: ClassVar[bool] = True

    def __init__(
        self,
        *,
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = DEFAULT_MEMORY,
        cache: ReadingCache | None = None,
    ) -> None:
        for setting, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{setting} is {value!r}. Use a whole number of at least 1.")
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.cache = cache
        self.memory = memory
        self._memory: OrderedDict[str, Reading] = OrderedDict()

    @property
    def cache_name(self) -> str:
        """Name in the disk cache. Readers of different kinds may share a name ("rules") but not their readings."""
        return f"{type(self).__name__}-{self.name}"

    @abstractmethod
    def read_batch(self, texts: list[str]) -> list[Reading]:
        """Readings of a few texts of like length, in their order. A reading must not depend on its neighbours."""

    def lengths(self, texts: list[str]) -> list[int]:
        """Length of each text in the units of `max_tokens`; characters / 4 unless overridden."""
        return [1 + len(text) // 4 for text in texts]

    def to_json(self, reading: Reading) -> Any:
        """What the cache stores; the inverse of `from_json`."""
        return reading

    def from_json(self, value: Any) -> Reading:
        """A reading from the cache."""
        return value

    def __call__(
        self, texts: Sequence[str], *, persist: bool = False, progress: Progress | None = None
    ) -> list[Reading]:
        """Readings of all texts, in their order; equal texts share one reading (do not change it in place).

        Args:
            texts: reports.
            persist: look texts up in the disk cache and store them there, if the reader has one; meant for references.
            progress: called with the number of distinct texts done since its last call.

        Raises:
            DataError: something in the list is not a string.
        """
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"Report {index} is a {type(text).__name__}, not a text.")
        distinct = list(dict.fromkeys(texts))
        readings: dict[str, Reading] = {text: self._memory[text] for text in distinct if text in self._memory}
        if persist and self.cache is not None:
            wanted = {text_key(text): text for text in distinct if text not in readings}
            for key, value in self.cache.get(self.cache_name, self.revision, list(wanted)).items():
                readings[wanted[key]] = self.from_json(json.loads(value))
        if progress is not None and readings:
            progress(len(readings))
        for batch in self.batches([text for text in distinct if text not in readings]):
            fresh = dict(zip(batch, self.read_batch(batch), strict=True))
            readings.update(fresh)
            if persist and self.cache is not None:
                rows = ((text_key(text), json.dumps(self.to_json(reading))) for text, reading in fresh.items())
                self.cache.put(self.cache_name, self.revision, rows)
            if progress is not None:
                progress(len(batch))
        for text in distinct:
            self._memory[text] = readings[text]
            self._memory.move_to_end(text)
        while len(self._memory) > self.memory:
            self._memory.popitem(last=False)
        return [readings[text] for text in texts]

    def batches(self, texts: list[str]) -> list[list[str]]:
        """Texts in batches of like length, longest first so that too large a batch fails at once."""
        if not texts:
            return []
        lengths = self.lengths(texts)
        order = sorted(range(len(texts)), key=lambda index: (-lengths[index], index))
        batches: list[list[str]] = []
        limit = 0
        for index in order:
            if not batches or len(batches[-1]) >= limit:
                # the first is the longest, so it decides what the batch weighs
                limit = max(1, min(self.batch_size, self.max_tokens // max(1, lengths[index])))
                batches.append([])
            batches[-1].append(texts[index])
        return batches
