"""The phantom: procedural frontal chest radiographs with reports and known truth, for demos, tests and experiments.

No patient's data goes in and none comes out: images are drawn by formulas, reports are written by a grammar. Rows
carry source "phantom" and ids that start with "phantom-", so they cannot be taken for real studies. What a model
learns here says nothing about real radiographs.
"""

from __future__ import annotations

from .anatomy import ANATOMY_NODES
from .dataset import PHANTOM_SPLITS, PhantomStudy, phantom_dataset, phantom_splits, phantom_study
from .facts import Fact
from .sheet import contact_sheet

__all__ = [
    "ANATOMY_NODES",
    "PHANTOM_SPLITS",
    "Fact",
    "PhantomStudy",
    "contact_sheet",
    "phantom_dataset",
    "phantom_splits",
    "phantom_study",
]
