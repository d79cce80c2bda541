"""Faster inference of RaTEScore's entity recogniser, a DeBERTa-v2/v3 of transformers."""

from __future__ import annotations

from .positions_ratescore import cache_relative_positions

__all__ = ["cache_relative_positions"]
