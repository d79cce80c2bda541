"""CheXbert-F1 of generated reports as an `evaluate` module; see README.md beside it."""

from __future__ import annotations

from typing import Any

import rrg_hf.metrics.module as module
from rrg_hf.metrics.chexbert import CheXbertF1, load_chexbert_f1

_DESCRIPTION = (
    "CheXbert-F1: agreement of the 14 CheXpert observations that a generated and a reference report state, as "
    "precision, recall and F1 over all 14 and over the top 5. Higher is better."
)

_CITATION = """\
@inproceedings{smit2020chexbert,
  title = {{CheXbert}: Combining Automatic Labelers and Expert Annotations for Accurate Radiology Report Labeling Using
           {BERT}},
  author = {Smit, Akshay and Jain, Saahil and Rajpurkar, Pranav and Pareek, Anuj and Ng, Andrew and Lungren, Matthew},
  booktitle = {EMNLP}, year = {2020}
}
"""

_INPUTS = """
Args:
    predictions (list of str): generated reports; "" is a report that says nothing.
    references (list of str): reference reports in the same order.
    per_sample (bool): also return every score of each pair, and the observations missed and invented.
Settings of `evaluate.load`:
    backend: "chexbert" (default), or "rules", which needs no weights and whose scores are called rules_...
    model: folder or Hub id of a converted CheXbert; by default the prepared one.
    policy: "uncertain_as_positive" (default), "uncertain_as_negative" or "uncertain_ignored".
    zero_division: value of 0/0; default 0.
    similarity: False leaves chexbert_similarity and its vectors out.
    revision, device, dtype, batch_size, cache_dir: how the network runs.
Returns:
    dict: chexbert_{micro,macro,weighted,samples}_{precision,recall,f1}[_top5], chexbert_label_accuracy[_top5],
    chexbert_exact_match[_top5], chexbert_similarity, "observations" (the table per observation) and "protocol".
Examples:
    >>> import evaluate
    >>> chexbert = evaluate.load("chexbert_f1", backend="rules")  # doctest: +SKIP
    >>> scores = chexbert.compute(
    ...     predictions=["Small left pleural effusion."], references=["Pleural effusion and cardiomegaly."]
    ... )  # doctest: +SKIP
    >>> scores["rules_micro_recall"]  # doctest: +SKIP
    0.5
"""


class CheXbertF1Metric(module.ReportMetric):
    """See `rrg_hf.metrics.chexbert.CheXbertF1`."""

    description = _DESCRIPTION
    citation_text = _CITATION
    inputs_text = _INPUTS
    reference_urls = ("https://github.com/stanfordmlgroup/CheXbert", "https://aclanthology.org/2020.emnlp-main.117")
    known_settings = (
        "backend", "model", "policy", "zero_division", "similarity", "revision", "device", "dtype",
        "batch_size", "cache_dir",
    )  # fmt: skip

    def build_scorer(self, **settings: Any) -> CheXbertF1:
        return load_chexbert_f1(**settings)
