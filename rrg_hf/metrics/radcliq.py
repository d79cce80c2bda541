"""RadCliQ v0 and v1 (Yu et al. 2023): a linear model of how many errors a radiologist would count in a report.

Four components go in, in this order: `radgraph_combined` (mean of entity and relation F1, RadGraph v1), `bertscore`
(F1, distilroberta-base layer 5, rescaled), `semb_score` (cosine of the CheXbert CLS vectors) and `bleu_score` (BLEU-2
of one report). Each is standardised and weighed with the published coefficients.

RadCliQ is a predicted number of errors: lower is better, and good reports may get a negative one.
"""

from __future__ import annotations

import copy
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from .bertscore import DEFAULT_MODEL, BertScore, BertScoreReader
from .graph_rewards import combined_f1
from .nlg import bleu_statistics
from .reading import ReadingCache, TextReader
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import StudyStatistics, cosine, divide, mean_statistics

COMPONENTS = ("radgraph_combined", "bertscore", "semb_score", "bleu_score")

RECIPROCAL_WARNING = (
    "1 / mean(RadCliQ), as some leaderboards print it. RadCliQ is a signed quantity, so its reciprocal does not order "
    "systems: it jumps at 0 and a mean slightly above 0 beats a perfect score. Compare the raw value."
)


@dataclass(frozen=True)
class Coefficients:
    """Published scaler and linear model, in the order of `COMPONENTS`."""

    mean: tuple[float, float, float, float]
    scale: tuple[float, float, float, float]
    weights: tuple[float, float, float, float]
    intercept: float


COEFFICIENTS = {
    "v0": Coefficients(
        (0.5398376019082272, 0.6312549595000001, 0.7716797866672277, 0.4607372064809605),
        (0.3018344440559102, 0.22466950746141123, 0.24750333805236252, 0.30336670936092264),
        (-0.4796252644863446, -0.6762170542369337, -0.46366575161751994, 0.2165861905287535),
        1.641666666666666,
    ),
    # bleu_score weighs practically nothing here
    "v1": Coefficients(
        (0.5379231241355762, 0.6175725628125001, 0.7647942121140658, 0.44738335396242174),
        (0.3028258411486429, 0.22430938459304575, 0.2539439110169773, 0.2989271671041838),
        (-0.37708368261038905, -0.37030009974480316, -0.25261621789593225, 4.315048405024756e-12),
        2.466552561323256e-10,
    ),
}

BLEU_RULES = {
    "fast_bleu": (
        "BLEU-2 of one report, weights (1/2, 1/2), 0.1 in place of 0 matched bigrams, brevity exp(1 - r/c); tokens: "
        "lower case, a space before every full stop, split at spaces. The published convention."
    ),
    "pycocoevalcap": (
        "BLEU-2 of one report as pycocoevalcap computes it, on white-space tokens, case kept; RadEval's convention."
    ),
}


def radcliq_from_components(components: np.ndarray, version: str = "v1") -> np.ndarray:
    """RadCliQ of studies whose components are known.

    Args:
        components: (N, 4) or (4,), columns in the order of `COMPONENTS`.
        version: "v0" or "v1".

    Returns:
        Predicted error counts, (N,) or scalar; lower is better.

    Raises:
        ConfigError: unknown version.
        DataError: not four columns, or a component that is missing (NaN) or infinite; the message names it.
    """
    coefficients = _coefficients(version)
    values = np.asarray(components, dtype=float)
    if values.ndim not in (1, 2) or values.shape[-1] != len(COMPONENTS):
        raise DataError(
            f"RadCliQ takes {len(COMPONENTS)} components per study, {', '.join(COMPONENTS)}, but the array has the "
            f"shape {values.shape}."
        )
    broken = ~np.isfinite(values)
    if broken.any():
        row, column = np.argwhere(np.atleast_2d(broken))[0]
        raise DataError(
            f"Study {row} has no usable {COMPONENTS[column]} ({np.atleast_2d(values)[row, column]}). RadCliQ is only "
            "defined with all four components."
        )
    scaled = (values - np.array(coefficients.mean)) / np.array(coefficients.scale)
    return scaled @ np.array(coefficients.weights) + coefficients.intercept


def _coefficients(version: str) -> Coefficients:
    if version not in COEFFICIENTS:
        raise ConfigError(f"RadCliQ version {version!r} is unknown. Use one of {sorted(COEFFICIENTS)}.")
    return COEFFICIENTS[version]


def _check_settings(version: str, bleu: str) -> None:
    _coefficients(version)
    if bleu not in BLEU_RULES:
        raise ConfigError(f"bleu is {bleu!r}. Use one of {sorted(BLEU_RULES)}.")


def bleu_tokens(text: str) -> list[str]:
    """Tokens of RadCliQ's BLEU: lower case, full stops set off, split at spaces (only)."""
    return [token for token in text.lower().replace(".", " .").split(" ") if token]


def sentence_bleu_2(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """BLEU-2 of one tokenised report as fast_bleu computes it (nltk's sentence BLEU with smoothing method 1).

    Clipped counts; a bigram count of 0 is replaced by 0.1, a report without any common word scores 0.
    """
    if not hypothesis or not reference:
        return 0.0
    logarithms = []
    for n in (1, 2):
        of_hypothesis = Counter(tuple(hypothesis[i : i + n]) for i in range(len(hypothesis) - n + 1))
        of_reference = Counter(tuple(reference[i : i + n]) for i in range(len(reference) - n + 1))
        matched: float = sum((of_hypothesis & of_reference).values())
        if matched == 0:
            if n == 1:
                return 0.0
            matched = 0.1
        logarithms.append(math.log(matched / max(1, len(hypothesis) - n + 1)))
    brevity = min(0.0, 1.0 - len(reference) / len(hypothesis))
    return math.exp(brevity + sum(logarithms) / 2)


class RadCliQ(ReportScorer):
    """RadCliQ of reports.

    Args:
        radgraph: reads annotations in the published format (`RadGraphReader`); the published RadCliQ uses RadGraph v1,
            not XL.
        chexbert: reads {"cls": vector} (`CheXbertReader`).
        bertscore: default `BertScore()`, which is the published setting.
        version: "v1" or "v0".
        bleu: a key of `BLEU_RULES`.
        reciprocal: also give 1 / mean, see `RECIPROCAL_WARNING`.

    Raises:
        ConfigError: a setting that cannot work or a missing reader.
    """

    name = "radcliq"
    higher_is_better = False

    def __init__(
        self,
        radgraph: TextReader[Any],
        chexbert: TextReader[Any],
        bertscore: BertScore | None = None,
        *,
        version: str = "v1",
        bleu: str = "fast_bleu",
        reciprocal: bool = False,
    ) -> None:
        _check_settings(version, bleu)
        for component, reader in (("radgraph", radgraph), ("chexbert", chexbert)):
            if not isinstance(reader, TextReader):
                raise ConfigError(
                    f"RadCliQ needs a {component} reader, not {type(reader).__name__}: it is only defined with all "
                    f"four of {', '.join(COMPONENTS)}."
                )
        self.radgraph = radgraph
        self.chexbert = chexbert
        self.version = version
        self.primary_key = f"radcliq_{version}"
        self.bleu = bleu
        self.reciprocal = bool(reciprocal)
        self._only: str | None = None  # the one component that is computed
        self.bertscore = BertScore() if bertscore is None else bertscore

    def readers(self) -> list[TextReader[Any]]:
        return [self.radgraph, self.chexbert, *self.bertscore.readers()]

    def components(self, predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """The four components of each study, (N, 4), in the order of `COMPONENTS`.

        Raises:
            DataError: see `check_pairs`.
            ConfigError: the CheXbert reader gives no CLS vectors.
        """
        check_pairs(predictions, references)
        return np.stack([self._component(name, predictions, references) for name in COMPONENTS], axis=1)

    def _component(self, name: str, predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
        if name == "bertscore":
            return self.bertscore.per_study(predictions, references)[:, 2]
        if name == "bleu_score":
            return self._bleu(predictions, references)
        if name == "semb_score":
            vectors = self._cls(references, persist=True), self._cls(predictions)
            return np.array([cosine(*pair) for pair in zip(*vectors, strict=True)])
        graphs = self.radgraph(references, persist=True), self.radgraph(predictions)
        # radgraph reads "" as the word "None"; an empty report states nothing
        return np.array(
            [
                combined_f1(hypothesis, truth).combined if report and reference else 0.0
                for report, reference, truth, hypothesis in zip(predictions, references, *graphs, strict=True)
            ]
        )

    def _cls(self, texts: Sequence[str], *, persist: bool = False) -> list[np.ndarray]:
        vectors = []
        for reading in self.chexbert(texts, persist=persist):
            vector = reading.get("cls") if isinstance(reading, Mapping) else None
            if vector is None:
                raise ConfigError(
                    f"The reader {self.chexbert.name!r} gives no CLS vectors, so RadCliQ has no semb_score. Use the "
                    "CheXbert network with its vectors kept; labels by rules cannot stand in."
                )
            vectors.append(vector)
        return vectors

    def _bleu(self, predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
        if self.bleu == "pycocoevalcap":
            tokens = [[text.split() for text in side] for side in (predictions, references)]
            return bleu_statistics(*tokens).per_study()["bleu_2"]
        pairs = zip(predictions, references, strict=True)
        return np.array([sentence_bleu_2(bleu_tokens(report), bleu_tokens(reference)) for report, reference in pairs])

    def only(self, key: str) -> RadCliQ:
        name = key.removeprefix("radcliq_")
        if name not in COMPONENTS:
            return self
        narrow = copy.copy(self)
        narrow._only = name
        return narrow

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        empty = {"radcliq_empty_predictions": sum(not text.strip() for text in predictions)}
        if self._only is not None:
            check_pairs(predictions, references)
            values = self._component(self._only, predictions, references)
            return ScorerOutput([mean_statistics({f"radcliq_{self._only}": values})], counts=empty)
        components = self.components(predictions, references)
        raw = radcliq_from_components(components, self.version)
        scores = {self.primary_key: raw}
        scores |= {f"radcliq_{name}": components[:, index] for index, name in enumerate(COMPONENTS)}
        groups = [mean_statistics(scores)]
        if self.reciprocal:
            groups.append(_reciprocal_statistics(raw, f"{self.primary_key}_reciprocal"))
        return ScorerOutput(groups, counts=empty)

    def protocol(self) -> dict[str, Any]:
        protocol: dict[str, Any] = {
            "metric": self.name,
            "version": self.version,
            "direction": "lower is better; a predicted number of errors, may be negative",
            "average": "mean over studies",
            "text": "as given; each component prepares it in its own way",
            "radgraph_combined": {
                "reader": self.radgraph.name,
                "revision": self.radgraph.revision,
                "rule": "mean of entity and relation F1, case kept, 0/0 is 0: equal reports without relations get 0.5",
            },
            "bertscore": self.bertscore.protocol(),
            "semb_score": {"reader": self.chexbert.name, "revision": self.chexbert.revision, "rule": "cosine of CLS"},
            "bleu_score": {"name": self.bleu, "rule": BLEU_RULES[self.bleu]},
        }
        if self.reciprocal:
            protocol["reciprocal"] = RECIPROCAL_WARNING
        return protocol


def _reciprocal_statistics(raw: np.ndarray, name: str) -> StudyStatistics:
    values = np.stack([raw, np.ones_like(raw)], axis=-1)

    def score(sums: np.ndarray) -> dict[str, np.ndarray]:
        return {name: divide(sums[..., 1], sums[..., 0], float("nan"))}

    return StudyStatistics(values, score)


def load_radcliq(
    *,
    version: str = "v1",
    radgraph_model: str | os.PathLike[str] | None = None,
    chexbert_model: str | os.PathLike[str] | None = None,
    bertscore_model: str | os.PathLike[str] = DEFAULT_MODEL,
    bleu: str = "fast_bleu",
    idf: bool = False,
    reciprocal: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    cache_dir: str | os.PathLike[str] | None = None,
) -> RadCliQ:
    """RadCliQ from settings.

    Args:
        version, bleu, reciprocal: see `RadCliQ`.
        radgraph_model, chexbert_model: folders or Hub ids of the converted networks; by default the prepared ones.
        bertscore_model: folder or Hub id of distilroberta-base.
        idf: weigh BERTScore's tokens by rarity over the references of a call, as RadEval does; the published RadCliQ
            does not. Needs two distinct references.
        device, dtype, batch_size: of the three networks.
        cache_dir: folder for what RadGraph and CheXbert read from references; None keeps none.

    Raises:
        ConfigError: a setting that cannot work, before a network is loaded, or a network that is not prepared.
    """
    _check_settings(version, bleu)
    from .chexbert import CheXbertReader
    from .radgraph import RadGraphReader

    cache = None if cache_dir is None else ReadingCache(cache_dir)
    common: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": batch_size}
    radgraph = RadGraphReader(radgraph_model, backend="radgraph", cache=cache, **common)
    chexbert = CheXbertReader(chexbert_model, cache=cache, **common)
    vectors = BertScoreReader(os.fspath(bertscore_model), **common)
    bertscore = BertScore(vectors, baseline=DEFAULT_MODEL, idf=idf)  # whatever the model's folder is called
    return RadCliQ(radgraph, chexbert, bertscore, version=version, bleu=bleu, reciprocal=reciprocal)
