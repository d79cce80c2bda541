"""RadGraph-F1: agreement of the entities and relations that two reports state.

Networks read the reports (`RadGraphReader`), or rules where no weights are at hand (`RulesGraphReader`); the rewards
are in `graph_rewards`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, ConfigError
from .artifacts import require_prepared
from .graph_rewards import LEVELS, NO_OVERLAP, combined_f1, graph_reward
from .loading import check_dtype, check_no_network, choose_device, weights_revision
from .reading import DEFAULT_MEMORY, ReadingCache, TextReader
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import mean_statistics

NETWORKS = ("radgraph-xl", "radgraph", "modern-radgraph-xl", "echograph")
BACKENDS = (*NETWORKS, "rules")

# What an archive calls its label set -> the network; the original checkpoint's set has no name.
_NAMESPACES = {"None": "radgraph"}
# Padded ids of one pass on a CPU: enough to keep it busy, few enough that a pass holds segments of like length.
_CPU_IDS = 512


class RadGraphReader(TextReader[dict[str, Any]]):
    """Reads report graphs with a converted RadGraph network (see `rrg_hf.modeling.radgraph.convert_radgraph`).

    A reading is one annotation in the published format: {"text", "entities": {"1": {"tokens", "label", "start_ix",
    "end_ix", "relations"}}, ...}. "" is read as the word "None", as radgraph does.

    Args:
        model: folder or Hub id of a converted network with its tokenizer; the prepared folder of `backend` by default.
        backend: one of `NETWORKS`; by default what `model` holds, or "radgraph-xl". "radgraph" is the v1 network that
            RadCliQ was fitted with.
        revision: commit on the Hub.
        device: "cuda", "cpu", ...; the first of cuda, mps and cpu that is there by default.
        dtype: of the weights, "float32", "bfloat16" or "float16".
        batch_size, max_tokens, memory, cache: see `TextReader`.

    Raises:
        CheckpointError: a folder without such a network, or whose tokenizer does not fit it.
        ConfigError: no prepared network, one that is not `backend`, or an unknown dtype.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        backend: str | None = None,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = DEFAULT_MEMORY,
        cache: ReadingCache | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, max_tokens=max_tokens, memory=memory, cache=cache)
        weights = check_dtype(dtype)
        if backend is not None and backend not in NETWORKS:
            raise ConfigError(f"Unknown RadGraph network {backend!r}. Use one of {list(NETWORKS)}.")
        self.device = choose_device(device)
        where = require_prepared(backend or NETWORKS[0], model)
        self._model, self._tokenizer = _load(where, revision, weights)
        held = _NAMESPACES.get(self._model.config.namespace, self._model.config.namespace)
        if backend not in (None, held) and held in NETWORKS:
            raise ConfigError(f"{where} holds {held!r}, not {backend!r}. Pass backend={held!r}, or another model.")
        self.name = backend or held
        self._model.to(self.device)
        self._encoder = self._model.report_encoder(self._tokenizer)
        self._encoded: dict[str, Any] = {}
        self.model_name = Path(where).name if Path(where).is_dir() else where
        self.revision = f"{weights_revision(where, revision)}/{dtype}"

    @property
    def config(self) -> Any:
        """The network's `RadGraphConfig`."""
        return self._model.config

    def lengths(self, texts: list[str]) -> list[int]:
        """Positions that each text takes in the encoder."""
        self._encoded = dict(zip(texts, self._encoder(texts), strict=True))  # read_batch comes for these next
        return [self._encoder.length(self._encoded[text]) for text in texts]

    def read_batch(self, texts: list[str]) -> list[dict[str, Any]]:
        known = self._encoded
        reports = [known.pop(text) if text in known else self._encoder([text])[0] for text in texts]
        ids = _CPU_IDS if self.device.type == "cpu" else None
        return self._model.annotate_encoded(reports, self._encoder, ids)


class RulesGraphReader(TextReader[dict[str, Any]]):
    """Reads report graphs by rules, without weights: `rrg_hf.text.entities.extract_graph`."""

    name = "rules"

    def __init__(self, *, memory: int = DEFAULT_MEMORY, cache: ReadingCache | None = None) -> None:
        super().__init__(memory=memory, cache=cache)
        from ..text.entities import ENTITY_RULES_VERSION

        self.revision = str(ENTITY_RULES_VERSION)

    def read_batch(self, texts: list[str]) -> list[dict[str, Any]]:
        from ..text.entities import extract_graph

        return [extract_graph(text) for text in texts]


def _load(where: str, revision: str | None, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    from ..modeling.radgraph import RadGraphConfig, RadGraphModel

    try:
        model_type = RadGraphConfig.get_config_dict(where, revision=revision or "main")[0].get("model_type")
    except OSError as error:
        raise CheckpointError(f"{where} has no config.json: {error}") from error
    if model_type != RadGraphConfig.model_type:
        raise CheckpointError(
            f"{where} holds a {model_type!r} model, not a converted RadGraph network. Convert a published archive "
            "with `rrg metrics prepare` or `rrg_hf.modeling.radgraph.convert_radgraph`."
        )
    try:
        loaded: Any = RadGraphModel.from_pretrained(
            where, revision=revision or "main", dtype=dtype, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(where, revision=revision or "main")
    except OSError as error:
        raise CheckpointError(f"{where} is incomplete: {error}") from error
    model, report = loaded
    missing = sorted([*report["missing_keys"], *report["unexpected_keys"]])
    if missing:
        raise CheckpointError(f"The weights of {where} do not fit its config.json; missing or unexpected: {missing}.")
    embeddings = model.config.encoder_config.vocab_size
    if len(tokenizer) > embeddings:
        raise CheckpointError(f"The tokenizer of {where} has {len(tokenizer)} entries, its network {embeddings}.")
    return model.eval(), tokenizer


class RadGraphF1(ReportScorer):
    """RadGraph-F1 of generated reports.

    A pair with an empty report scores 0 and counts, as every pair does: corpus scores are plain means over pairs.

    Args:
        reader: `RadGraphReader` or `RulesGraphReader`; its scores are then called `rules_...`.
        lowercase: compare tokens in lower case, as radgraph's repository does today. False gives the numbers of the
            released package 0.1.18, where case counts, except in the relations of "complete".
    """

    name = "radgraph_f1"

    def __init__(self, reader: TextReader[dict[str, Any]], *, lowercase: bool = True) -> None:
        if not isinstance(lowercase, bool):
            raise ConfigError(f"lowercase is {lowercase!r}. Use True or False.")
        self.reader = reader
        self.lowercase = lowercase
        self.prefix = "rules_radgraph" if reader.name == "rules" else "radgraph"
        self.primary_key = f"{self.prefix}_partial"

    def readers(self) -> list[TextReader[Any]]:
        return [self.reader]

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        check_pairs(predictions, references)
        of_references = self.reader(references, persist=True)
        of_predictions = self.reader(predictions)
        names = [f"{level}{part}" for level in LEVELS for part in ("", "_precision", "_recall")]
        names += ["entity_f1", "relation_f1", "combined"]
        rows = np.zeros((len(references), len(names)))
        pairs = zip(predictions, references, of_predictions, of_references, strict=True)
        for row, (prediction, reference, hypothesis, truth) in enumerate(pairs):
            if not prediction or not reference:
                continue
            values: list[float] = []
            for level in LEVELS:
                reward = NO_OVERLAP
                if hypothesis["entities"] and truth["entities"]:
                    reward = graph_reward(hypothesis, truth, level, lowercase=self.lowercase)
                values += [reward.f1, reward.precision, reward.recall]
            rows[row] = [*values, *combined_f1(hypothesis, truth)]
        scores = {f"{self.prefix}_{name}": rows[:, column] for column, name in enumerate(names)}
        without = [
            sum(not (text and graph["entities"]) for text, graph in zip(texts, graphs, strict=True))
            for texts, graphs in ((predictions, of_predictions), (references, of_references))
        ]
        counts = {
            f"{self.prefix}_predictions_without_entities": without[0],
            f"{self.prefix}_references_without_entities": without[1],
        }
        return ScorerOutput([mean_statistics(scores)], counts=counts)

    def protocol(self) -> dict[str, Any]:
        protocol: dict[str, Any] = {
            "metric": self.name,
            "backend": self.reader.name,
            "revision": self.reader.revision,
            "direction": "higher is better",
            "average": "mean over studies; a pair with an empty report or without entities on either side scores 0",
            "lowercase": self.lowercase,
            "combined": "mean of entity and relation F1, case kept, 0/0 is 0",
            "text": "as given; the network's own split into words",
        }
        if isinstance(self.reader, RadGraphReader):
            protocol |= {"model": self.reader.model_name, "preprocessing": self.reader.config.preprocessing}
        return protocol


def load_graph_reader(
    backend: str | None = None,
    model: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    cache_dir: str | os.PathLike[str] | None = None,
) -> TextReader[dict[str, Any]]:
    """The reader behind a backend.

    Args:
        backend: one of `BACKENDS`; by default what `model` holds, or "radgraph-xl".
        model: folder or Hub id of the converted network; the prepared one by default.
        revision, device, dtype, batch_size: see `RadGraphReader`.
        cache_dir: folder for readings of references; None keeps none.

    Raises:
        ConfigError: unknown backend, or `model` beside "rules".
    """
    cache = None if cache_dir is None else ReadingCache(cache_dir)
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(f"Unknown backend {backend!r}. Use one of {list(BACKENDS)}.")
    if backend == "rules":
        check_no_network(model=model, revision=revision)
        return RulesGraphReader(cache=cache)
    return RadGraphReader(
        model, backend=backend, revision=revision, device=device, dtype=dtype, batch_size=batch_size, cache=cache
    )


def load_radgraph_f1(backend: str | None = None, *, lowercase: bool = True, **settings: Any) -> RadGraphF1:
    """RadGraph-F1 from settings: `lowercase`, and those of `load_graph_reader`."""
    if not isinstance(lowercase, bool):  # before a network is loaded
        raise ConfigError(f"lowercase is {lowercase!r}. Use True or False.")
    return RadGraphF1(load_graph_reader(backend, **settings), lowercase=lowercase)
