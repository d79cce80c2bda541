"""A report metric as a reward function for TRL (`GRPOTrainer(reward_funcs=...)` and its like)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from .scorer import ReportScorer, ScorerOutput

# Scores of one report that depend on the other reports of the batch: no reward can be.
_BATCH_SCORES = {"cider": "its document frequencies are those of the batch"}


class ReportReward:
    """Reward of generated reports: one number per completion, or None where the metric has no score.

    Call it as TRL does: `reward(prompts=..., completions=..., reference=[...])`.

    Attributes:
        __name__: what TRL logs it under, e.g. "radgraph_partial".

    Args:
        scorer: the metric.
        key: which of its per-study scores; default its primary key.
        reference: name of the data set's column with the reference reports.
        maximize: multiply by -1 where lower is better, so that more reward is always better. Only the primary key's
            direction is known; other keys are taken as they are.

    Raises:
        ConfigError: a key that cannot be a reward.
    """

    def __init__(
        self, scorer: ReportScorer, key: str | None = None, *, reference: str = "reference", maximize: bool = True
    ) -> None:
        self.scorer = scorer
        self.key = scorer.primary_key if key is None else key
        if self.key in _BATCH_SCORES:
            raise ConfigError(f"{self.key!r} of one report is no reward: {_BATCH_SCORES[self.key]}.")
        self._scorer = scorer.only(self.key)  # a batch must not wait for scores that nobody reads
        self.reference = reference
        self.sign = -1.0 if maximize and self.key == scorer.primary_key and not scorer.higher_is_better else 1.0
        self.__name__ = self.key

    def __repr__(self) -> str:
        return f"ReportReward({self.scorer.name!r}, key={self.key!r})"

    def __call__(
        self, prompts: Any = None, completions: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Rewards of the completions, in their order.

        Args:
            prompts: not used.
            completions: texts, or conversations (lists of messages), of which the last assistant message counts.
            columns: the data set's columns, one entry per completion; a reference of None gets the reward None.

        Raises:
            ConfigError: no column with the references, or no such score.
            DataError: lengths differ, something is no text, or the metric gave NaN; the message names metric and
                sample.
        """
        if completions is None:
            raise DataError("No completions given.")
        references = columns.get(self.reference)
        if references is None:
            raise ConfigError(
                f"The reward {self.key!r} needs the column {self.reference!r} with the reference reports; the data "
                f"set has {sorted(columns)}. Name the column: make_reward_fn(..., reference=...)."
            )
        if len(references) != len(completions):
            raise DataError(f"{len(completions)} completions but {len(references)} references.")
        texts = [_text(completion, index) for index, completion in enumerate(completions)]
        kept = [index for index, reference in enumerate(references) if reference is not None]
        rewards: list[float | None] = [None] * len(texts)
        if not kept:
            return rewards
        output = self._scorer.score([texts[index] for index in kept], [references[index] for index in kept])
        for index, value in zip(kept, self._values(output, kept), strict=True):
            rewards[index] = None if value is None else self.sign * value
        return rewards

    def _values(self, output: ScorerOutput, indices: Sequence[int]) -> list[float | None]:
        for group in output.groups:
            scores = group.per_study()
            if self.key not in scores:
                continue
            # A study without a score has clean statistics and the score NaN; NaN in the statistics is a fault.
            broken = ~np.isfinite(np.asarray(group.values, dtype=float)).all(axis=1)
            broken |= np.isinf(scores[self.key])
            if broken.any():
                sample = indices[int(np.flatnonzero(broken)[0])]
                raise DataError(
                    f"{self.scorer.name} gave NaN for {self.key!r} of sample {sample} of the batch. A reward of NaN "
                    "would spoil the whole update; look at this sample."
                )
            return [None if np.isnan(value) else float(value) for value in scores[self.key]]
        known = sorted(name for group in output.groups for name in group.corpus())
        reason = output.absent.get(self.key)
        raise ConfigError(
            f"{self.scorer.name} has no score {self.key!r}" + (f": {reason}." if reason else f"; it has {known}.")
        )


def _text(completion: Any, index: int) -> str:
    """The report in a completion: the text itself, or what the assistant said last."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(message, Mapping) for message in completion):
        said = [message for message in completion if message.get("role", "assistant") == "assistant"]
        if not said:
            return ""
        content = said[-1].get("content")
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if isinstance(content, Sequence):
            return "".join(str(part["text"]) for part in content if part.get("type") == "text")
    raise DataError(f"Completion {index} is a {type(completion).__name__}, neither a text nor a list of messages.")


def make_reward_fn(
    metric: Any, key: str | None = None, *, reference: str = "reference", maximize: bool = True, **settings: Any
) -> ReportReward:
    """A TRL reward function from a metric.

    Args:
        metric: a name that `rrg_hf.metrics.load` knows, a module it returned, or a `ReportScorer`.
        key, reference, maximize: see `ReportReward`.
        settings: of `rrg_hf.metrics.load`, where `metric` is a name.

    Raises:
        ConfigError: an unknown metric, key or setting.
    """
    if isinstance(metric, str):
        from . import load

        metric = load(metric, **settings)
    elif settings:
        raise ConfigError(f"The settings {sorted(settings)} come too late: the metric is built already.")
    scorer = metric if isinstance(metric, ReportScorer) else getattr(metric, "scorer", None)
    if not isinstance(scorer, ReportScorer):
        raise ConfigError(
            f"{type(metric).__name__} is no report metric. Give a name or what rrg_hf.metrics.load returned."
        )
    return ReportReward(scorer, key, reference=reference, maximize=maximize)
