"""Reads labelled_sentences.txt: sentences written for these tests, with labels set by hand."""

from __future__ import annotations

from pathlib import Path

CODES = {
    "EC": "Enlarged Cardiomediastinum",
    "CM": "Cardiomegaly",
    "OP": "Lung Opacity",
    "LE": "Lung Lesion",
    "ED": "Edema",
    "CO": "Consolidation",
    "PN": "Pneumonia",
    "AT": "Atelectasis",
    "PX": "Pneumothorax",
    "EF": "Pleural Effusion",
    "PO": "Pleural Other",
    "FX": "Fracture",
    "SD": "Support Devices",
    "NF": "No Finding",
}
STATES = {"+": "positive", "-": "negative", "?": "uncertain"}


def cases() -> list[tuple[str, dict[str, str]]]:
    """(text, observation name to state) of every case; observations that are left out are not mentioned."""
    rows = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            text, _, labels = line.rpartition("|")
            rows.append((text.strip(), {CODES[item[:2]]: STATES[item[2]] for item in labels.split()}))
    return rows
