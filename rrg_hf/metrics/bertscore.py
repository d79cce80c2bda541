"""BERTScore (Zhang et al. 2020) as the `bert_score` package (0.3.x) computes it: greedy matching of token vectors.

Every token of one text is matched with the most similar token of the other. Precision is the mean over the generated
report's tokens, recall over the reference's, F1 their harmonic mean. The vectors are those after layer L of the
encoder. The special tokens may be matched but weigh nothing. One difference: where a token's best cosine is negative,
the package counts 0 if the pair shares a batch with longer texts and the cosine if not; here it is always the cosine.

Defaults are those of RadCliQ: distilroberta-base, layer 5, rescaled, idf off.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, ConfigError, DataError
from .loading import check_dtype, choose_device, quiet_transformers, weights_revision
from .reading import TextReader
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import mean_statistics

DEFAULT_MODEL = "distilroberta-base"
DEFAULT_LAYER = 5
# (model, layer) -> what unrelated sentences score on average (P, R, F), as published with bert_score
PUBLISHED_BASELINES: dict[tuple[str, int], tuple[float, float, float]] = {
    ("distilroberta-base", 5): (0.84732, 0.84759504, 0.8473319),
    ("distilbert-base-uncased", 5): (0.6666034, 0.66660464, 0.66620487),
    ("roberta-large", 17): (0.83150584, 0.8314941, 0.83122575),
}
SCORES = ("precision", "recall", "f1")

# Byte-level BPE: a word has other pieces without a space before it, so the first word of a text needs one.
_NEEDS_PREFIX_SPACE = frozenset({"roberta", "gpt2", "longformer"})
_PAIRS_PER_CHUNK = 512
_SPACES = re.compile(" +")


@dataclass(frozen=True)
class TokenVectors:
    """A text as BERTScore sees it.

    Attributes:
        ids: token ids with special tokens, int64 (T,).
        vectors: unit vectors after the chosen layer, float32 (T, D).
        content: which tokens are no special tokens and therefore weigh, bool (T,).
    """

    ids: np.ndarray
    vectors: np.ndarray
    content: np.ndarray


class BertScoreReader(TextReader[TokenVectors]):
    """Token vectors of texts from the first layers of an encoder; the layers above are neither loaded nor run.

    Args:
        model: folder or Hub id of a BERT-like encoder or a decoder such as GPT-2; no encoder-decoder.
        layer: how many layers run.
        revision: of the Hub repository.
        device: default CUDA, else MPS, else CPU.
        dtype: of the weights; the vectors are stored in float32.
        collapse_spaces: runs of spaces become one, as RadCliQ does; matters to byte-level BPE, not to WordPiece.
        batch_size, max_tokens: see `TextReader`.
        memory: readings kept; each takes 4 bytes x tokens x width (60 tokens of distilroberta: 0.2 MB). They are too
            large for a disk cache.

    Raises:
        ConfigError: the model cannot be found, is an encoder-decoder, or has fewer layers.
        CheckpointError: the weights lack something that the chosen layers need.
    """

    name = "bertscore"

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        layer: int = DEFAULT_LAYER,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        collapse_spaces: bool = True,
        batch_size: int = 64,
        max_tokens: int = 16_384,
        memory: int = 2_048,
    ) -> None:
        super().__init__(batch_size=batch_size, max_tokens=max_tokens, memory=memory)
        self._where = str(model)
        self.model_name = Path(self._where).name if Path(self._where).is_dir() else self._where
        self.layer = layer
        self.collapse_spaces = collapse_spaces
        self._encoded: dict[str, list[int]] = {}
        self.device = choose_device(device)
        self._load(revision, check_dtype(dtype))
        weights = weights_revision(self._where, revision)
        self.revision = f"{weights}/layer {layer}/{dtype}/{'collapsed' if collapse_spaces else 'original'} spaces"

    def _load(self, revision: str | None, dtype: Any) -> None:
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        try:
            config = AutoConfig.from_pretrained(self._where, revision=revision)
            depth = getattr(config, "num_hidden_layers", 0)
            if config.is_encoder_decoder or not depth:
                raise ConfigError(
                    f"{self._where} is a {config.model_type}, which has no single stack of layers. BERTScore here "
                    "takes encoders (BERT, RoBERTa, DistilBERT, ModernBERT) and decoders (GPT-2)."
                )
            if isinstance(self.layer, bool) or not isinstance(self.layer, int) or not 1 <= self.layer <= depth:
                raise ConfigError(f"layer is {self.layer!r}, but {self._where} has layers 1 to {depth}.")
            config.num_hidden_layers = self.layer
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[: self.layer]
            prefix = {"add_prefix_space": True} if config.model_type in _NEEDS_PREFIX_SPACE else {}
            # the setting works only here: transformers 5 ignores it when the tokeniser is called
            self._tokenizer = AutoTokenizer.from_pretrained(self._where, revision=revision, **prefix)
            with quiet_transformers():  # which would list every layer left out
                network, report = AutoModel.from_pretrained(
                    self._where,
                    config=config,
                    revision=revision,
                    dtype=dtype,
                    output_loading_info=True,
                )
        except OSError as error:
            raise ConfigError(
                f"The BERTScore model {self._where!r} cannot be loaded: it is neither a folder with config.json, "
                "weights and tokenizer nor reachable on the Hub. Offline, download it once elsewhere "
                f"(`hf download {self._where}`) and give the folder."
            ) from error
        missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
        if missing:
            raise CheckpointError(
                f"The weights of {self._where} lack {len(missing)} tensors, first {missing[:3]}. Scores of a "
                "partly random network mean nothing; get the complete checkpoint."
            )
        if prefix and self._tokenizer("x").input_ids != self._tokenizer(" x").input_ids:
            raise ConfigError(
                f"The tokenizer of {self._where} does not put a space before a text (add_prefix_space), without "
                "which the scores are not BERTScore's. Its tokenizer files are incomplete or of another model."
            )
        self._model = network.to(self.device).eval()
        self._max_length = _max_length(self._tokenizer, config)
        specials = (self._tokenizer.cls_token_id, self._tokenizer.sep_token_id)
        self._specials = np.array([token for token in specials if token is not None], dtype=np.int64)
        # padding is masked, but RoBERTa counts positions by it
        self._pad = config.pad_token_id if config.pad_token_id is not None else 0

    def prepare(self, text: str) -> str:
        """The text that is tokenised: stripped, runs of spaces collapsed if asked for."""
        return (_SPACES.sub(" ", text) if self.collapse_spaces else text).strip()

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids with special tokens, cut to what the encoder takes."""
        if not texts:
            return []
        prepared = [self.prepare(text) for text in texts]
        return self._tokenizer(prepared, truncation=True, max_length=self._max_length)["input_ids"]

    def lengths(self, texts: list[str]) -> list[int]:
        self._encoded = dict(zip(texts, self.token_ids(texts), strict=True))  # read_batch comes for these next
        return [max(1, len(self._encoded[text])) for text in texts]

    def read_batch(self, texts: list[str]) -> list[TokenVectors]:
        import torch

        ids = [self._encoded.pop(text) if text in self._encoded else self.token_ids([text])[0] for text in texts]
        longest = max(map(len, ids))
        if longest == 0:  # GPT-2 adds no special tokens, so an empty text is empty
            return [self._reading([], np.zeros((0, 0), dtype=np.float32)) for _ in ids]
        padded = np.full((len(ids), longest), self._pad, dtype=np.int64)
        mask = np.zeros_like(padded)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        mask[:, 0] = 1  # an empty row beside others must not make attention divide 0 by 0
        with torch.inference_mode():
            hidden = self._model(
                input_ids=torch.from_numpy(padded).to(self.device),
                attention_mask=torch.from_numpy(mask).to(self.device),
            ).last_hidden_state
            vectors = torch.nn.functional.normalize(hidden.float(), dim=-1).cpu().numpy()
        # copies, or one kept reading would keep the whole batch in memory
        return [self._reading(tokens, vectors[row, : len(tokens)].copy()) for row, tokens in enumerate(ids)]

    def _reading(self, tokens: list[int], vectors: np.ndarray) -> TokenVectors:
        ids = np.asarray(tokens, dtype=np.int64)
        return TokenVectors(ids, vectors, ~np.isin(ids, self._specials))

    def to_json(self, reading: TokenVectors) -> Any:
        raise ConfigError("Token vectors are too large for a disk cache; BertScoreReader takes no `cache`.")


def match(
    hypothesis: TokenVectors, reference: TokenVectors, weigh: Callable[[np.ndarray], np.ndarray] | None = None
) -> tuple[float, float, float]:
    """Raw precision, recall and F1 of one pair; all 0 where a side has no token that weighs.

    Args:
        hypothesis, reference: readings by the same reader.
        weigh: token ids (T,) -> idf weights (T,); None: every token 1. Special tokens weigh 0 in any case.
    """
    weights = []
    for side in (hypothesis, reference):
        values = np.ones(len(side.ids)) if weigh is None else weigh(side.ids)
        weights.append(np.where(side.content, values, 0.0))
    totals = [side.sum() for side in weights]
    if min(totals, default=0.0) <= 0.0:
        return 0.0, 0.0, 0.0
    similarity = hypothesis.vectors @ reference.vectors.T
    precision = float(weights[0] @ similarity.max(axis=1)) / float(totals[0])
    recall = float(weights[1] @ similarity.max(axis=0)) / float(totals[1])
    if precision + recall == 0.0:
        return precision, recall, 0.0
    return precision, recall, 2 * precision * recall / (precision + recall)


class BertScore(ReportScorer):
    """BERTScore of reports.

    Args:
        reader: default `BertScoreReader()`.
        baseline: (P, R, F) that rescaling maps to 0; the name of a model in `PUBLISHED_BASELINES`, for a folder that
            holds it; "published" for the reader's own model; None for raw cosines. Rescaled scores are
            (x - baseline) / (1 - baseline): 1 is still perfect, and they may be negative.
        idf: weigh tokens by their rarity over the references of the call, so that the score of a pair depends on the
            other references too.

    Raises:
        ConfigError: a baseline that is not one, or belongs to another layer.
    """

    name = "bertscore"
    primary_key = "bertscore_f1"

    def __init__(
        self,
        reader: BertScoreReader | None = None,
        *,
        baseline: str | tuple[float, float, float] | None = "published",
        idf: bool = False,
    ) -> None:
        model, layer = (DEFAULT_MODEL, DEFAULT_LAYER) if reader is None else (reader.model_name, reader.layer)
        self.baseline = _resolve_baseline(model if baseline == "published" else baseline, layer)
        self.idf = bool(idf)
        self.reader = BertScoreReader() if reader is None else reader

    def readers(self) -> list[TextReader[Any]]:
        return [self.reader]

    def per_study(self, predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Precision, recall and F1 of each pair, float64 (N, 3).

        Raises:
            DataError: see `check_pairs`; or idf with fewer than two distinct references.
        """
        check_pairs(predictions, references)
        weigh = self._idf(references) if self.idf else None
        known: dict[tuple[str, str], tuple[float, float, float]] = {}
        pairs = list(zip(predictions, references, strict=True))
        distinct = list(dict.fromkeys(pairs))
        # chunks bound the memory that token vectors take; frequent texts stay in the reader's memory meanwhile
        for start in range(0, len(distinct), _PAIRS_PER_CHUNK):
            chunk = distinct[start : start + _PAIRS_PER_CHUNK]
            readings = self.reader([text for pair in chunk for text in pair])
            for index, pair in enumerate(chunk):
                known[pair] = match(readings[2 * index], readings[2 * index + 1], weigh)
        scores = np.array([known[pair] for pair in pairs], dtype=float)
        if self.baseline is not None:
            baseline = np.array(self.baseline)
            scores = (scores - baseline) / (1.0 - baseline)
        return scores

    def _idf(self, references: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
        """Weights log((N + 1) / (df + 1)) over the N references, duplicates counted, as bert_score does."""
        if len({self.reader.prepare(text) for text in references}) < 2:
            raise DataError(
                "idf=True with one distinct reference: every token occurs in all references, so all weights are "
                "log(1) = 0 and there is no score. Give at least two different references, or idf=False."
            )
        frequency: Counter[int] = Counter()
        for start in range(0, len(references), 4096):
            for ids in self.reader.token_ids(references[start : start + 4096]):
                frequency.update(set(ids))
        total = len(references) + 1

        def weigh(ids: np.ndarray) -> np.ndarray:
            return np.array([math.log(total / (frequency[int(token)] + 1)) for token in ids], dtype=float)

        return weigh

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        scores = self.per_study(predictions, references)
        columns = {f"bertscore_{name}": scores[:, index] for index, name in enumerate(SCORES)}
        empty = sum(not self.reader.prepare(text) for text in predictions)
        return ScorerOutput([mean_statistics(columns)], counts={"bertscore_empty_predictions": empty})

    def protocol(self) -> dict[str, Any]:
        return {
            "metric": self.name,
            "model": self.reader.model_name,
            "revision": self.reader.revision,
            "layer": self.reader.layer,
            "baseline": None if self.baseline is None else list(self.baseline),
            "idf": self.idf,
            "average": "mean over studies",
            "empty_text": "precision, recall and F1 are 0 before rescaling, as in bert_score",
        }


def _resolve_baseline(
    baseline: str | tuple[float, float, float] | None, layer: int
) -> tuple[float, float, float] | None:
    if baseline is None:
        return None
    if isinstance(baseline, str):
        key = (baseline.rsplit("/", 1)[-1], layer)
        if key not in PUBLISHED_BASELINES:
            known = ", ".join(f"{model} layer {depth}" for model, depth in PUBLISHED_BASELINES)
            raise ConfigError(
                f"No published baseline of {key[0]!r} layer {layer}; there are those of {known}. Give the three "
                "numbers (P, R, F), or None for raw scores."
            )
        return PUBLISHED_BASELINES[key]
    try:
        precision, recall, f1 = (float(value) for value in baseline)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"baseline is {baseline!r}. Give (P, R, F), a model's name, or None.") from error
    if not all(-1.0 <= value < 1.0 for value in (precision, recall, f1)):
        raise ConfigError(f"baseline is {baseline!r}. Each of (P, R, F) must be below 1: it is the score of nothing.")
    return precision, recall, f1


def _max_length(tokenizer: Any, config: Any) -> int:
    """Longest input. A tokeniser saved without `model_max_length` says 10^30, which overflows its own backend."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions and config.model_type in {"roberta", "xlm-roberta", "camembert", "longformer"}:
        positions -= config.pad_token_id + 1  # these number their positions from pad_token_id + 1
    limits = [limit for limit in (tokenizer.model_max_length, positions) if limit and limit < 10**9]
    return int(min(limits, default=512))
