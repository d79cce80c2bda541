"""LossMeter: weighted means between two lines of the log."""

from __future__ import annotations

import torch
from accelerate import Accelerator

from rrg_hf.trainers.loss_meter import LossMeter


def test_means_are_weighted_and_reset() -> None:
    accelerator = Accelerator(cpu=True)
    meter = LossMeter(["a", "b"])
    assert meter.pop(accelerator) == {}
    for value, weight in ((1.0, 1), (4.0, 3)):
        total = torch.tensor(value * weight)
        meter.add({"a": total, "b": 2 * total}, torch.tensor(weight))
    assert meter.pop(accelerator) == {"a": 3.25, "b": 6.5}
    assert meter.pop(accelerator) == {}


def test_each_loss_may_count_other_items() -> None:
    accelerator = Accelerator(cpu=True)
    meter = LossMeter(["token_loss", "label_loss", "never"])
    meter.add(
        {"token_loss": torch.tensor(10.0), "label_loss": torch.tensor(3.0)},
        {"token_loss": torch.tensor(5), "label_loss": torch.tensor(2)},
    )
    meter.add({"token_loss": torch.tensor(2.0)}, torch.tensor(1))
    assert meter.pop(accelerator) == {"token_loss": 2.0, "label_loss": 1.5}
