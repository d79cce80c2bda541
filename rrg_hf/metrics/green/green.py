"""GREEN of generated reports as an `evaluate` module; see README.md beside it."""

from __future__ import annotations

from typing import Any

import rrg_hf.metrics.module as module
from rrg_hf.metrics.green import Green, load_green

_DESCRIPTION = (
    "GREEN: a fine-tuned language model lists the clinically significant errors of a report and the findings that "
    "match its reference; the score is matched / (matched + errors). Answers that cannot be read have no score: they "
    "are counted and left out of the mean."
)

_CITATION = """\
@inproceedings{ostmeier2024green,
  title = {{GREEN}: Generative Radiology Report Evaluation and Error Notation},
  author = {Ostmeier, Sophie and Xu, Justin and Chen, Zhihong and others},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP 2024},
  year = {2024}
}
"""

_INPUTS = """
Args:
    predictions (list of str): generated reports; "" is a report that says nothing.
    references (list of str): reference reports in the same order.
    per_sample (bool): also return the score, the matched findings and the errors of each pair.
Settings of `evaluate.load`:
    model: folder or Hub id of a GREEN judge; by default the prepared one (`rrg metrics prepare green`).
    template: another prompt, with {reference} and {candidate} once each; template_file: the release archive of
        green-score to read the published one from.
    parse: "strict" (unreadable answers have no score) or "published" (they score 0).
    answers: True adds the judge's text of each pair, which quotes the reports.
    backend: "green", the only one.
    revision, device, dtype, batch_size, max_tokens, max_length, words, add_eos, cache_dir: see
        `rrg_hf.metrics.green.GreenReader`.
Returns:
    dict: green, green_unparsable, green_no_room, "protocol".
Examples:
    >>> import evaluate
    >>> green = evaluate.load("green", model="StanfordAIMI/GREEN-radllama2-7b")  # doctest: +SKIP
    >>> green.compute(predictions=["No effusion."], references=["No pleural effusion."])["green"]  # doctest: +SKIP
    1.0
"""


class GreenMetric(module.ReportMetric):
    """See `rrg_hf.metrics.green.Green`."""

    description = _DESCRIPTION
    citation_text = _CITATION
    inputs_text = _INPUTS
    reference_urls = ("https://github.com/Stanford-AIMI/GREEN",)
    known_settings = (
        "backend", "model", "template", "template_file", "parse", "answers", "revision", "device",
        "dtype", "batch_size", "max_tokens", "max_length", "words", "add_eos", "cache_dir",
    )  # fmt: skip

    def build_scorer(self, **settings: Any) -> Green:
        return load_green(**settings)
