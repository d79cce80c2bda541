"""Pathology-aware alignment, PALM's second training stage (Sec. 3.3, Eq. 6-13). Training only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers.utils import ModelOutput

from .configuration_palm import PalmConfig
from .modeling_palm import PalmForReportGeneration
from .training_stage_palm import PalmTrainingStage, at_least_float32

_MARGINAL_TOLERANCE = 1e-6


@torch.no_grad()
def sinkhorn_assignment(cost: torch.Tensor, epsilon: float, max_iterations: int = 10_000) -> torch.Tensor:
    """The soft assignment T of samples to prototypes (Eq. 10).

    min over T in U(1/B, 1/K) of <T, C> - epsilon H(T), by POT's log-domain Sinkhorn in float64: plain Sinkhorn
    underflows to an all-zero plan when C / epsilon is large.

    Args:
        cost: C, (B, K).
        epsilon: entropy weight.
        max_iterations: cap; it stops once the marginals hold.

    Returns:
        T, (B, K) in float64 without gradient: rows sum to 1/B, columns to 1/K.

    Raises:
        ImportError: POT is not installed.
        ValueError: a cost that is empty or not finite, or marginals that are still off by more than 1e-6 after
            `max_iterations`.
    """
    try:
        import ot
    except ImportError as error:
        raise ImportError("Pathology-aware alignment needs POT for optimal transport: pip install POT") from error
    if cost.ndim != 2 or 0 in cost.shape:
        raise ValueError(
            f"The cost must be a (samples, prototypes) matrix with entries, got shape {tuple(cost.shape)}."
        )
    if not torch.isfinite(cost).all():
        raise ValueError(
            "The transport cost has NaN or infinite entries: the embeddings diverged. Lower the learning rate or use "
            "float32."
        )
    device = cost.device
    # MPS has no float64.
    cost = (cost.cpu() if device.type == "mps" else cost).double()
    rows = cost.new_full((cost.shape[0],), 1.0 / cost.shape[0])
    columns = cost.new_full((cost.shape[1],), 1.0 / cost.shape[1])
    plan = ot.sinkhorn(
        rows,
        columns,
        cost,
        reg=epsilon,
        method="sinkhorn_log",
        numItermax=max_iterations,
        stopThr=_MARGINAL_TOLERANCE / 10,
        warn=False,  # checked below, as an error
    )
    deviation = max((plan.sum(1) - rows).abs().max().item(), (plan.sum(0) - columns).abs().max().item())
    if not deviation <= _MARGINAL_TOLERANCE:
        raise ValueError(
            f"Sinkhorn's marginals are off by {deviation:.1e} after {max_iterations} iterations (limit "
            f"{_MARGINAL_TOLERANCE:.0e}). Raise `sinkhorn_epsilon` (now {epsilon}) or `sinkhorn_max_iterations`."
        )
    return plan.to(device) if device.type != "mps" else plan.float().to(device)


def prototype_assignment(
    embeddings: torch.Tensor,
    prototypes: torch.Tensor,
    temperature: float,
    epsilon: float,
    max_iterations: int = 10_000,
) -> torch.Tensor:
    """T of Eq. 10 for C = -z p^T / tau, its rows rescaled to distributions over the prototypes.

    Args:
        embeddings: z, (B, D).
        prototypes: p, (K, D).
        temperature: tau.
        epsilon: entropy weight.
        max_iterations: of Sinkhorn.

    Returns:
        (B, K) without gradient, rows sum to 1.
    """
    similarity = embeddings.detach().double() @ prototypes.detach().double().T
    plan = sinkhorn_assignment(-similarity / temperature, epsilon, max_iterations)
    return (plan / plan.sum(dim=1, keepdim=True)).to(embeddings.dtype)


def cross_entropy(targets: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """H(T, softmax(logits)) of Eq. 11 and 12, as a mean over the batch; both (B, K)."""
    return -(targets * nn.functional.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


def contrastive_loss(image_embeds: torch.Tensor, text_embeds: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric InfoNCE over a batch of pairs, both (B, D): the ablation of Table 3."""
    logits = image_embeds @ text_embeds.T / temperature
    pairs = torch.arange(logits.shape[0], device=logits.device)
    return (nn.functional.cross_entropy(logits, pairs) + nn.functional.cross_entropy(logits.T, pairs)) / 2


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks, in rank order. Backward sums each row's gradient over the ranks that used it.

    With every rank computing the loss of the global batch, that sum and the mean which DDP takes afterwards give the
    gradient of one process on the global batch.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([rows.shape[0]], device=rows.device))
        counts = [int(size) for size in sizes]
        # The last batch of an epoch may be shorter on some ranks; collectives want one shape.
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        gathered = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(gathered, padded.contiguous())
        ctx.start, ctx.count = sum(counts[:rank]), counts[rank]
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        summed = gradients[0].contiguous().clone()
        dist.all_reduce(summed)
        return summed[ctx.start : ctx.start + ctx.count]


def gather_rows(rows: torch.Tensor) -> torch.Tensor:
    """(B, ...) of this rank to (global B, ...), differentiably; the input itself when there is one process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return _GatherRows.apply(rows)
    return rows


@dataclass
class PalmAlignmentOutput(ModelOutput):
    """Output of [`PalmForAlignment`].

    Args:
        loss: scalar, L_align of Eq. 13, or the contrastive loss with `alignment="contrastive"`.
        multi_loss: scalar, L_multi of Eq. 11.
        uni_loss: scalar, L_uni of Eq. 12.
        contrastive_loss: scalar, with `alignment="contrastive"` only; the two above are then None.
        image_embeds: z_I of this rank's studies, (B, D).
        text_embeds: z_T of this rank's studies, (B, D).
    """

    loss: torch.Tensor | None = None
    multi_loss: torch.Tensor | None = None
    uni_loss: torch.Tensor | None = None
    contrastive_loss: torch.Tensor | None = None
    image_embeds: torch.Tensor | None = None
    text_embeds: torch.Tensor | None = None


class PalmForAlignment(PalmTrainingStage):
    """Brings images and reports together through shared pathology prototypes (Eq. 6-13).

    The transport problem balances the assignment of one batch over the prototypes. In a batch that is small against
    K = 14 that balance is artificial: gather over ranks (on by default), use a larger batch, or set
    `alignment_queue_size` so that past embeddings join the problem, as SwAV does.

    Build it with `from_palm`; training it trains the model it was built from.

    Args:
        config: shapes and choices.
        palm: the model to train; a new one by default.
        text_tokenizer: the text encoder's tokenizer or a [`PalmProcessor`]. When given, the prototypes start from the
            encoded pathology names; leave it out to go on from the prototypes the model has.
    """

    stage = "align"

    def __init__(
        self, config: PalmConfig, palm: PalmForReportGeneration | None = None, text_tokenizer: Any = None
    ) -> None:
        super().__init__(config, palm)
        size = config.alignment_queue_size
        for name in ("image_queue", "text_queue"):
            self.register_buffer(name, torch.zeros(size, config.projection_dim), persistent=True)
        self.register_buffer("queue_length", torch.zeros((), dtype=torch.long), persistent=True)
        self.image_queue: torch.Tensor
        self.text_queue: torch.Tensor
        self.queue_length: torch.Tensor
        self.finish_init()
        if text_tokenizer is not None:
            self.model.initialize_prototypes(text_tokenizer)

    def forward(
        self,
        pixel_values: torch.Tensor,
        report_input_ids: torch.Tensor,
        report_attention_mask: torch.Tensor | None = None,
    ) -> PalmAlignmentOutput:
        """
        Args:
            pixel_values: (B, 3, H, W), normalised.
            report_input_ids: (B, N_T) ids of the text encoder's tokenizer, one report per image.
            report_attention_mask: (B, N_T).

        Returns:
            [`PalmAlignmentOutput`].
        """
        if pixel_values.shape[0] != report_input_ids.shape[0]:
            raise ValueError(
                f"{pixel_values.shape[0]} images but {report_input_ids.shape[0]} reports. Alignment needs pairs."
            )
        image_embeds = self.model.pool(self.model.get_image_features(pixel_values))
        text_embeds = self.model.pool(self.model.get_text_features(report_input_ids, report_attention_mask))
        image_rows, text_rows = at_least_float32(image_embeds), at_least_float32(text_embeds)
        if self.config.gather_embeddings:
            image_rows, text_rows = gather_rows(image_rows), gather_rows(text_rows)

        if self.config.alignment == "contrastive":
            loss = contrastive_loss(image_rows, text_rows, self.config.alignment_temperature)
            return PalmAlignmentOutput(
                loss=loss, contrastive_loss=loss.detach(), image_embeds=image_embeds, text_embeds=text_embeds
            )

        prototypes = self.model.normalize(at_least_float32(self.model.prototypes))
        image_targets = self._assign(image_rows, prototypes, self.image_queue)
        text_targets = self._assign(text_rows, prototypes, self.text_queue)
        image_logits = image_rows @ prototypes.T / self.config.alignment_temperature
        text_logits = text_rows @ prototypes.T / self.config.alignment_temperature
        multi_loss = cross_entropy(image_targets, text_logits) + cross_entropy(text_targets, image_logits)
        uni_loss = cross_entropy(image_targets, image_logits) + cross_entropy(text_targets, text_logits)
        if self.training:
            self._enqueue(image_rows, text_rows)
        return PalmAlignmentOutput(
            loss=multi_loss + uni_loss,
            multi_loss=multi_loss.detach(),
            uni_loss=uni_loss.detach(),
            image_embeds=image_embeds,
            text_embeds=text_embeds,
        )

    def _assign(self, rows: torch.Tensor, prototypes: torch.Tensor, queue: torch.Tensor) -> torch.Tensor:
        """Targets for `rows`; past embeddings take part in the transport problem but get no loss of their own."""
        past = queue[: int(self.queue_length)] if self.training else queue[:0]
        targets = prototype_assignment(
            torch.cat([rows.detach(), past.to(rows)]),
            prototypes,
            self.config.alignment_temperature,
            self.config.sinkhorn_epsilon,
            self.config.sinkhorn_max_iterations,
        )
        return targets[: rows.shape[0]]

    @torch.no_grad()
    def _enqueue(self, image_rows: torch.Tensor, text_rows: torch.Tensor) -> None:
        """Newest first; the oldest fall out."""
        size = self.config.alignment_queue_size
        if not size:
            return
        for queue, rows in ((self.image_queue, image_rows), (self.text_queue, text_rows)):
            queue.copy_(torch.cat([rows.detach().to(queue), queue])[:size])
        self.queue_length.copy_((self.queue_length + image_rows.shape[0]).clamp(max=size))


__all__ = [
    "PalmAlignmentOutput",
    "PalmForAlignment",
    "contrastive_loss",
    "cross_entropy",
    "gather_rows",
    "prototype_assignment",
    "sinkhorn_assignment",
]
