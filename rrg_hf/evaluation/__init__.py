"""Evaluation: reports against references with intervals and a protocol, paired tests, and the evidence test."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evidence import EvidenceResult, evidence_test, occlude, region_masks
    from .experts import ExpertResult, evaluate_experts, score_experts
    from .gates import ReportGates, report_gates
    from .inputs import read_pairs, read_references, read_reports
    from .pair_index import PairSources
    from .protocol import Protocol
    from .result import EvaluationResult
    from .run import compare_reports, evaluate_reports
    from .settings import ScoreSettings
    from .shards import evaluate_shards

# public name -> the module that defines it; lazy, so that the page or the evidence test alone loads only its own
_PUBLIC = {
    "EvaluationResult": "result",
    "EvidenceResult": "evidence",
    "ExpertResult": "experts",
    "PairSources": "pair_index",
    "Protocol": "protocol",
    "ReportGates": "gates",
    "ScoreSettings": "settings",
    "compare_reports": "run",
    "evaluate_experts": "experts",
    "evaluate_reports": "run",
    "evaluate_shards": "shards",
    "evidence_test": "evidence",
    "occlude": "evidence",
    "read_pairs": "inputs",
    "read_references": "inputs",
    "read_reports": "inputs",
    "region_masks": "evidence",
    "report_gates": "gates",
    "score_experts": "experts",
}

__all__ = [
    "EvaluationResult",
    "EvidenceResult",
    "ExpertResult",
    "PairSources",
    "Protocol",
    "ReportGates",
    "ScoreSettings",
    "compare_reports",
    "evaluate_experts",
    "evaluate_reports",
    "evaluate_shards",
    "evidence_test",
    "occlude",
    "read_pairs",
    "read_references",
    "read_reports",
    "region_masks",
    "report_gates",
    "score_experts",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rrg_hf.evaluation' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
