"""RadCliQ v0 and v1 of generated reports as an `evaluate` module; see README.md beside it."""

from __future__ import annotations

from typing import Any

import rrg_hf.metrics.module as module
from rrg_hf.metrics.radcliq import RadCliQ, load_radcliq

_DESCRIPTION = (
    "RadCliQ: the number of errors a radiologist would count in a report, predicted from RadGraph, BERTScore, "
    "CheXbert similarity and BLEU-2 with the published coefficients. Lower is better; negative values are possible."
)

_CITATION = """\
@article{yu2023evaluating,
  title = {Evaluating progress in automatic chest {X}-ray radiology report generation},
  author = {Yu, Feiyang and Endo, Mark and Krishnan, Rayan and others},
  journal = {Patterns}, volume = {4}, number = {9}, year = {2023}
}
"""

_INPUTS = """
Args:
    predictions (list of str): generated reports; "" is a report that says nothing.
    references (list of str): reference reports in the same order.
    per_sample (bool): also return RadCliQ and its four components of each pair.
Settings of `evaluate.load`:
    version: "v1" or "v0".
    radgraph_model, chexbert_model, bertscore_model: folders or Hub ids; by default the prepared ones.
    reciprocal: True adds 1 / mean, which some leaderboards print.
    bleu, idf, device, dtype, batch_size, cache_dir: see `rrg_hf.metrics.radcliq.load_radcliq`.
Returns:
    dict: radcliq_v1 (or radcliq_v0), radcliq_radgraph_combined, radcliq_bertscore, radcliq_semb_score,
    radcliq_bleu_score, "protocol".
Examples:
    >>> import evaluate
    >>> radcliq = evaluate.load("radcliq")  # doctest: +SKIP
    >>> scores = radcliq.compute(
    ...     predictions=["pleural effusion"], references=["pleural effusion"]
    ... )  # doctest: +SKIP
    >>> round(scores["radcliq_v1"], 3)  # doctest: +SKIP
    -0.818
"""


class Radcliq(module.ReportMetric):
    """See `rrg_hf.metrics.radcliq.RadCliQ`."""

    description = _DESCRIPTION
    citation_text = _CITATION
    inputs_text = _INPUTS
    reference_urls = ("https://github.com/rajpurkarlab/CXR-Report-Metric",)
    known_settings = (
        "version", "radgraph_model", "chexbert_model", "bertscore_model", "reciprocal", "bleu",
        "idf", "device", "dtype", "batch_size", "cache_dir",
    )  # fmt: skip

    def build_scorer(self, **settings: Any) -> RadCliQ:
        return load_radcliq(**settings)
