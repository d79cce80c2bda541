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
        self.weight: torch.Tensor | float = 0.0

    def add(self, totals: Mapping[str, torch.Tensor], weight: torch.Tensor) -> None:
        for name in self.names:
            self.totals[name] = self.totals[name] + totals[name].double()
        self.weight = self.weight + weight.double()

    def pop(self, accelerator: Any) -> dict[str, float]:
        values = [torch.as_tensor(value, dtype=torch.float64) for value in (*self.totals.values(), self.weight)]
        sums = torch.stack([value.to(accelerator.device) for value in values])
        if accelerator.num_processes > 1:
            sums = accelerator.reduce(sums, reduction="sum")
        self.reset()
        *totals, weight = sums.tolist()
        return {name: total / weight for name, total in zip(self.names, totals, strict=True)} if weight else {}
