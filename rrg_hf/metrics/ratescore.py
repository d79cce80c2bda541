"""RaTEScore (Zhao et al. 2024, "RaTEScore: A Metric for Radiology Report Generation").

Reports become lists of typed entities. Every entity of one report looks for the most similar one in the other; the
cosines are weighed by the two types, and lowered where one report affirms what the other denies. Both directions give
precision and recall, whose harmonic mean is the score.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import ConfigError
from .ratescore_folder import locate_networks
from .ratescore_matrices import TYPES, TypeWeights, load_matrix
from .ratescore_networks import NER_LENGTH, Entities, EntityNameEncoder, SentenceEntityReader
from .ratescore_sentences import SENTENCES, SHORTEST, check_sentences, sentences_of
from .ratescore_similarity import EncoderSimilarity, NameSimilarity, NgramSimilarity
from .reading import DEFAULT_MEMORY, ReadingCache, TextReader
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import mean_statistics

BACKENDS = ("ratescore", "rules")

NO_ENTITIES = 0.5  # what the published package gives where a side has no entity
TIE = 1e-5  # cosines this close are the same: float noise must not choose a weight
TIE_RULE = (
    f"matches whose cosines differ by less than {TIE} are tied: one of the searching entity's own type wins, else the "
    "first in the report"
)

_REPORTS_AT_ONCE = 256
_INDEX = {name: index for index, name in enumerate(TYPES)}


class RaTEReader(TextReader[Entities]):
    """Reads a report as [(entity text, type)] with RaTE-NER, sentence by sentence, in reading order.

    Types are "abnormality", "anatomy", "disease", "non-abnormality" and "non-disease". A report without a sentence of
    at least three characters has no entities.

    Args:
        model: folder with RaTE-NER in "ner" and BioLORD in "encoder"; default: the prepared one.
        ner_model, encoder_model: folder or Hub id that takes the place of one of the two, or of both without `model`.
        revision: of RaTE-NER on the Hub.
        encoder_revision: of the encoder on the Hub.
        sentences: a key of `ratescore_sentences.SENTENCES`: "pyrush", the published convention, or "rrg_hf".
        device: default CUDA, else MPS, else CPU.
        dtype: of the weights of both networks.
        batch_size: sentences, or entity names, per batch at most.
        max_tokens: padded tokens per batch at most.
        memory: distinct reports, sentences and names kept in memory.
        cache: entities of references that outlive the process.

    Raises:
        ConfigError: nothing prepared, an unknown setting, or PyRuSH is not installed.
        CheckpointError: a model that is not what it should be.
    """

    name = "ratescore"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        ner_model: str | os.PathLike[str] | None = None,
        encoder_model: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        encoder_revision: str | None = None,
        sentences: str = "pyrush",
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = DEFAULT_MEMORY,
        cache: ReadingCache | None = None,
    ) -> None:
        # each of its batches is many batches of the network
        super().__init__(batch_size=_REPORTS_AT_ONCE, max_tokens=1 << 40, memory=memory, cache=cache)
        self.sentences = sentences
        self.splitter = check_sentences(sentences)
        ner, self._encoder_model = locate_networks(model, ner_model, encoder_model)
        self._settings: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "batch_size": batch_size,
            "max_tokens": max_tokens,
            "memory": memory,
        }
        self._encoder_revision = encoder_revision
        self.network = SentenceEntityReader(ner, revision=revision, **self._settings)
        self._similarity: EncoderSimilarity | None = None
        self.revision = f"{self.network.revision}/{self.splitter}"

    def read_batch(self, texts: list[str]) -> list[Entities]:
        split = [sentences_of(text, self.sentences) for text in texts]
        read = iter(self.network([sentence for sentences in split for sentence in sentences]))
        return [[entity for _ in sentences for entity in next(read)] for sentences in split]

    def from_json(self, value: Any) -> Entities:
        return [(str(text), str(kind)) for text, kind in value]

    def similarity(self) -> NameSimilarity:
        """The encoder that belongs to these entities, loaded on first use."""
        if self._similarity is None:
            encoder = EntityNameEncoder(self._encoder_model, revision=self._encoder_revision, **self._settings)
            self._similarity = EncoderSimilarity(encoder)
        return self._similarity

    def protocol(self) -> dict[str, Any]:
        """How reports became entities."""
        return {
            "name": self.name,
            "model": self.network.model_name,
            "revision": self.network.revision,
            "sentences": self.sentences,
            "splitter": f"{self.splitter}: {SENTENCES[self.sentences]}",
            "left_out": f"sentences below {SHORTEST} characters; of longer ones what follows {NER_LENGTH} tokens",
            "spans": "decoded as published, looking one tag ahead",
        }


class RulesEntityReader(TextReader[Entities]):
    """Reads a report as [(entity text, type)] by rules, without weights: `rrg_hf.text.entities`."""

    name = "rules"

    def __init__(
        self, *, batch_size: int = 64, memory: int = DEFAULT_MEMORY, cache: ReadingCache | None = None
    ) -> None:
        super().__init__(batch_size=batch_size, memory=memory, cache=cache)
        from ..text.entities import ENTITY_RULES_VERSION

        self.revision = str(ENTITY_RULES_VERSION)

    def read_batch(self, texts: list[str]) -> list[Entities]:
        from ..text.entities import extract_typed_entities

        return [extract_typed_entities(text) for text in texts]

    def from_json(self, value: Any) -> Entities:
        return [(str(text), str(kind)) for text, kind in value]

    def similarity(self) -> NameSimilarity:
        return NgramSimilarity()

    def protocol(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "note": "entities by rules, not RaTE-NER's"}


@runtime_checkable
class _EntityReader(Protocol):
    name: str
    revision: str

    def similarity(self) -> NameSimilarity: ...

    def protocol(self) -> dict[str, Any]: ...


def directed_score(
    cosines: np.ndarray, kinds: Sequence[str], other_kinds: Sequence[str], matrix: TypeWeights
) -> float:
    """How well the entities of one report are found in another.

    Args:
        cosines: (n, m) between the n entities that search and the m they may find.
        kinds: types of the n.
        other_kinds: types of the m.
        matrix: weights by type.

    Returns:
        Sum of weight x cosine over the sum of weights, the cosine times the negation weight where polarity differs; 0
        if all weights are 0. See `TIE_RULE` for matches that are equally good.
    """
    rows = np.array([_INDEX[kind] for kind in kinds])
    columns = np.array([_INDEX[kind] for kind in other_kinds])
    best = cosines.max(axis=1)
    tied = cosines > best[:, None] - TIE
    own = tied & (rows[:, None] == columns[None, :])
    found = columns[np.where(own.any(axis=1), own.argmax(axis=1), tied.argmax(axis=1))]
    weights = matrix.weights[rows, found]
    total = float(weights.sum())
    if total == 0.0:
        return 0.0
    return float((best * weights * matrix.factors[rows, found]).sum() / total)


def pair_score(
    prediction: Sequence[tuple[str, str]],
    reference: Sequence[tuple[str, str]],
    cosines: np.ndarray,
    matrix: TypeWeights,
) -> tuple[float, float, float]:
    """RaTEScore, precision and recall of one pair of reports.

    Args:
        prediction, reference: their entities, (text, type).
        cosines: (entities of the prediction, entities of the reference).
        matrix: weights by type.

    Returns:
        The harmonic mean (0 if precision + recall is 0), precision and recall; all 0.5 where a side has no entity.
        Cosines may be negative and nothing is clipped, as published.
    """
    if not prediction or not reference:
        return NO_ENTITIES, NO_ENTITIES, NO_ENTITIES
    of_prediction = [kind for _, kind in prediction]
    of_reference = [kind for _, kind in reference]
    precision = directed_score(cosines, of_prediction, of_reference, matrix)
    recall = directed_score(cosines.T, of_reference, of_prediction, matrix)
    if precision + recall == 0.0:
        return 0.0, precision, recall
    return 2 * precision * recall / (precision + recall), precision, recall


class RaTEScore(ReportScorer):
    """RaTEScore of reports.

    Args:
        reader: gives the entities; its name "rules" makes every key begin with `rules_`.
        similarity: of entity names; default: what belongs to the reader.
        matrix: "long", "short", or a JSON file, see `ratescore_matrices.load_matrix`.

    Raises:
        ConfigError: unknown weights, a reader of something else, or an encoder that cannot be found.
        CheckpointError: incomplete weights of the encoder.
    """

    name = "ratescore"

    def __init__(
        self,
        reader: TextReader[Entities],
        similarity: NameSimilarity | None = None,
        *,
        matrix: str | os.PathLike[str] = "long",
    ) -> None:
        if not isinstance(reader, TextReader) or not isinstance(reader, _EntityReader):
            raise ConfigError(f"RaTEScore reads with a RaTEReader or a RulesEntityReader, not a {type(reader)}.")
        self.matrix = load_matrix(matrix)
        self.reader: Any = reader
        self.name_similarity = reader.similarity() if similarity is None else similarity
        self.primary_key = "rules_ratescore" if reader.name == "rules" else "ratescore"

    def readers(self) -> list[TextReader[Any]]:
        return [self.reader]

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        check_pairs(predictions, references)
        of_references = self.reader(references, persist=True)
        of_predictions = self.reader(predictions)
        pairs = list(zip(of_predictions, of_references, strict=True))
        names = [([name for name, _ in first], [name for name, _ in second]) for first, second in pairs]
        cosines = self.name_similarity.cosines(names)
        rows = [pair_score(*pair, values, self.matrix) for pair, values in zip(pairs, cosines, strict=True)]
        scores = np.array(rows, dtype=float)
        keys = (self.primary_key, f"{self.primary_key}_precision", f"{self.primary_key}_recall")
        without = sum(not first or not second for first, second in pairs)
        return ScorerOutput(
            [mean_statistics({key: scores[:, index] for index, key in enumerate(keys)})],
            counts={f"{self.primary_key}_without_entities": without},
        )

    def protocol(self) -> dict[str, Any]:
        matrix = self.matrix
        weights = {"name": matrix.name, "negation_weight": matrix.negation_weight}
        if matrix.name not in ("long", "short"):
            weights["weights"] = matrix.weights.tolist()
        return {
            "metric": self.name,
            "entities": self.reader.protocol(),
            "similarity": self.name_similarity.protocol(),
            "matrix": weights,
            "ties": TIE_RULE,
            "no_entities": f"{NO_ENTITIES} for a pair in which a side has none, counted in `_without_entities`",
            "precision": "entities of the generated report that search in the reference; recall the other way round",
            "average": "mean over studies",
            "text": "as given",
        }


def load_ratescore(
    backend: str = "ratescore",
    *,
    matrix: str | os.PathLike[str] = "long",
    cache_dir: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> RaTEScore:
    """RaTEScore from settings.

    Args:
        backend: "ratescore", or "rules", which needs no weights.
        matrix: see `RaTEScore`.
        cache_dir: folder of a `ReadingCache`; None for none.
        **settings: of `RaTEReader`; with "rules" only batch_size and memory.

    Raises:
        ConfigError: an unknown backend or setting; see also `RaTEReader`.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"RaTEScore has no backend {backend!r}. Use one of {list(BACKENDS)}.")
    cache = None if cache_dir is None else ReadingCache(cache_dir)
    given = {name: value for name, value in settings.items() if value is not None}
    known = {"batch_size", "memory"}
    if backend == "ratescore":
        known |= {"model", "ner_model", "encoder_model", "revision", "encoder_revision", "sentences"}
        known |= {"device", "dtype", "max_tokens"}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigError(f"RaTEScore with the backend {backend!r} has no setting {unknown}. It has {sorted(known)}.")
    load_matrix(matrix)  # before the networks, which take longer to load
    reader = RaTEReader(cache=cache, **given) if backend == "ratescore" else RulesEntityReader(cache=cache, **given)
    return RaTEScore(reader, matrix=matrix)
