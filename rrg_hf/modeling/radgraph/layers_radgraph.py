"""Heads of RadGraph: feed-forward scorers of spans and of span pairs, and the spans themselves.

A span's vector is [first word; last word; embedding of its width] (DyGIE++). The first linear layer of a span scorer
is therefore a sum of three parts, of which the two word parts are computed once per word instead of once per span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn


@dataclass(frozen=True)
class Spans:
    """All candidate spans of a batch, report by report, by first word and then last word.

    Attributes:
        start: (N,) index of the first word among the words of the batch.
        end: (N,) index of the last word, itself included.
        counts: spans of each report.
    """

    start: torch.Tensor
    end: torch.Tensor
    counts: list[int]


def enumerate_spans(num_words: torch.Tensor, max_width: int) -> Spans:
    """All spans of at most `max_width` words that stay inside their report.

    Args:
        num_words: (B,) words of each report, on the device the spans shall be on.
        max_width: in words.
    """
    ends_of_reports = num_words.cumsum(0).repeat_interleave(num_words)
    start = torch.arange(len(ends_of_reports), device=num_words.device)
    end = start[:, None] + torch.arange(max_width, device=num_words.device)
    inside = end < ends_of_reports[:, None]
    counts = [sum(max(0, words - width) for width in range(min(words, max_width))) for words in num_words.tolist()]
    return Spans(start[:, None].expand_as(end)[inside], end[inside], counts)


class RadGraphFeedForward(nn.Module):
    """Linear layers, each followed by ReLU and dropout, and a linear output.

    Args:
        input_size: width of the input.
        hidden_sizes: widths of the hidden layers.
        output_size: width of the output.
        dropout: in training.
    """

    def __init__(self, input_size: int, hidden_sizes: Sequence[int], output_size: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, hidden_sizes[0])
        self.layers = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(hidden_sizes))
        self.output = nn.Linear(hidden_sizes[-1], output_size)
        self.dropout = nn.Dropout(dropout)

    def from_first(self, projected: torch.Tensor) -> torch.Tensor:
        """Output from what the first linear layer made of the input, bias included."""
        hidden = self.dropout(torch.relu(projected))
        for layer in self.layers:
            hidden = self.dropout(torch.relu(layer(hidden)))
        return self.output(hidden)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.from_first(self.first(inputs))


class RadGraphSpanScorer(RadGraphFeedForward):
    """Scores spans from word vectors and width embeddings without building the span vectors."""

    def score(self, words: torch.Tensor, widths: torch.Tensor, spans: Spans) -> torch.Tensor:
        """Scores of all spans.

        Args:
            words: (n_words, H).
            widths: (max_width, feature_size) embeddings by width - 1.
            spans: N of them.

        Returns:
            (N, output_size).
        """
        size = words.shape[-1]
        weight, bias = self.first.weight, self.first.bias
        first = words @ weight[:, :size].T
        last = words @ weight[:, size : 2 * size].T
        by_width = torch.nn.functional.linear(widths, weight[:, 2 * size :], bias)
        return self.from_first(first[spans.start] + last[spans.end] + by_width[spans.end - spans.start])


class RadGraphPairScorer(RadGraphFeedForward):
    """Scores ordered pairs of spans (a, b) from [a; b; a * b]."""

    def score(self, vectors: torch.Tensor, max_elements: int = 2**22) -> torch.Tensor:
        """Scores of all ordered pairs, a span with itself included.

        The product is the same in both directions, so its part of the first layer is computed once per unordered
        pair.

        Args:
            vectors: (K, D) span vectors of one report.
            max_elements: numbers held at once for products, so that K x K x D never is.

        Returns:
            (K, K, output_size), first axis a.
        """
        count, size = vectors.shape
        weight, bias = self.first.weight, self.first.bias
        as_first = vectors @ weight[:, :size].T + bias
        as_second = vectors @ weight[:, size : 2 * size].T
        of_product = weight[:, 2 * size :].T
        scores = vectors.new_empty(count, count, self.output.out_features)
        upper = torch.triu_indices(count, count, device=vectors.device)
        step = max(1, max_elements // size)
        for begin in range(0, upper.shape[1], step):
            a, b = upper[:, begin : begin + step]
            product = (vectors[a] * vectors[b]) @ of_product
            scores[a, b] = self.from_first(as_first[a] + as_second[b] + product)
            scores[b, a] = self.from_first(as_first[b] + as_second[a] + product)
        return scores
