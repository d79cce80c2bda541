"""Random report pairs in files, for the tests of large evaluations."""

from __future__ import annotations

import json
import random
from pathlib import Path

SENTENCES = (
    "The lungs are clear.",
    "Mild cardiomegaly.",
    "Small left pleural effusion.",
    "No pneumothorax.",
    "Possible pulmonary edema.",
    "Right lower lobe consolidation, 2.5 cm.",
    "A line ends in the right atrium.",
    "No acute abnormality.",
)


def text(rng: random.Random) -> str:
    return " ".join(rng.sample(SENTENCES, 3))


def write_files(folder: Path, n: int, *, seed: int = 0) -> tuple[Path, Path, Path]:
    """reports.jsonl, references.jsonl and other.jsonl, each in another order; every 20th reference has no text."""
    rng = random.Random(seed)
    ids = [f"s{index}" for index in range(n)]
    paths = (folder / "reports.jsonl", folder / "references.jsonl", folder / "other.jsonl")
    for path, column in zip(paths, ("report", "findings", "report"), strict=True):
        rng.shuffle(ids)
        with path.open("w", encoding="utf-8") as file:
            for study_id in ids:
                value = text(rng) if rng.random() > 0.05 else ""
                if column == "findings" and int(study_id[1:]) % 20 == 0:
                    value = "___"
                file.write(json.dumps({"study_id": study_id, column: value, "model": "m"}) + "\n")
    return paths


def write_pairs(path: Path, n: int, *, seed: int = 0) -> Path:
    """A file with both sides in every line."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for index in range(n):
            row = {"study_id": f"s{index:06d}", "report": text(rng), "reference": f"{text(rng)} {index % 997}."}
            file.write(json.dumps(row) + "\n")
    return path
