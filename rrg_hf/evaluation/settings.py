"""What decides a score besides the texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..metrics import require_pycocoevalcap
from ..metrics.shared import CLINICAL_METRICS, ScorerSettings, check_options
from ..metrics.tokenization import DEFAULT_TOKENIZER, check_tokenizer
from ..observations import DEFAULT_UNCERTAINTY_POLICY, UNCERTAINTY_POLICIES
from ..text.cleaning import CLEANERS

TEXT_METRICS = ("nlg", "rules", "meteor")
METRICS = (*TEXT_METRICS, *CLINICAL_METRICS)
DEFAULT_METRICS = ("nlg", "rules")


@dataclass(frozen=True)
class ScoreSettings:
    """What decides a score besides the texts, and on what it is computed.

    Attributes:
        metrics: of "nlg" (BLEU-1..4, ROUGE-L, CIDEr), "rules" (observations read by the rule labeller), "meteor"
            (METEOR 1.5 where Java is, nltk's where WordNet is; the JVM's start takes about 10 s), and the networks
            "chexbert", "radgraph", "ratescore", "radcliq", "green" and "bertscore".
        cleaning: a key of `rrg_hf.text.cleaning.CLEANERS`, applied to both sides before nlg and meteor.
        tokenizer: a key of `rrg_hf.metrics.tokenization.TOKENIZERS`; None: "whitespace" for R2Gen's cleaning, whose
            output is tokens already, else "default".
        policy: a key of `rrg_hf.observations.UNCERTAINTY_POLICIES`, for rules and chexbert.
        zero_division: value of 0/0 in precision, recall and F1.
        clinical_cleaning: a key of `CLEANERS`, applied to both sides before all other metrics. "default" removes
            de-identification marks, so that nobody earns anything by writing them; "none" is what the published
            packages do; R2Gen's cleanings remove much of what a labeller reads.
        options: metric -> settings as `rrg_hf.metrics.load` takes them, e.g. {"radgraph": {"backend": "rules"}}.
        device: default: a GPU if there is one, else the CPU.
        dtype: of the networks' weights.
        batch_size: reports per batch of a network.
        cache_dir: folder that keeps what the networks read from references, for the next run.
    """

    metrics: Sequence[str] = DEFAULT_METRICS
    cleaning: str = "default"
    tokenizer: str | None = None
    policy: str = DEFAULT_UNCERTAINTY_POLICY
    zero_division: float = 0.0
    clinical_cleaning: str = "default"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None
    cache_dir: str | os.PathLike[str] | None = None

    @property
    def resolved_tokenizer(self) -> str:
        if self.tokenizer is not None:
            return self.tokenizer
        return "whitespace" if self.cleaning.startswith("r2gen") else DEFAULT_TOKENIZER

    @property
    def resolved_metrics(self) -> tuple[str, ...]:
        """Each metric once; "chexbert" with the backend "rules" is "rules"."""
        rules = self.options.get("chexbert", {}).get("backend") == "rules"
        return tuple(dict.fromkeys("rules" if name == "chexbert" and rules else name for name in self.metrics))

    @property
    def clinical_metrics(self) -> tuple[str, ...]:
        return tuple(name for name in self.resolved_metrics if name in CLINICAL_METRICS)

    def of_scorers(self) -> ScorerSettings:
        """The part that `rrg_hf.metrics.shared.build_scorers` takes."""
        return ScorerSettings(
            options=self.options,
            policy=self.policy,
            zero_division=self.zero_division,
            device=self.device,
            dtype=self.dtype,
            batch_size=self.batch_size,
            cache_dir=self.cache_dir,
        )

    def check(self) -> None:
        """Fail before any compute.

        Raises:
            ConfigError: an unknown metric, cleaning, tokeniser, policy or option, a bad zero_division, or a missing
                library.
        """
        if isinstance(self.metrics, str) or not self.metrics:
            raise ConfigError(f"metrics is {self.metrics!r}. Give one or more of {list(METRICS)} in a list.")
        unknown = [name for name in self.metrics if name not in METRICS]
        if unknown:
            raise ConfigError(f"Unknown metrics {unknown}. Use some of {list(METRICS)}.")
        for name in ("cleaning", "clinical_cleaning"):
            if getattr(self, name) not in CLEANERS:
                raise ConfigError(f"Unknown {name} {getattr(self, name)!r}. Use one of {sorted(CLEANERS)}.")
        if self.policy not in UNCERTAINTY_POLICIES:
            raise ConfigError(
                f"Unknown uncertainty policy {self.policy!r}. Use one of {sorted(UNCERTAINTY_POLICIES)}."
            )
        value = self.zero_division
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise ConfigError(f"zero_division is {value!r}. Use a value from 0 to 1, usually 0 or 1.")
        check_tokenizer(self.resolved_tokenizer)
        check_options(self.options, self.metrics)
        if "nlg" in self.metrics:
            require_pycocoevalcap()

    def deciding(self) -> dict[str, Any]:
        """The settings that can change a score, as plain data: devices, batches and caches cannot."""
        return {
            "metrics": list(self.resolved_metrics),
            "cleaning": self.cleaning,
            "tokenizer": self.resolved_tokenizer,
            "policy": self.policy,
            "zero_division": float(self.zero_division),
            "clinical_cleaning": self.clinical_cleaning,
            "options": {name: dict(self.options[name]) for name in sorted(self.options)},
            "dtype": self.dtype or "float32",
        }
