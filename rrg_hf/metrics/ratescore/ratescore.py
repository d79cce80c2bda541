"""RaTEScore of generated reports as an `evaluate` module; see README.md beside it."""

from __future__ import annotations

from typing import Any

import rrg_hf.metrics.module as module
from rrg_hf.metrics.ratescore import RaTEScore, load_ratescore

_DESCRIPTION = (
    "RaTEScore: how similar the medical entities of a generated report and its reference are, weighed by their types "
    "and lowered where one affirms what the other denies. Higher is better."
)

_CITATION = """\
@inproceedings{zhao2024ratescore,
  title = {{RaTEScore}: A Metric for Radiology Report Generation},
  author = {Zhao, Weike and Wu, Chaoyi and Zhang, Xiaoman and Zhang, Ya and Wang, Yanfeng and Xie, Weidi},
  booktitle = {Proceedings of EMNLP}, year = {2024}
}
"""

_INPUTS = """
Args:
    predictions (list of str): generated reports; "" is a report that says nothing.
    references (list of str): whole reference reports in the same order.
    per_sample (bool): also return every score of each pair.
Settings of `evaluate.load`:
    backend: "ratescore" (RaTE-NER and BioLORD; `rrg metrics prepare ratescore`) or "rules", which needs no weights and
        whose keys begin with rules_.
    model: folder with both networks in "ner" and "encoder"; or ner_model and encoder_model, a folder or Hub id each.
    sentences: "pyrush" (published; pip install "rrg_hf[ratescore]") or "rrg_hf".
    matrix: "long", "short", or a JSON file of weights.
    revision, encoder_revision, device, dtype, batch_size, max_tokens, memory, cache_dir: see
        `rrg_hf.metrics.ratescore.RaTEReader`.
Returns:
    dict: ratescore, ratescore_precision, ratescore_recall, ratescore_without_entities, "protocol".
Examples:
    >>> import evaluate
    >>> ratescore = evaluate.load("ratescore", backend="rules")  # the folder or the Space of this module
    >>> scores = ratescore.compute(predictions=["Small left effusion."], references=["Small left effusion."])
    >>> round(scores["rules_ratescore"], 3)
    1.0
"""


class RaTEScoreMetric(module.ReportMetric):
    """See `rrg_hf.metrics.ratescore.RaTEScore`."""

    description = _DESCRIPTION
    citation_text = _CITATION
    inputs_text = _INPUTS
    reference_urls = ("https://github.com/MAGIC-AI4Med/RaTEScore",)
    known_settings = (
        "backend", "model", "ner_model", "encoder_model", "sentences", "matrix", "revision",
        "encoder_revision", "device", "dtype", "batch_size", "max_tokens", "memory", "cache_dir",
    )  # fmt: skip

    def build_scorer(self, **settings: Any) -> RaTEScore:
        return load_ratescore(**settings)
