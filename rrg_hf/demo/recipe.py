"""Sizes and schedules of the demo. All of it is chosen for two CPU cores; none of it is from the paper."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoRecipe:
    """One size of the demo. Studies are phantoms of `image_size` pixels; learning rates are peak values."""

    name: str
    train: int
    validation: int
    test: int
    test_shifted: int
    evidence: int  # studies of `test` in the evidence test
    mem_epochs: float
    align_epochs: float
    generate_epochs: float
    mem_learning_rate: float = 5e-4
    align_learning_rate: float = 1e-3
    generate_learning_rate: float = 2e-3
    # The encoder is pretrained and everything else is not, so it moves slowly; frozen in generate to save time.
    vision_learning_rate: float = 2e-5
    generate_vision_learning_rate: float = 0.0
    mem_batch_size: int = 64
    align_batch_size: int = 64
    generate_batch_size: int = 32
    image_size: int = 112
    projection_dim: int = 128
    text_layers: int = 2
    decoder_layers: int = 2
    fusion_layers: int = 1
    max_new_tokens: int = 128
    bootstrap: int = 1000
    seed: int = 0


FULL = DemoRecipe(
    name="full",
    train=4000,
    validation=100,
    test=300,
    test_shifted=300,
    evidence=150,
    mem_epochs=1.0,
    align_epochs=2.0,
    generate_epochs=7.0,
)
QUICK = DemoRecipe(
    name="quick",
    train=1000,
    validation=32,
    test=96,
    test_shifted=96,
    evidence=32,
    mem_epochs=0.5,
    align_epochs=1.0,
    generate_epochs=5.0,
    bootstrap=200,
)
