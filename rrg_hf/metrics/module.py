"""The `evaluate` side of a metric, shared by the thin scripts in `rrg_hf/metrics/<name>/<name>.py`.

The scripts do `import rrg_hf.metrics.module` and subclass `module.ReportMetric`: evaluate takes the first module class
it finds in a script's namespace, so a script must not import this class by name.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import datasets
import evaluate

from ..errors import ConfigError
from .scorer import ReportScorer

SCOPE = "Chest X-ray first, English, research only, not a medical device."


class ReportMetric(evaluate.Metric):
    """A report metric as an evaluate module.

    `compute(predictions=[...], references=[...], per_sample=False)` takes one text of each per study and returns the
    scores by name with their "protocol".

    Attributes:
        known_settings: what `build_scorer` takes. With "cache_dir" among them, evaluate's `cache_dir` also keeps what
            networks read from references.
        primary_key: the score a table shows when it shows one.
        higher_is_better: its direction.
        scorer: the metric behind the module, with its readers.
    """

    description: ClassVar[str]
    citation_text: ClassVar[str]
    inputs_text: ClassVar[str]
    reference_urls: ClassVar[tuple[str, ...]] = ()
    known_settings: ClassVar[tuple[str, ...]]

    def __init__(self, config_name: str | None = None, **kwargs: Any) -> None:
        known = (
            "keep_in_memory", "cache_dir", "num_process", "process_id", "seed", "experiment_id", "hash",
            "max_concurrent_cache_files", "timeout",
        )  # fmt: skip
        of_evaluate = {name: kwargs.pop(name) for name in known if name in kwargs}
        # evaluate's config name is the short way to say which backend: load("radgraph_f1", "rules")
        if config_name not in (None, "default"):
            if kwargs.get("backend") not in (None, config_name):
                raise ConfigError(f"backend {kwargs['backend']!r} and config_name {config_name!r} differ. Give one.")
            kwargs["backend"] = config_name
        if of_evaluate.get("cache_dir") is not None and "cache_dir" in self.known_settings:
            kwargs["cache_dir"] = of_evaluate["cache_dir"]
        if "model_revision" in kwargs:  # evaluate.load keeps `revision` to itself
            kwargs["revision"] = kwargs.pop("model_revision")
        unknown = sorted(set(kwargs) - set(self.known_settings))
        if unknown:
            name = type(self).__module__.rpartition(".")[2]
            raise ConfigError(f"{name} has no setting {unknown}. It has {sorted(self.known_settings)}.")
        # Built before anything of evaluate's, so that a wrong setting or a missing model fails at load().
        self.scorer = self.build_scorer(**kwargs)
        super().__init__(config_name=config_name, **of_evaluate)
        # evaluate derives the name from the class's; combined metrics prefix their keys with it
        self._module_info.module_name = self.scorer.name

    @abstractmethod
    def build_scorer(self, **settings: Any) -> ReportScorer:
        """The metric behind the module, from the keyword arguments of `load`."""

    @property
    def primary_key(self) -> str:
        return self.scorer.primary_key

    @property
    def higher_is_better(self) -> bool:
        return self.scorer.higher_is_better

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
        return evaluate.MetricInfo(
            description=f"{self.description} {SCOPE}",
            citation=self.citation_text,
            inputs_description=self.inputs_text,
            features=datasets.Features(features),
            reference_urls=list(self.reference_urls),
            license="Apache-2.0",
        )

    def _compute(self, predictions: list[str], references: list[str], per_sample: bool = False) -> dict[str, Any]:
        return self.scorer.compute(predictions, references, per_sample=per_sample)
