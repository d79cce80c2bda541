"""RadGraph-F1 of generated reports as an `evaluate` module; see README.md beside it."""

from __future__ import annotations

from typing import Any

import rrg_hf.metrics.module as module
from rrg_hf.metrics.radgraph import RadGraphF1, load_radgraph_f1

_DESCRIPTION = (
    "RadGraph-F1: agreement of the clinical entities and relations that a generated and a reference report state, as "
    "the rewards simple, partial and complete. Higher is better."
)

_CITATION = """\
@inproceedings{delbrouck2022improving,
  title = {Improving the Factual Correctness of Radiology Report Generation with Semantic Rewards},
  author = {Delbrouck, Jean-Benoit and Chambon, Pierre and Bluethgen, Christian and Tsai, Emily and Almusa, Omar and
            Langlotz, Curtis},
  booktitle = {Findings of EMNLP}, year = {2022}
}
@inproceedings{jain2021radgraph,
  title = {{RadGraph}: Extracting Clinical Entities and Relations from Radiology Reports},
  author = {Jain, Saahil and Agrawal, Ashwin and Saporta, Adriel and others},
  booktitle = {NeurIPS Datasets and Benchmarks}, year = {2021}
}
@inproceedings{delbrouck2024radgraphxl,
  title = {{RadGraph-XL}: A Large-Scale Expert-Annotated Dataset for Entity and Relation Extraction from Radiology
           Reports},
  author = {Delbrouck, Jean-Benoit and Chambon, Pierre and Chen, Zhihong and others},
  booktitle = {Findings of ACL}, year = {2024}
}
"""

_INPUTS = """
Args:
    predictions (list of str): generated reports; "" is a report that says nothing.
    references (list of str): reference reports in the same order.
    per_sample (bool): also return every score of each pair.
Settings of `evaluate.load`:
    backend: "radgraph-xl" (default), "radgraph", "modern-radgraph-xl", "echograph", or "rules", without weights.
    model: folder or Hub id of a converted network; by default the prepared one.
    lowercase: True compares entity tokens in lower case; False gives the numbers of radgraph 0.1.18.
    revision, device, dtype, batch_size, cache_dir: see `rrg_hf.metrics.radgraph.load_graph_reader`.
Returns:
    dict: radgraph_simple, radgraph_partial, radgraph_complete, each also with _precision and _recall;
    radgraph_entity_f1, radgraph_relation_f1, radgraph_combined; "protocol". All names start with rules_ for "rules".
Examples:
    >>> import evaluate
    >>> radgraph = evaluate.load("radgraph_f1", backend="rules")  # doctest: +SKIP
    >>> scores = radgraph.compute(
    ...     predictions=["No pleural effusion."], references=["No pleural effusion."]
    ... )  # doctest: +SKIP
    >>> scores["rules_radgraph_partial"]  # doctest: +SKIP
    1.0
"""


class RadGraphF1Metric(module.ReportMetric):
    """See `rrg_hf.metrics.radgraph.RadGraphF1`."""

    description = _DESCRIPTION
    citation_text = _CITATION
    inputs_text = _INPUTS
    reference_urls = ("https://github.com/Stanford-AIMI/radgraph", "https://aclanthology.org/2022.findings-emnlp.319")
    known_settings = ("backend", "model", "lowercase", "revision", "device", "dtype", "batch_size", "cache_dir")

    def build_scorer(self, **settings: Any) -> RadGraphF1:
        return load_radgraph_f1(**settings)
