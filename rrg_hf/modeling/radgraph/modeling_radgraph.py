"""RadGraph's network: a text encoder, entities among all short spans, and relations between the best of them.

Sources: RadGraph (Jain et al. 2021) and RadGraph-XL (Delbrouck et al. 2024), whose released networks are DyGIE++
(Wadden et al. 2019) without its coreference and event parts. Many reports are read at once: the encoder sees their
segments as the rows of a batch, and all that follows works on the words of all reports laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import BertModel
from transformers.models.modernbert.modeling_modernbert import ModernBertModel
from transformers.utils.generic import ModelOutput

from .configuration_radgraph import RadGraphConfig
from .layers_radgraph import RadGraphPairScorer, RadGraphSpanScorer, Spans, enumerate_spans
from .words_radgraph import EncodedReport, ReportEncoder


@dataclass
class RadGraphOutput(ModelOutput):
    """Output of [`RadGraphModel`]: N candidate spans of all reports, report by report.

    Attributes:
        span_start, span_end: (N,) first and last word of each span, counted over the words of all reports.
        span_counts: (B,) candidate spans of each report.
        ner_logits: (N, labels) entity scores; the null label's column is 0.
        mention_scores: (N,) how likely a span takes part in relations.
        relation_candidates: (N,) True for the spans among which relations were looked for.
        relations: (R, 3) first span, second span, and relation label; spans are indices into the N.
    """

    span_start: torch.Tensor | None = None
    span_end: torch.Tensor | None = None
    span_counts: torch.Tensor | None = None
    ner_logits: torch.Tensor | None = None
    mention_scores: torch.Tensor | None = None
    relation_candidates: torch.Tensor | None = None
    relations: torch.Tensor | None = None


class RadGraphPreTrainedModel(PreTrainedModel):
    config: RadGraphConfig
    config_class = RadGraphConfig
    base_model_prefix = "radgraph"
    input_modalities = ["text"]  # noqa: RUF012 (transformers declares it on the base class)
    _no_split_modules = ["BertLayer", "ModernBertEncoderLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True


class RadGraphModel(RadGraphPreTrainedModel):
    """Entities and relations of radiology reports.

    Args:
        config: shapes, labels and choices.
    """

    def __init__(self, config: RadGraphConfig) -> None:
        super().__init__(config)
        encoder = config.encoder_config
        self.encoder: Any
        if encoder.model_type == "bert":
            self.encoder = BertModel(encoder, add_pooling_layer=False)
        else:
            self.encoder = ModernBertModel(encoder)
        span_size = 2 * encoder.hidden_size + config.feature_size
        self.width_embedding = nn.Embedding(config.num_width_embeddings, config.feature_size)
        self.ner_scorer = RadGraphSpanScorer(
            span_size, config.ner_hidden_sizes, len(config.ner_labels) - 1, config.head_dropout
        )
        self.mention_scorer = RadGraphSpanScorer(span_size, config.mention_hidden_sizes, 1, config.head_dropout)
        self.relation_scorer = RadGraphPairScorer(
            3 * span_size, config.relation_hidden_sizes, len(config.relation_labels), config.head_dropout
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def embed_words(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        word_index: torch.Tensor,
        total_words: int,
        ids_per_pass: int | None = None,
    ) -> torch.Tensor:
        """Word vectors: the mean of the word's pieces in the encoder's last layer, 0 for a word without pieces.

        Args:
            input_ids, attention_mask, word_index: see `forward`.
            total_words: words of all reports.
            ids_per_pass: padded ids per encoder pass at most, but at least one segment; rows of like length share a
                pass and its padding is cut, which pays on a CPU. None passes all at once.

        Returns:
            (total_words, H).
        """
        words = torch.zeros(
            total_words, self.config.encoder_config.hidden_size, dtype=self.dtype, device=input_ids.device
        )
        pieces = words.new_zeros(total_words)
        lengths = attention_mask.sum(1)
        order = lengths.argsort(descending=True, stable=True)
        while len(order):
            width = int(lengths[order[0]])
            count = len(order) if ids_per_pass is None else max(1, ids_per_pass // width)
            rows, order = order[:count], order[count:]
            hidden = self.encoder(
                input_ids=input_ids[rows, :width], attention_mask=attention_mask[rows, :width]
            ).last_hidden_state
            owner = word_index[rows, :width]
            kept = owner >= 0
            words = words.index_add(0, owner[kept], hidden[kept].to(words.dtype))
            pieces = pieces.index_add(0, owner[kept], torch.ones_like(owner[kept], dtype=pieces.dtype))
        return words / pieces.clamp(min=1)[:, None]

    def relation_budget(self, num_words: torch.Tensor) -> list[int]:
        """Spans of each report that may take part in relations: ceil(words x spans_per_word).

        In float32 like the published network, whose product may round above a whole number.
        """
        return torch.ceil(num_words.float() * self.config.spans_per_word).long().tolist()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        word_index: torch.Tensor,
        num_words: torch.Tensor,
        entities_only: bool = True,
        ids_per_pass: int | None = None,
    ) -> RadGraphOutput:
        """Score all spans, then the relations among the best.

        Args:
            input_ids: (S, L) segments with their special tokens, right padded; see `ReportEncoder.collate`.
            attention_mask: (S, L), 0 for padding.
            word_index: (S, L) word of each piece, counted over the words of all reports; -1 for anything else.
            num_words: (B,) words of each report.
            entities_only: look for relations among entities only. A relation of anything else is dropped by the
                scorer, so this saves time and changes no graph.
            ids_per_pass: see `embed_words`.
        """
        words = self.embed_words(input_ids, attention_mask, word_index, int(num_words.sum()), ids_per_pass)
        spans = enumerate_spans(num_words.to(words.device), self.config.max_span_width)
        widths = self.width_embedding.weight
        ner = self.ner_scorer.score(words, widths, spans)
        ner_logits = torch.cat([ner.new_zeros(len(ner), 1), ner], dim=1)
        mention_scores = self.mention_scorer.score(words, widths, spans).squeeze(-1)

        candidates = self._best_mentions(mention_scores, spans.counts, self.relation_budget(num_words.cpu()))
        if entities_only:
            candidates = candidates & (ner_logits.argmax(1) != 0)
        return RadGraphOutput(
            span_start=spans.start,
            span_end=spans.end,
            span_counts=torch.tensor(spans.counts, device=words.device),
            ner_logits=ner_logits,
            mention_scores=mention_scores,
            relation_candidates=candidates,
            relations=self._relations(words, spans, mention_scores, candidates),
        )

    def _best_mentions(self, scores: torch.Tensor, counts: list[int], budget: list[int]) -> torch.Tensor:
        """Mask of each report's best spans. Reports are taken one by one, so that ties never depend on the batch."""
        best = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        first = 0
        for count, keep in zip(counts, budget, strict=True):
            best[first + scores[first : first + count].topk(min(keep, count)).indices] = True
            first += count
        return best

    def _relations(
        self, words: torch.Tensor, spans: Spans, mention_scores: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        """(R, 3) relations by first span, then second span, report by report."""
        index = candidates.nonzero().squeeze(1)
        if not len(index):
            return index.new_zeros(0, 3)
        report = torch.arange(len(spans.counts), device=index.device).repeat_interleave(
            torch.tensor(spans.counts, device=index.device)
        )[index]
        found = [index.new_zeros(0, 3)]
        for members in index.split(torch.bincount(report, minlength=len(spans.counts)).tolist()):
            if not len(members):
                continue
            start, end = spans.start[members], spans.end[members]
            vectors = torch.cat([words[start], words[end], self.width_embedding.weight[end - start]], dim=1)
            mention = mention_scores[members]
            logits = self.relation_scorer.score(vectors) + (mention[:, None] + mention)[..., None]
            best, label = logits.max(dim=-1)
            a, b = (best > 0).nonzero(as_tuple=True)  # the null label's score is 0 and wins ties
            found.append(torch.stack([members[a], members[b], label[a, b]], dim=1))
        return torch.cat(found)

    def report_encoder(self, tokenizer: Any) -> ReportEncoder:
        """What turns reports into this network's inputs."""
        config = self.config
        return ReportEncoder(tokenizer, config.preprocessing, config.segments, config.max_length)

    @torch.no_grad()
    def annotate(self, texts: Sequence[str], tokenizer: Any, ids_per_pass: int | None = None) -> list[dict[str, Any]]:
        """Graphs of a few reports, read as one batch.

        Args:
            texts: reports; "" is read as "None", as radgraph does.
            tokenizer: the encoder's.
            ids_per_pass: see `embed_words`.

        Returns:
            One annotation per report; see `annotate_encoded`.
        """
        encoder = self.report_encoder(tokenizer)
        return self.annotate_encoded(encoder(texts), encoder, ids_per_pass)

    @torch.no_grad()
    def annotate_encoded(
        self, reports: Sequence[EncodedReport], encoder: ReportEncoder, ids_per_pass: int | None = None
    ) -> list[dict[str, Any]]:
        """`annotate` for reports that are already pieces.

        Returns:
            One annotation per report in the published format: {"text": words joined by blanks, "entities": {"1":
            {"tokens", "label", "start_ix", "end_ix", "relations": [[label, entity number]]}}, "data_source": None,
            "data_split": "inference"}. Word positions count from 0 and end_ix is included.
        """
        inputs = {name: tensor.to(self.device) for name, tensor in encoder.collate(reports).items()}
        output = self(**inputs, ids_per_pass=ids_per_pass)
        if not torch.isfinite(output.ner_logits).all():
            raise ValueError(f"Scores that are no finite numbers, in {self.dtype}. Use float32.")
        label = output.ner_logits.argmax(1)
        entity = label.nonzero().squeeze(1)
        rows = torch.stack([entity, output.span_start[entity], output.span_end[entity], label[entity]], 1).tolist()
        relations: dict[int, list[tuple[int, int]]] = {}
        for a, b, kind in output.relations.tolist():
            relations.setdefault(a, []).append((b, kind))

        annotations = []
        position, first_span, first_word = 0, 0, 0
        for report, count in zip(reports, output.span_counts.tolist(), strict=True):
            begin = position
            while position < len(rows) and rows[position][0] < first_span + count:
                position += 1
            own = rows[begin:position]
            number = {row[0]: str(place) for place, row in enumerate(own, start=1)}
            entities = {}
            for span, start, end, kind in own:
                start, end = start - first_word, end - first_word
                entities[number[span]] = {
                    "tokens": " ".join(report.words[start : end + 1]),
                    "label": self.config.ner_labels[kind],
                    "start_ix": start,
                    "end_ix": end,
                    "relations": [
                        [self.config.relation_labels[relation], number[b]]
                        for b, relation in relations.get(span, ())
                        if b in number
                    ],
                }
            annotations.append(
                {
                    "text": " ".join(report.words),
                    "entities": entities,
                    "data_source": None,
                    "data_split": "inference",
                }
            )
            first_span += count
            first_word += len(report.words)
        return annotations


__all__ = ["RadGraphModel", "RadGraphOutput", "RadGraphPreTrainedModel"]
