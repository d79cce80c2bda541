"""BLEU, ROUGE-L, CIDEr and METEOR of generated reports as an `evaluate` module; see README.md beside it."""

from __future__ import annotations

from typing import Any

import rrg_hf.metrics.module as module
from rrg_hf.metrics.nlg_scorer import ReportNlg as ReportNlgScorer

_DESCRIPTION = (
    "BLEU-1 to BLEU-4, ROUGE-L and CIDEr as report-generation papers compute them (pycocoevalcap), METEOR 1.5 or "
    "nltk's METEOR under their own names, with selectable text preparation. Higher is better."
)

_CITATION = """\
@inproceedings{papineni2002bleu,
  title = {{BLEU}: a method for automatic evaluation of machine translation},
  author = {Papineni, Kishore and Roukos, Salim and Ward, Todd and Zhu, Wei-Jing},
  booktitle = {Proceedings of ACL}, year = {2002}
}
@inproceedings{lin2004rouge,
  title = {{ROUGE}: A package for automatic evaluation of summaries},
  author = {Lin, Chin-Yew}, booktitle = {Text Summarization Branches Out}, year = {2004}
}
@inproceedings{vedantam2015cider,
  title = {{CIDEr}: Consensus-based image description evaluation},
  author = {Vedantam, Ramakrishna and Zitnick, C. Lawrence and Parikh, Devi},
  booktitle = {Proceedings of CVPR}, year = {2015}
}
@inproceedings{denkowski2014meteor,
  title = {Meteor Universal: Language specific translation evaluation for any target language},
  author = {Denkowski, Michael and Lavie, Alon},
  booktitle = {Proceedings of the Workshop on Statistical Machine Translation}, year = {2014}
}
"""

_INPUTS = """
Args:
    predictions (list of str): generated reports; "" is a report that says nothing.
    references (list of str): whole reference texts in the same order, never cut to a training length.
    per_sample (bool): also return every score of each pair.
Settings of `evaluate.load`:
    cleaning: "default", "r2gen_mimic", "r2gengpt_mimic", "r2gen_iu" or "none", for both sides.
    tokenizer: "default", "whitespace", "full_stop" or "ptb" (needs Java); by default the one that fits the cleaning.
    meteor: "auto", "java", "nltk", "both" or None.
    rouge_score: True adds the rouge_score package's ROUGE-1, -2 and -L.
Returns:
    dict: bleu_1 .. bleu_4, rouge_l, cider, meteor_1.5_java or meteor_nltk, "protocol"; CIDEr of a single study is
    absent.
Examples:
    >>> import evaluate
    >>> nlg = evaluate.load("report_nlg", meteor=None)  # the folder or the Space of this module
    >>> scores = nlg.compute(
    ...     predictions=["The lungs are clear.", "Mild cardiomegaly."],
    ...     references=["The lungs are clear.", "Mild cardiomegaly without edema."],
    ... )
    >>> round(scores["bleu_1"], 3)
    0.779
"""


class ReportNlg(module.ReportMetric):
    """See `rrg_hf.metrics.nlg_scorer.ReportNlg`."""

    description = _DESCRIPTION
    citation_text = _CITATION
    inputs_text = _INPUTS
    reference_urls = ("https://github.com/salaniz/pycocoevalcap",)
    known_settings = ("cleaning", "tokenizer", "meteor", "rouge_score")

    def build_scorer(self, **settings: Any) -> ReportNlgScorer:
        return ReportNlgScorer(**settings)
