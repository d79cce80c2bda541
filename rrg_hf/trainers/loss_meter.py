"""`LossMeter`: named losses between two lines of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class LossMeter:
    """Weighted means of named losses since the last `pop`, over all processes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.reset()

    def reset(self) -> None:
        self.totals: dict[str, torch.Tensor | float] = dict.fromkeys(self.names, 0.0)
        self.weights: dict[str, torch.Tensor | float] = dict.fromkeys(self.names, 0.0)

    def add(self, totals: Mapping[str, torch.Tensor], weights: torch.Tensor | Mapping[str, torch.Tensor]) -> None:
        """Add a batch.

        Args:
            totals: of each name, the sum over the batch; a name may be missing.
            weights: over how many items, the same for all names or one for each.
        """
        for name, total in totals.items():
            weight = weights if isinstance(weights, torch.Tensor) else weights[name]
            self.totals[name] = self.totals[name] + total.double()
            self.weights[name] = self.weights[name] + weight.double()

    def pop(self, accelerator: Any) -> dict[str, float]:
        """Means since the last call, in every process; names without an item are left out."""
        values = [
            torch.as_tensor(value, dtype=torch.float64) for value in (*self.totals.values(), *self.weights.values())
        ]
        sums = torch.stack([value.to(accelerator.device) for value in values])
        if accelerator.num_processes > 1:
            sums = accelerator.reduce(sums, reduction="sum")
        self.reset()
        totals, weights = sums.view(2, -1).tolist()
        return {
            name: total / weight for name, total, weight in zip(self.names, totals, weights, strict=True) if weight
        }
