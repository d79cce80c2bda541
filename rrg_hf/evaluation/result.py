"""The result of an evaluation: scores with intervals, the table per observation, and their protocol."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .protocol import Protocol

Score = dict[str, float | None]  # "value", "low", "high"


@dataclass
class EvaluationResult:
    """Scores of one set of reports.

    Attributes:
        n: studies behind the scores.
        scores: score name -> {"value", "low", "high"}; low and high are None without bootstrap.
        observations: observation -> {"precision", "recall", "f1": each {"value", "low", "high"}; "support",
            "predicted", "tp", "fp", "fn", "evaluated": counts}, by `protocol.labeller`. Empty where no metric labels.
        more_observations: the same table by every further labeller: {"chexbert": {...}} beside "rules".
        diversity: "predictions" and "references" -> {"reports", "unique", "unique_share", "most_common_share"}. A
            model that ignores its image writes few unique reports.
        per_sample: one mapping per study, in study_id order: scores of this study alone (CIDEr with the corpus's
            document frequencies), and the observations its report missed and invented. Holds no report text.
        protocol: how the numbers were made.
        comparison: paired tests against another system, if they were asked for: "file", "sha256", "resamples",
            "permutations", "seed" and "scores" (score name -> `ScoreComparison` as a mapping).
    """

    n: int
    scores: dict[str, Score]
    observations: dict[str, dict[str, Any]]
    diversity: dict[str, dict[str, float]]
    protocol: Protocol
    per_sample: list[dict[str, Any]] = field(default_factory=list)
    comparison: dict[str, Any] = field(default_factory=dict)
    more_observations: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """The value of one score.

        Raises:
            DataError: there is no such score; the message says why, if the protocol knows.
        """
        if name not in self.scores:
            reason = self.protocol.absent.get(name)
            raise DataError(
                f"No score {name!r}" + (f": {reason}." if reason else f"; there are {sorted(self.scores)}.")
            )
        value = self.scores[name]["value"]
        return math.nan if value is None else value

    def to_dict(self, *, per_sample: bool = False) -> dict[str, Any]:
        """Plain data for JSON; the rows per study only on request."""
        values: dict[str, Any] = {
            "n": self.n,
            "scores": self.scores,
            "observations": self.observations,
            "diversity": self.diversity,
            "protocol": self.protocol.to_dict(),
        }
        for name in ("comparison", "more_observations"):
            if getattr(self, name):
                values[name] = getattr(self, name)
        if per_sample:
            values["per_sample"] = self.per_sample
        return values

    def save(self, path: str | os.PathLike[str], *, per_sample: str | os.PathLike[str] | None = None) -> Path:
        """Write the scores and their protocol as JSON, atomically.

        Args:
            path: the JSON file; its folder is created.
            per_sample: also write one JSON line per study to this file.

        Returns:
            The path of the JSON file.
        """
        if per_sample is not None:
            write_atomically(per_sample, "".join(f"{to_json(row)}\n" for row in self.per_sample))
        return write_atomically(path, to_json(self.to_dict(), indent=2) + "\n")

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, per_sample: str | os.PathLike[str] | None = None
    ) -> EvaluationResult:
        """Read what `save` wrote.

        Raises:
            DataError: the file is missing, is no JSON or is no evaluation.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            rows: list[dict[str, Any]] = []
            if per_sample is not None:
                lines = Path(per_sample).read_text(encoding="utf-8").splitlines()
                rows = [json.loads(line) for line in lines if line.strip()]
        except FileNotFoundError as error:
            raise DataError(f"{error.filename} does not exist.") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not a JSON file written by an evaluation.") from error
        fields = ("n", "scores", "observations", "diversity", "protocol")
        missing = [name for name in fields if not isinstance(values, Mapping) or name not in values]
        if missing:
            raise DataError(f"{path} is not the result of an evaluation: it has no {missing}.")
        protocol = Protocol.from_dict(values["protocol"])
        return cls(
            **{name: values[name] for name in fields[:-1]},
            protocol=protocol,
            per_sample=rows,
            comparison=values.get("comparison", {}),
            more_observations=values.get("more_observations", {}),
        )


def diversity(texts: Sequence[str]) -> dict[str, float]:
    """How varied a set of cleaned reports is: number, unique ones, and the share of the most frequent one."""
    if not texts:
        return {"reports": 0, "unique": 0, "unique_share": 0.0, "most_common_share": 0.0}
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return {
        "reports": len(texts),
        "unique": len(counts),
        "unique_share": len(counts) / len(texts),
        "most_common_share": max(counts.values()) / len(texts),
    }


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON with null for undefined numbers."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN: an undefined number becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def write_atomically(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file through a temporary file beside it, so that no half-written file is ever seen.

    Raises:
        DataError: the file cannot be written, e.g. the disk is full. What was there before stays.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        # surrogateescape: an id that comes from a file name that is not UTF-8 is kept as its bytes.
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's 0600 would hide the result from colleagues
        temporary.replace(target)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(f"{target} could not be written ({error.strerror}). Choose another place.") from error
        raise
    return target
