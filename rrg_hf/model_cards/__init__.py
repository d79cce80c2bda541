"""Model cards, written from what a run recorded."""

from __future__ import annotations

from .card import build_card

__all__ = ["build_card"]
