"""Several metrics from one set of networks: scorers that need the same reader get the same reader object.

CheXbert serves its own F1 and RadCliQ, RadGraph v1 its own F1 and RadCliQ; a reader keeps what it read, so every
distinct text is read once, whichever metric, system or side asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..observations import DEFAULT_UNCERTAINTY_POLICY
from .reading import ReadingCache, TextReader
from .scorer import ReportScorer

# metric -> the settings it takes in `ScorerSettings.options`, named as in `rrg_hf.metrics.load`
OPTIONS: dict[str, tuple[str, ...]] = {
    "chexbert": ("backend", "model", "revision"),
    "radgraph": ("backend", "model", "revision", "lowercase"),
    "ratescore": (
        "backend",
        "model",
        "ner_model",
        "encoder_model",
        "revision",
        "encoder_revision",
        "sentences",
        "matrix",
    ),
    "radcliq": ("version", "radgraph_model", "chexbert_model", "bertscore_model", "bleu", "reciprocal"),
    "green": ("model", "revision", "template", "template_file", "max_length", "words", "parse"),
    "bertscore": ("model", "revision", "layer", "baseline"),
}
CLINICAL_METRICS = tuple(OPTIONS)
BACKENDS: dict[str, tuple[str, ...]] = {
    "chexbert": ("chexbert", "rules"),
    "radgraph": ("radgraph-xl", "radgraph", "modern-radgraph-xl", "echograph", "rules"),
    "ratescore": ("ratescore", "rules"),
}


@dataclass(frozen=True)
class ScorerSettings:
    """How scorers are built.

    Attributes:
        options: metric -> its settings, see `OPTIONS`.
        policy: how uncertain labels count, for chexbert.
        zero_division: value of 0/0, for chexbert.
        device: default: a GPU if there is one, else the CPU.
        dtype: of the weights; default float32.
        batch_size: texts per batch; default the reader's own.
        cache_dir: folder of the `ReadingCache` for references; None for none.
    """

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy: str = DEFAULT_UNCERTAINTY_POLICY
    zero_division: float = 0.0
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None
    cache_dir: str | os.PathLike[str] | None = None


def check_options(options: Mapping[str, Mapping[str, Any]], metrics: Sequence[str] = CLINICAL_METRICS) -> None:
    """Refuse options nobody reads.

    Raises:
        ConfigError: an unknown metric, setting or backend, or settings of a metric that is not in `metrics`.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"options is a {type(options).__name__}. Give a mapping of metric to its settings.")
    for metric, settings in options.items():
        if metric not in OPTIONS:
            raise ConfigError(f"Options of {metric!r}: no such metric with options. There are {list(OPTIONS)}.")
        if metric not in metrics:
            raise ConfigError(
                f"Options of {metric!r} are given, but the metric is not requested. Add it or drop them."
            )
        if not isinstance(settings, Mapping):
            raise ConfigError(f"The options of {metric!r} are a {type(settings).__name__}, not a mapping.")
        unknown = [name for name in settings if name not in OPTIONS[metric]]
        if unknown:
            raise ConfigError(f"{metric} has no setting {unknown}. It has {list(OPTIONS[metric])}.")
        backend = settings.get("backend")
        if backend is not None and backend not in BACKENDS[metric]:
            raise ConfigError(f"{metric} has no backend {backend!r}. Use one of {list(BACKENDS[metric])}.")
        loads = [name for name in settings if name.endswith(("model", "revision")) or name == "sentences"]
        if backend == "rules" and loads:
            raise ConfigError(f"{metric} with the backend 'rules' loads no network. Drop {loads}.")


def build_scorers(names: Sequence[str], settings: ScorerSettings | None = None) -> dict[str, ReportScorer]:
    """Scorers of several metrics that share their readers.

    Args:
        names: of `CLINICAL_METRICS`.
        settings: see `ScorerSettings`.

    Returns:
        Metric to scorer, in the order of `names`.

    Raises:
        ConfigError: an unknown metric or setting, or a model that is not prepared (the message says how to).
    """
    settings = settings or ScorerSettings()
    unknown = [name for name in names if name not in OPTIONS]
    if unknown:
        raise ConfigError(f"Unknown metrics {unknown}. There are {list(CLINICAL_METRICS)}.")
    check_options(settings.options)
    builder = _Builder(settings, names)
    return {name: getattr(builder, name)() for name in dict.fromkeys(names)}


class _Builder:
    """Builds scorers; equal requests for a reader are answered with the same object."""

    def __init__(self, settings: ScorerSettings, names: Sequence[str]) -> None:
        self._settings = settings
        self._names = names
        self._readers: dict[tuple[Any, ...], TextReader[Any]] = {}
        self._cache = None if settings.cache_dir is None else ReadingCache(settings.cache_dir)

    def _options(self, metric: str) -> dict[str, Any]:
        return dict(self._settings.options.get(metric, {}))

    def _reader(self, build: Callable[..., TextReader[Any]], *, cached: bool = True, **arguments: Any) -> Any:
        """`build` with what was given; settings left open keep the reader's own default."""
        common = {
            "device": self._settings.device,
            "dtype": self._settings.dtype,
            "batch_size": self._settings.batch_size,
            "cache": self._cache if cached else None,
        }
        given = {name: value for name, value in {**common, **arguments}.items() if value is not None}
        key = (build, *sorted((name, str(value)) for name, value in given.items()))
        if key not in self._readers:
            self._readers[key] = build(**given)
        return self._readers[key]

    def _chexbert_reader(self, model: Any = None, revision: Any = None) -> TextReader[Any]:
        from .chexbert import CheXbertReader

        return self._reader(CheXbertReader, model=model, revision=revision)

    def _radgraph_reader(self, backend: str | None, model: Any = None, revision: Any = None) -> TextReader[Any]:
        from .radgraph import RadGraphReader

        return self._reader(RadGraphReader, backend=backend, model=model, revision=revision)

    def chexbert(self) -> ReportScorer:
        from .chexbert import CheXbertF1, RulesLabelReader

        options = self._options("chexbert")
        rules = options.pop("backend", "chexbert") == "rules"
        reader = RulesLabelReader() if rules else self._chexbert_reader(**options)
        return CheXbertF1(reader, policy=self._settings.policy, zero_division=self._settings.zero_division)

    def radgraph(self) -> ReportScorer:
        from .radgraph import RadGraphF1, RulesGraphReader

        options = self._options("radgraph")
        backend = options.pop("backend", None)  # without it a given model says itself which network it holds
        case = {"lowercase": options.pop("lowercase")} if "lowercase" in options else {}
        reader = RulesGraphReader() if backend == "rules" else self._radgraph_reader(backend, **options)
        return RadGraphF1(reader, **case)

    def ratescore(self) -> ReportScorer:
        from .ratescore import RaTEReader, RaTEScore, RulesEntityReader

        options = self._options("ratescore")
        rules = options.pop("backend", "ratescore") == "rules"
        matrix = {"matrix": options.pop("matrix")} if "matrix" in options else {}
        reader = RulesEntityReader() if rules else self._reader(RaTEReader, **options)
        return RaTEScore(reader, **matrix)

    def radcliq(self) -> ReportScorer:
        from .bertscore import DEFAULT_MODEL, BertScore
        from .radcliq import RadCliQ

        options = self._options("radcliq")
        # the same weights as the metrics of their own, unless told otherwise
        chexbert = self._options("chexbert") if self._options("chexbert").get("backend") != "rules" else {}
        models = {name: options.pop(f"{name}_model", None) for name in ("radgraph", "chexbert", "bertscore")}
        labels = {"model": models["chexbert"]} if models["chexbert"] else {**chexbert}
        labels.pop("backend", None)
        vectors = self._bertscore_reader({"model": models["bertscore"]} if models["bertscore"] else {})
        bertscore = BertScore(vectors, baseline=DEFAULT_MODEL)  # whatever the model's folder is called
        return RadCliQ(self._radcliq_graphs(models["radgraph"]), self._chexbert_reader(**labels), bertscore, **options)

    def _radcliq_graphs(self, model: Any) -> TextReader[Any]:
        """RadGraph v1: the model given for RadCliQ, else the metric radgraph's if it is v1, else the prepared one."""
        options = self._options("radgraph")
        options.pop("lowercase", None)
        backend = options.pop("backend", None)
        if model:
            return self._radgraph_reader("radgraph", model)
        if backend == "radgraph":
            return self._radgraph_reader(backend, **options)
        if backend is None and "radgraph" in self._names and options:
            reader = self._radgraph_reader(None, **options)
            if reader.name == "radgraph":
                return reader
        return self._radgraph_reader("radgraph")

    def green(self) -> ReportScorer:
        from .green import Green, GreenReader

        options = self._options("green")
        parse = {"parse": options.pop("parse")} if "parse" in options else {}
        return Green(self._reader(GreenReader, **options), **parse)

    def _bertscore_reader(self, options: Mapping[str, Any]) -> Any:
        from .bertscore import BertScoreReader

        return self._reader(BertScoreReader, cached=False, **options)

    def bertscore(self) -> ReportScorer:
        from .bertscore import DEFAULT_LAYER, DEFAULT_MODEL, PUBLISHED_BASELINES, BertScore

        options = self._options("bertscore")
        model = str(options.get("model", DEFAULT_MODEL)).rsplit("/", 1)[-1]
        baseline = options.pop("baseline", model)
        if baseline == model and (model, options.get("layer", DEFAULT_LAYER)) not in PUBLISHED_BASELINES:
            raise ConfigError(
                f"bertscore has no published baseline for {model!r} at this layer. Give bertscore.baseline: three "
                "numbers [P, R, F], or null for raw scores."
            )
        return BertScore(self._bertscore_reader(options), baseline=baseline)
