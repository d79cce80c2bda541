"""Counts what a reader keeps and drops, so that nothing goes missing silently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """What became of every item of one kind.

    Attributes:
        unit: what is counted, in the plural: "studies", "images".
        read: how many were met.
        dropped: reason -> ids of the dropped ones, in the order met.
        kept: how many remain.
    """

    unit: str
    read: int = 0
    dropped: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, item: str) -> None:
        """Count one dropped item under its (first) reason."""
        self.dropped.setdefault(reason, []).append(item)

    @property
    def kept(self) -> int:
        return self.read - sum(len(items) for items in self.dropped.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON form: counts, and every dropped id by reason."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason: {"count": len(items), "ids": items} for reason, items in self.dropped.items()},
        }
