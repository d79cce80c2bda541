"""The files of an evaluation in shards: per-study statistics of each shard, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..metrics.statistics import StudyStatistics
from .report_statistics import ReportStatistics
from .result import to_json, write_atomically

MANIFEST = "manifest.json"
INDEX = "index.sqlite"
FREQUENCIES = "frequencies.bin"


def digest_of(fingerprint: Mapping[str, Any]) -> str:
    """One hash of everything that decides the statistics of a shard."""
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True, default=str).encode()).hexdigest()


def text_hashes(texts: Sequence[str]) -> np.ndarray:
    """64-bit hash of each text, to count distinct ones without keeping them."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8")


class ShardFolder:
    """The folder of one evaluation in shards.

    Args:
        folder: created if missing.
        fingerprint: what decides the statistics: inputs, settings, scorers, versions.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.fingerprint = json.loads(json.dumps(fingerprint, sort_keys=True, default=str))
        self.digest = digest_of(self.fingerprint)

    @property
    def index(self) -> Path:
        return self.folder / INDEX

    @property
    def frequencies(self) -> Path:
        return self.folder / FREQUENCIES

    def shard(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.npz"

    def rows(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.rows.jsonl"

    def counts(self, number: int) -> Path:
        return self.folder / f"frequencies-{number:05d}.npy"

    def manifest(self) -> dict[str, Any] | None:
        """The folder's manifest, None in a fresh folder.

        Raises:
            ConfigError: the folder belongs to an evaluation of other inputs or with other settings.
        """
        path = self.folder / MANIFEST
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is damaged. Delete the folder and start again.") from error
        if known.get("digest") != self.digest:
            changed = _differences(known.get("fingerprint", {}), self.fingerprint)
            raise ConfigError(
                f"{self.folder} holds shards of another evaluation: {', '.join(changed[:5]) or 'its manifest'} "
                "changed since it was started. Choose another folder, or delete this one to start again."
            )
        return known

    def start(self, n: int, shards: int) -> None:
        """Write the manifest: from here on other processes may work in the folder."""
        values = {"digest": self.digest, "n": n, "shards": shards, "fingerprint": self.fingerprint}
        write_atomically(self.folder / MANIFEST, json.dumps(values, indent=2) + "\n")

    def write(
        self, number: int, study_ids: Sequence[str], systems: Sequence[ReportStatistics], *, rank: int = 0
    ) -> None:
        """Keep a finished shard: first its rows per study (of the first system), then its statistics.

        Args:
            number: of the shard.
            study_ids: of its studies.
            systems: statistics of each system on them.
            rank: of the process that scored it; kept for whoever looks into the folder.
        """
        lines = "".join(f"{to_json(row)}\n" for row in systems[0].rows(study_ids))
        write_atomically(self.rows(number), lines)
        references, reports = systems[0].cleaned
        about = {
            "digest": self.digest,
            "n": len(study_ids),
            "rank": rank,
            "systems": [_about(statistics) for statistics in systems],
        }
        arrays: dict[str, Any] = {
            f"system{index}_group{place}": group.values
            for index, statistics in enumerate(systems)
            for place, group in enumerate(statistics.groups)
        }
        arrays["references"], arrays["reports"] = text_hashes(references), text_hashes(reports)
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        _save(self.shard(number), lambda file: np.savez(file, **arrays))

    def write_counts(self, number: int, entries: np.ndarray) -> None:
        """Keep the n-gram counts of a shard."""
        _save(self.counts(number), lambda file: np.save(file, entries))

    def about(self, number: int) -> dict[str, Any] | None:
        """What a finished shard holds; None if it is not finished, damaged, or of another evaluation."""
        try:
            with np.load(self.shard(number)) as arrays:
                about = json.loads(arrays["about"].tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return about if about.get("digest") == self.digest and self.rows(number).exists() else None

    def array(self, number: int, name: str) -> np.ndarray:
        with np.load(self.shard(number)) as arrays:
            return arrays[name]


def _about(statistics: ReportStatistics) -> dict[str, Any]:
    return {
        "scores": [sorted(group.corpus()) for group in statistics.groups],
        "labellers": statistics.labellers,
        "absent": statistics.absent,
        "counts": statistics.counts,
    }


def _save(path: Path, write: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}). Finished shards stay.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _differences(known: Any, given: Any, where: str = "") -> list[str]:
    if isinstance(known, dict) and isinstance(given, dict):
        names = sorted(set(known) | set(given))
        return [
            line
            for name in names
            for line in _differences(known.get(name), given.get(name), f"{where}.{name}" if where else name)
        ]
    return [] if known == given else [where]


class StoredRows:
    """Rows of one group of statistics over all shards, read from disk slice by slice.

    Args:
        folder: whose shards are all finished.
        name: of the array.
        lengths: studies of each shard.
    """

    def __init__(self, folder: ShardFolder, name: str, lengths: Sequence[int]) -> None:
        self._folder = folder
        self._name = name
        self._ends = np.cumsum(lengths)
        self._loaded: tuple[int, np.ndarray] = (0, folder.array(0, name))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), self._loaded[1].shape[1])

    def _shard(self, number: int) -> np.ndarray:
        if self._loaded[0] != number:
            self._loaded = (number, self._folder.array(number, self._name))
        return self._loaded[1]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        parts = []
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            first = int(self._ends[number - 1]) if number else 0
            end = min(stop, int(self._ends[number]))
            parts.append(self._shard(number)[start - first : end - first])
            start = end
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]))


def stored_statistics(
    folder: ShardFolder, system: int, layout: Sequence[StudyStatistics], lengths: Sequence[int]
) -> list[StudyStatistics]:
    """Statistics over all shards whose values stay on disk.

    Args:
        folder: whose shards are all finished.
        system: index of the system.
        layout: statistics of any studies with the same settings, for their score functions.
        lengths: studies of each shard.
    """
    statistics = []
    for place, group in enumerate(layout):
        rows: Any = StoredRows(folder, f"system{system}_group{place}", lengths)
        statistics.append(StudyStatistics(rows, group.score))
    return statistics
