"""RaTEScore's two networks: RaTE-NER, which tags sentences, and BioLORD, which turns entity names into vectors.

Sentences and names repeat from report to report. Both readers keep what they read, so that each distinct sentence and
each distinct name goes through its network once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, ConfigError, DataError
from .loading import check_dtype, choose_device, quiet_transformers, weights_revision
from .ratescore_entities import check_tags, decode_spans
from .ratescore_folder import REPOSITORIES, check_ner_folder
from .reading import DEFAULT_MEMORY, TextReader

logger = logging.getLogger(__name__)

NER_LENGTH = 512  # tokens of a sentence at most, as published; the rest is not read
NAME_LENGTH = 30  # tokens of an entity name at most, as published

# On a CPU, tokens of a batch: enough for matrix products at full speed, few enough that its rows are of like length.
_CPU_TOKENS = 256

Entities = list[tuple[str, str]]


class SentenceEntityReader(TextReader[Entities]):
    """Entities of single sentences, (text, type in lower case), by a token classifier with RaTE-NER's tags.

    Args:
        model: folder or Hub id.
        revision: of the Hub repository.
        device: default CUDA, else MPS, else CPU.
        dtype: of the weights.
        batch_size, max_tokens, memory: see `TextReader`; on a CPU max_tokens is at most 256, which is fastest.

    Raises:
        ConfigError: the model cannot be found.
        CheckpointError: other tags than RaTE-NER's, incomplete weights, or no tokenizer.json.
    """

    name = "rate-ner"
    reads_reports = False

    def __init__(
        self,
        model: str | os.PathLike[str] = REPOSITORIES["ner"],
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        super().__init__(batch_size=batch_size, max_tokens=max_tokens, memory=memory)
        from transformers import AutoModelForTokenClassification

        self.model_name = os.fspath(model)
        self.device = choose_device(device)
        config = _config(self.model_name, revision, "ner")
        self._tags = check_tags(config.id2label, self.model_name)
        if Path(self.model_name).is_dir():
            check_ner_folder(self.model_name)
        self._network = _network(AutoModelForTokenClassification, self.model_name, revision, dtype)
        self._network.to(self.device)
        if self.device.type == "cpu":
            self.max_tokens = min(self.max_tokens, _CPU_TOKENS)
        if config.model_type == "deberta-v2":
            from ..modeling.ratescore import cache_relative_positions

            if not cache_relative_positions(self._network):
                logger.warning("This transformers version builds DeBERTa differently: RaTE-NER runs at half speed.")
        self._tokenizer = _ner_tokenizer(self.model_name, revision)
        self._encoded: dict[str, list[int]] = {}
        self.cut = 0
        self.revision = f"{weights_revision(self.model_name, revision)}/{dtype}"

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids with special tokens; beyond `NER_LENGTH` the end of a sentence is cut off, which is logged."""
        if not texts:
            return []
        rows = self._tokenizer(
            list(texts), return_attention_mask=False, return_token_type_ids=False, verbose=False
        ).input_ids
        long = sum(len(ids) > NER_LENGTH for ids in rows)
        if long:
            self.cut += long
            logger.warning("%d sentences are longer than %d tokens; their ends are not read.", long, NER_LENGTH)
        return [ids if len(ids) <= NER_LENGTH else [*ids[: NER_LENGTH - 1], ids[-1]] for ids in rows]

    def lengths(self, texts: list[str]) -> list[int]:
        self._encoded = dict(zip(texts, self.token_ids(texts), strict=True))  # read_batch comes for these next
        return [len(ids) for ids in self._encoded.values()]

    def read_batch(self, texts: list[str]) -> list[Entities]:
        import torch

        known = self._encoded
        rows = [known.pop(text) if text in known else self.token_ids([text])[0] for text in texts]
        with torch.inference_mode():
            logits = self._network(**_padded(rows, self._tokenizer.pad_token_id, self.device)).logits
            if not bool(torch.isfinite(logits).all()):
                raise DataError("RaTE-NER gave scores that are no numbers. Use dtype='float32'.")
            classes = logits.argmax(-1).tolist()
        return [self._entities(ids, row) for ids, row in zip(rows, classes, strict=True)]

    def _entities(self, ids: list[int], classes: list[int]) -> Entities:
        tokens = self._tokenizer.convert_ids_to_tokens(ids)
        spans = decode_spans(tokens, [self._tags[index] for index in classes])
        to_text = self._tokenizer.convert_tokens_to_string
        return [(to_text(tokens[first : last + 1]), kind) for first, last, kind in spans]


class EntityNameEncoder(TextReader[np.ndarray]):
    """Vectors of entity names: the first token's last hidden state, float32 (D,).

    Args:
        model: folder or Hub id of a BERT-like encoder.
        revision, device, dtype, batch_size, max_tokens, memory: see `SentenceEntityReader`.

    Raises:
        ConfigError: the model cannot be found.
        CheckpointError: incomplete weights.
    """

    name = "biolord"
    reads_reports = False

    def __init__(
        self,
        model: str | os.PathLike[str] = REPOSITORIES["encoder"],
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        super().__init__(batch_size=batch_size, max_tokens=max_tokens, memory=memory)
        from transformers import AutoModel, AutoTokenizer

        self.model_name = os.fspath(model)
        self.device = choose_device(device)
        _config(self.model_name, revision, "encoder")  # a missing model has a message of its own
        self._network = _network(AutoModel, self.model_name, revision, dtype)
        self._network.to(self.device)
        if self.device.type == "cpu":
            self.max_tokens = min(self.max_tokens, _CPU_TOKENS)
        self._tokenizer = AutoTokenizer.from_pretrained(self.model_name, revision=revision)
        self._encoded: dict[str, list[int]] = {}
        self.revision = f"{weights_revision(self.model_name, revision)}/{dtype}"

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids with special tokens, cut to `NAME_LENGTH`."""
        if not texts:
            return []
        return self._tokenizer(
            list(texts), truncation=True, max_length=NAME_LENGTH, return_attention_mask=False
        ).input_ids

    def lengths(self, texts: list[str]) -> list[int]:
        self._encoded = dict(zip(texts, self.token_ids(texts), strict=True))
        return [len(ids) for ids in self._encoded.values()]

    def read_batch(self, texts: list[str]) -> list[np.ndarray]:
        import torch

        known = self._encoded
        rows = [known.pop(text) if text in known else self.token_ids([text])[0] for text in texts]
        with torch.inference_mode():
            hidden = self._network(**_padded(rows, self._tokenizer.pad_token_id, self.device)).last_hidden_state
            vectors = hidden[:, 0].float().cpu().numpy()
        if not np.isfinite(vectors).all():
            raise DataError("The entity encoder gave vectors that are no numbers. Use dtype='float32'.")
        return [row.copy() for row in vectors]

    def to_json(self, reading: np.ndarray) -> Any:
        return reading.tolist()

    def from_json(self, value: Any) -> np.ndarray:
        return np.asarray(value, dtype=np.float32)


def _config(name: str, revision: str | None, part: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, revision=revision)
    except OSError as error:
        raise ConfigError(
            f"{name!r} is neither a folder with config.json, weights and tokenizer nor reachable on the Hub. Offline, "
            f"download {REPOSITORIES[part]} once elsewhere (`hf download {REPOSITORIES[part]}`) and give the folder."
        ) from error


def _network(loader: Any, name: str, revision: str | None, dtype: str) -> Any:
    """The network in eval mode; a pooler may be missing, because nothing here reads it."""
    kind = check_dtype(dtype)
    try:
        with quiet_transformers():
            network, report = loader.from_pretrained(name, revision=revision, dtype=kind, output_loading_info=True)
    except OSError as error:
        raise CheckpointError(f"{name} has no readable weights: {error}") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing or report["mismatched_keys"]:
        raise CheckpointError(
            f"The weights of {name} lack {len(missing)} tensors (first {missing[:3]}) and {report['mismatched_keys']} "
            "have other shapes. Scores of a partly random network mean nothing; get the complete checkpoint."
        )
    return network.eval()


def _ner_tokenizer(name: str, revision: str | None) -> Any:
    """The folder's tokenizer.json as it stands: AutoTokenizer of transformers 5 rebuilds DeBERTa's without its rules
    of Unicode normalisation, and characters like an ellipsis become other pieces."""
    from transformers import PreTrainedTokenizerFast

    try:
        with quiet_transformers():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(name, revision=revision or "main")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name} has no tokenizer.json that can be read: {error}") from error
    lacking = [part for part in ("cls", "sep", "pad") if getattr(tokenizer, f"{part}_token_id") is None]
    if lacking:
        raise CheckpointError(f"The tokenizer of {name} names no {', '.join(lacking)} token in tokenizer_config.json.")
    return tokenizer


def _padded(rows: list[list[int]], pad: int, device: str) -> dict[str, Any]:
    import torch

    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), pad, dtype=np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {
        "input_ids": torch.from_numpy(ids).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
    }
