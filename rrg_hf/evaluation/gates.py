"""How far the gates of a LEAD model open while it writes: one number per decoder layer and token of a report.

Source: "Layer-wise Expert-aligned Decoding for Faithful Radiology Report Generation" (arXiv 2602.04617), Sec. II-C4:
the gate g scales the expert message that a layer adds to a token's state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .experts import on_device, require_experts


@dataclass(frozen=True)
class ReportGates:
    """Gate strength over a written report.

    Attributes:
        report: the text the spans refer to.
        tokens: (start, end) of each token in it, in order.
        gates: float32 (L, T): for each decoder layer and token, the mean over the gate's units at the position that
            wrote the token, which is the one before it. 0 lets nothing of the experts' message through, 1 all of it.
        words: (start, end) of each word.
        word_gates: float32 (L, W): mean over the tokens of each word.
    """

    report: str
    tokens: tuple[tuple[int, int], ...]
    gates: np.ndarray
    words: tuple[tuple[int, int], ...]
    word_gates: np.ndarray

    @property
    def layer_means(self) -> np.ndarray:
        """(L,) mean over the tokens."""
        return self.gates.mean(axis=1)

    def strongest_words(self, count: int = 10) -> list[tuple[str, float]]:
        """The words with the widest gates, mean over layers: (word, strength), strongest first."""
        means = self.word_gates.mean(axis=0)
        order = np.argsort(-means, kind="stable")[:count]
        return [(self.report[slice(*self.words[at])], float(means[at])) for at in order]


def report_gates(
    model: Any,
    processor: Any,
    image: Any,
    report: str,
    *,
    indication: str | None = None,
    observations: Sequence[str] | None = None,
) -> ReportGates | None:
    """Read the gates in one forward pass over image, prompt and report.

    Args:
        model: a LEAD model, or a PEFT model around one.
        processor: its processor.
        image: as the processor takes it.
        report: the text whose writing is looked at: usually the model's own.
        indication: as it was given for writing.
        observations: the predicted observations that the prompt named, with expert prompting.

    Returns:
        The gates; None where the model has none (fusion "add" or "none"), or the report no word.

    Raises:
        ConfigError: a model without experts.
    """
    import torch

    config = require_experts(model)
    report = report.strip()
    if config.fusion != "gate" or not report:
        return None
    inputs = processor.build_inputs(
        images=[[image]],
        indication=[indication],
        report=[report],
        observations=None if observations is None else [list(observations)],
    )
    written = torch.nonzero(inputs.pop("labels")[0] != -100)[:-1, 0]  # without the end token
    encoded = processor.tokenizer(report, add_special_tokens=False, return_offsets_mapping=True)
    if inputs["input_ids"][0, written].tolist() != encoded["input_ids"]:
        raise ValueError(
            "The processor's report tokens are not the tokenizer's own, so they have no place in the text."
        )
    model.eval()
    with torch.no_grad():
        gates = model(**on_device(model, inputs), output_gates=True, logits_to_keep=1).gates
    of_tokens = gates[0][:, (written - 1).to(gates.device)].float().cpu().numpy()
    tokens = tuple((int(start), int(end)) for start, end in encoded["offset_mapping"])
    return gates_of_tokens(report, tokens, of_tokens)


def gates_of_tokens(report: str, tokens: Sequence[tuple[int, int]], gates: np.ndarray) -> ReportGates | None:
    """Put gates per token together to gates per word.

    Args:
        report: the text.
        tokens: (start, end) of each token; a leading blank may belong to it.
        gates: (L, T).

    Returns:
        None where no token ends in a word.
    """
    words, columns = [], []
    for word in re.finditer(r"\S+", report):
        start, end = word.span()
        inside = [at for at, (_, last) in enumerate(tokens) if start < last <= end]
        if inside:  # a word that the tokenizer merges into its neighbour has no token of its own
            words.append((start, end))
            columns.append(gates[:, inside].mean(axis=1))
    if not words:
        return None
    return ReportGates(report, tuple(tokens), np.asarray(gates, np.float32), tuple(words), np.stack(columns, axis=1))
