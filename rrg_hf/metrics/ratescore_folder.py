"""Where RaTEScore's two networks lie: the entity recogniser and the encoder of entity names.

Both are plain Hub repositories, so preparing them is a pinned download; the prepared folder has one subfolder each.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from .ratescore_entities import check_tags

# subfolder -> repository; licences: MIT, and the IHTSDO and NLM terms of SNOMED CT and UMLS
REPOSITORIES = {"ner": "Angelakeke/RaTE-NER-Deberta", "encoder": "FremyCompany/BioLORD-2023-C"}
# files that are needed of each; the repositories also hold training states and other formats
PATTERNS = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "spm.model",
    "README.md",
    "LICENSE*",
)


def check_ratescore_folder(folder: str | os.PathLike[str]) -> Path:
    """Check a folder with both networks, without loading weights.

    Args:
        folder: holds the subfolders of `REPOSITORIES`.

    Raises:
        ConfigError: a subfolder or a file is missing.
        CheckpointError: the recogniser's config does not name RaTE-NER's tags.
    """
    path = Path(folder)
    absent = [name for name in REPOSITORIES if not (path / name / "config.json").is_file()]
    if absent:
        repositories = " and ".join(f"{REPOSITORIES[name]} in {name}/" for name in absent)
        raise ConfigError(
            f"{path} is no RaTEScore folder: it lacks {repositories}. Run: rrg metrics prepare ratescore; or give "
            "ner_model and encoder_model, a folder or Hub id each."
        )
    check_ner_folder(path / "ner")
    return path


def check_ner_folder(folder: str | os.PathLike[str]) -> None:
    """Check the recogniser's folder, without loading weights.

    Raises:
        CheckpointError: unreadable config, other tags, or no tokenizer.json.
    """
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        id2label = {int(index): label for index, label in config.get("id2label", {}).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} has no readable config.json: {error}") from error
    check_tags(id2label, str(path))
    if not (path / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{path} has no tokenizer.json. Only that file holds the text normalisation RaTE-NER was trained with; "
            f"get it from {REPOSITORIES['ner']}."
        )


def locate_networks(
    model: str | os.PathLike[str] | None = None,
    ner_model: str | os.PathLike[str] | None = None,
    encoder_model: str | os.PathLike[str] | None = None,
) -> tuple[str, str]:
    """Folder or Hub id of the recogniser and of the encoder.

    Args:
        model: folder with both; default: the prepared one.
        ner_model, encoder_model: take the place of one part of it.

    Raises:
        ConfigError: no such folder, or nothing prepared; the message says how to.
        CheckpointError: see `check_ratescore_folder`.
    """
    if ner_model is not None and encoder_model is not None:
        if model is not None:
            raise ConfigError("model, ner_model and encoder_model are all given. model holds both: drop one side.")
        return os.fspath(ner_model), os.fspath(encoder_model)
    if model is None:
        from .artifacts import require_prepared

        model = require_prepared("ratescore", None)
    folder = check_ratescore_folder(model)
    return (
        str(folder / "ner") if ner_model is None else os.fspath(ner_model),
        str(folder / "encoder") if encoder_model is None else os.fspath(encoder_model),
    )
