"""Counting kept and dropped items."""

from __future__ import annotations

from rrg_hf.data.sources.tally import Tally


def test_counts_add_up_and_ids_are_all_kept() -> None:
    tally = Tally("studies")
    tally.read = 10
    for name in ("a", "b", "c"):
        tally.drop("no findings", name)
    tally.drop("malformed XML", "9.xml")
    assert tally.kept == 6
    assert tally.to_dict() == {
        "read": 10,
        "kept": 6,
        "dropped": {
            "no findings": {"count": 3, "ids": ["a", "b", "c"]},
            "malformed XML": {"count": 1, "ids": ["9.xml"]},
        },
    }
