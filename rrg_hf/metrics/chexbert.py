"""CheXbert-F1: agreement of the 14 observations that two reports state, and the similarity of CheXbert's vectors.

The network reads the reports (`CheXbertReader`), or the rule labeller where no weights are at hand
(`RulesLabelReader`); its scores are then called `rules_...` and compare with nothing published as CheXbert-F1.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ..errors import CheckpointError, ConfigError
from ..observations import (
    DEFAULT_UNCERTAINTY_POLICY,
    OBSERVATIONS,
    STATE_TO_CHEXBERT,
    TOP_5,
    UNCERTAINTY_POLICIES,
    Labels,
)
from ..text.cleaning import clean_report
from ..text.rules import RULES_VERSION, label_report
from .artifacts import require_prepared
from .loading import check_dtype, check_no_network, choose_device, weights_revision
from .observation_scores import label_statistics, label_targets, per_observation, states_from_chexbert
from .reading import DEFAULT_MEMORY, ReadingCache, TextReader
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import column_sums, cosine, mean_statistics

BACKENDS = ("chexbert", "rules")
MAX_LENGTH = 512  # positions of the encoder; CheXbert reads the first 511 ids and [SEP] of a longer report
# Padded ids of one pass on a CPU: enough to keep it busy, few enough that a pass holds reports of like length.
_CPU_IDS = 512


class LabelReading(TypedDict):
    """One report as CheXbert reads it.

    Attributes:
        classes: 14 head classes in the order of `OBSERVATIONS`: 0 blank, 1 positive, 2 negative, 3 uncertain.
        cls: last hidden state of [CLS], float32 (768,); None where no network read or vectors were not asked for.
    """

    classes: list[int]
    cls: np.ndarray | None


class CheXbertReader(TextReader[LabelReading]):
    """Reads observations and a report vector with a converted CheXbert (`rrg metrics prepare chexbert`).

    A report is read as published: line breaks become spaces, spaces are collapsed, and of more than 512 ids the first
    511 and [SEP] remain. An empty report is [CLS] [SEP], on which the network still gives an answer.

    Args:
        model: folder or Hub id of a converted network with its tokenizer; the prepared folder by default.
        revision: commit on the Hub.
        device: "cuda", "cpu", ...; the first of cuda, mps and cpu that is there by default.
        dtype: of the weights, "float32", "bfloat16" or "float16".
        vectors: keep the [CLS] vectors, 3 KB a report; `chexbert_similarity` and RadCliQ need them.
        batch_size, max_tokens, memory, cache: see `TextReader`.

    Raises:
        CheckpointError: a folder without such a network, or whose tokenizer does not fit it.
        ConfigError: no prepared network, or an unknown dtype.
    """

    name = "chexbert"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        vectors: bool = True,
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = DEFAULT_MEMORY,
        cache: ReadingCache | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, max_tokens=max_tokens, memory=memory, cache=cache)
        weights = check_dtype(dtype)
        self.device = choose_device(device)
        where = require_prepared("chexbert", model)
        self._model, self._tokenizer = _load(where, revision, weights)
        self._model.to(self.device)
        limit = int(self._model.config.max_position_embeddings)
        self.max_length = min(MAX_LENGTH, limit)
        self.vectors = bool(vectors)
        self._encoded: dict[str, list[int]] = {}
        self.model_name = Path(where).name if Path(where).is_dir() else where
        self.revision = f"{weights_revision(where, revision)}/{dtype}"

    @property
    def cache_name(self) -> str:
        return super().cache_name + ("" if self.vectors else "-labels")

    def _ids(self, texts: list[str]) -> list[list[int]]:
        # half a surrogate pair is no character, and tokenizers stop at it
        plain = [" ".join(text.encode("utf-8", "ignore").decode("utf-8").split()) for text in texts]
        return self._tokenizer(plain, truncation=True, max_length=self.max_length)["input_ids"]

    def lengths(self, texts: list[str]) -> list[int]:
        """Ids of each text."""
        self._encoded = dict(zip(texts, self._ids(texts), strict=True))  # read_batch comes for these next
        return [len(self._encoded[text]) for text in texts]

    def read_batch(self, texts: list[str]) -> list[LabelReading]:
        encoded = [self._encoded.pop(text) if text in self._encoded else self._ids([text])[0] for text in texts]
        if self.device.type != "cpu":
            return self._read(encoded)
        passes: list[list[list[int]]] = []
        longest = 0
        for ids in encoded:
            longest = max(longest, len(ids))
            if not passes or (len(passes[-1]) + 1) * longest > _CPU_IDS:
                passes.append([])
                longest = len(ids)
            passes[-1].append(ids)
        return [reading for rows in passes for reading in self._read(rows)]

    def _read(self, encoded: list[list[int]]) -> list[LabelReading]:
        import torch

        longest = max(map(len, encoded))
        padding = self._tokenizer.pad_token_id
        ids = torch.tensor([row + [padding] * (longest - len(row)) for row in encoded])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
        with torch.inference_mode():
            output = self._model(input_ids=ids.to(self.device), attention_mask=mask.to(self.device))
        classes = output.logits.argmax(-1).cpu().tolist()
        if not self.vectors:
            return [{"classes": row, "cls": None} for row in classes]
        vectors = output.cls.float().cpu().numpy()
        return [{"classes": row, "cls": vector.copy()} for row, vector in zip(classes, vectors, strict=True)]

    def to_json(self, reading: LabelReading) -> Any:
        vector = reading["cls"]
        packed = None if vector is None else base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return {"classes": reading["classes"], "cls": packed}

    def from_json(self, value: Any) -> LabelReading:
        packed = value["cls"]
        vector = None if packed is None else np.frombuffer(base64.b64decode(packed), dtype="<f4")
        return {"classes": value["classes"], "cls": vector}


class RulesLabelReader(TextReader[LabelReading]):
    """Reads observations by the rule labeller, without weights; there is no report vector."""

    name = "rules"
    revision = RULES_VERSION

    def __init__(self, *, memory: int = DEFAULT_MEMORY, cache: ReadingCache | None = None) -> None:
        super().__init__(memory=memory, cache=cache)

    def read_batch(self, texts: list[str]) -> list[LabelReading]:
        labels = [label_report(clean_report(text)) for text in texts]
        return [{"classes": [STATE_TO_CHEXBERT[row[name]] for name in OBSERVATIONS], "cls": None} for row in labels]


class CheXbertF1(ReportScorer):
    """Precision, recall and F1 of the observations, over all 14 and over the top 5, in four averages.

    Conventions of the literature as arguments: `f1chexbert` and RadEval count uncertain as positive (the default
    here), cxrmate counts it as negative; both with zero_division 0. `f1chexbert`'s "accuracy" is
    `chexbert_exact_match_top5`; its label mode "rrg" is `label_targets(scorer.labels(texts))`, its mode
    "classification" are the `STATE_TO_CHEXPERT` codes of `scorer.labels(texts)`.

    Args:
        reader: `CheXbertReader`, or `RulesLabelReader`; the scores are then called `rules_...`.
        policy: how uncertain becomes a binary target, a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`.
        zero_division: value of 0/0 in precision, recall and F1, so of a class without positives on either side.

    Raises:
        ConfigError: an unknown policy, or zero_division outside [0, 1].
    """

    name = "chexbert_f1"

    def __init__(
        self,
        reader: TextReader[LabelReading],
        *,
        policy: str = DEFAULT_UNCERTAINTY_POLICY,
        zero_division: float = 0.0,
    ) -> None:
        check_conventions(policy, zero_division)
        self.reader = reader
        self.policy = policy
        self.zero_division = float(zero_division)
        self.prefix = "rules" if reader.name == "rules" else "chexbert"
        self.primary_key = f"{self.prefix}_micro_f1"

    def readers(self) -> list[TextReader[Any]]:
        return [self.reader]

    def labels(self, texts: Sequence[str], *, persist: bool = False) -> list[Labels]:
        """Label states of reports, by observation name."""
        return [states_from_chexbert(reading["classes"]) for reading in self.reader(texts, persist=persist)]

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        check_pairs(predictions, references)
        of_references = self.reader(references, persist=True)
        of_predictions = self.reader(predictions)
        truth, claimed = (
            [states_from_chexbert(reading["classes"]) for reading in readings]
            for readings in (of_references, of_predictions)
        )
        groups = [
            label_statistics(truth, claimed, policy=self.policy, zero_division=self.zero_division, name=self.prefix)
        ]
        vectors = [(a["cls"], b["cls"]) for a, b in zip(of_references, of_predictions, strict=True)]
        cosines = [cosine(a, b) for a, b in vectors if a is not None and b is not None]
        if len(cosines) == len(vectors):
            groups.append(mean_statistics({f"{self.prefix}_similarity": np.array(cosines)}))
        targets = label_targets(truth, self.policy)
        positive = label_targets(claimed, self.policy) == 1
        columns = {
            f"{self.prefix}_missed": [_names(row) for row in (targets == 1) & ~positive],
            f"{self.prefix}_invented": [_names(row) for row in (targets == 0) & positive],
        }
        return ScorerOutput(groups, columns=columns)

    def result(self, output: ScorerOutput, *, per_sample: bool = False) -> dict[str, Any]:
        """As in `ReportScorer`, and under "observations" the table per observation: precision, recall, f1, support
        (positives in the references), predicted, tp, fp, fn and evaluated."""
        result = super().result(output, per_sample=per_sample)
        table = per_observation(column_sums(output.groups[0].values), self.zero_division)
        result["observations"] = {
            name: {column: float(values[index]) for column, values in table.items()}
            for index, name in enumerate(OBSERVATIONS)
        }
        return result

    def protocol(self) -> dict[str, Any]:
        protocol: dict[str, Any] = {
            "metric": self.name,
            "backend": self.reader.name,
            "revision": self.reader.revision,
            "direction": "higher is better",
            "policy": self.policy,
            "zero_division": self.zero_division,
            "observations": list(OBSERVATIONS),
            "top5": list(TOP_5),
            "average": "named in each score: micro, macro, weighted (by support), samples (mean over studies)",
        }
        if isinstance(self.reader, CheXbertReader):
            protocol |= {
                "model": self.reader.model_name,
                "text": f"line breaks and repeated spaces to one space; the first {self.reader.max_length} ids",
                "similarity": "cosine of the last hidden states of [CLS]; 0 for a zero vector",
            }
        return protocol


def check_conventions(policy: str, zero_division: float) -> None:
    """Refuse conventions that do not exist, before a network is loaded.

    Raises:
        ConfigError: see `CheXbertF1`.
    """
    if policy not in UNCERTAINTY_POLICIES:
        raise ConfigError(f"Unknown uncertainty policy {policy!r}. Use one of {sorted(UNCERTAINTY_POLICIES)}.")
    number = isinstance(zero_division, (int, float)) and not isinstance(zero_division, bool)
    if not number or not 0.0 <= zero_division <= 1.0:
        raise ConfigError(f"zero_division is {zero_division!r}. Use a value from 0 to 1, usually 0 or 1.")


def load_chexbert_f1(
    backend: str | None = None,
    model: str | os.PathLike[str] | None = None,
    *,
    policy: str = DEFAULT_UNCERTAINTY_POLICY,
    zero_division: float = 0.0,
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    similarity: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
) -> CheXbertF1:
    """CheXbert-F1 from settings.

    Args:
        backend: "chexbert" (default) or "rules".
        model, revision, device, dtype, batch_size: see `CheXbertReader`.
        policy, zero_division: see `CheXbertF1`.
        similarity: also compare the [CLS] vectors, which are then kept.
        cache_dir: folder for readings of references; None keeps none.

    Raises:
        ConfigError: an unknown setting, `model` beside "rules", or no prepared network.
    """
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(f"Unknown backend {backend!r}. Use one of {list(BACKENDS)}.")
    check_conventions(policy, zero_division)
    cache = None if cache_dir is None else ReadingCache(cache_dir)
    reader: TextReader[LabelReading]
    if backend == "rules":
        check_no_network(model=model, revision=revision)
        reader = RulesLabelReader(cache=cache)
    else:
        reader = CheXbertReader(
            model,
            revision=revision,
            device=device,
            dtype=dtype,
            vectors=similarity,
            batch_size=batch_size,
            cache=cache,
        )
    return CheXbertF1(reader, policy=policy, zero_division=zero_division)


def _load(where: str, revision: str | None, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    from ..modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling

    commit = revision or "main"
    try:
        settings: Mapping[str, Any] = CheXbertConfig.get_config_dict(where, revision=commit)[0]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{where} has no readable config.json: {' '.join(str(error).split())[:300]}") from error
    if settings.get("model_type") != CheXbertConfig.model_type:
        raise CheckpointError(
            f"{where} holds a {settings.get('model_type')!r} model, not a converted CheXbert. Convert the published "
            "checkpoint with `rrg metrics prepare chexbert`."
        )
    try:
        loaded: Any = CheXbertForReportLabeling.from_pretrained(
            where, revision=commit, dtype=dtype, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(where, revision=commit)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{where} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    model, report = loaded
    wrong = sorted([*report["missing_keys"], *report["unexpected_keys"]])
    if wrong:
        raise CheckpointError(f"The weights of {where} do not fit its config.json; missing or unexpected: {wrong}.")
    if model.config.observation_names != list(OBSERVATIONS):
        raise CheckpointError(f"The heads of {where} are {model.config.observation_names}, not {list(OBSERVATIONS)}.")
    if len(tokenizer) > model.config.vocab_size:
        raise CheckpointError(
            f"The tokenizer of {where} has {len(tokenizer)} entries, its network {model.config.vocab_size}."
        )
    return model.eval(), tokenizer


def _names(row: np.ndarray) -> list[str]:
    return [OBSERVATIONS[column] for column in np.flatnonzero(row)]
