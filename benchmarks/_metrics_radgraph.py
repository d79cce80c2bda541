"""Part of benchmarks/metrics.py: RadGraph's reader against its bare encoder and against one report at a time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _metrics_texts import bert_tokenizer
from transformers import BertModel

from rrg_hf.metrics.radgraph import RadGraphReader
from rrg_hf.modeling.radgraph import RadGraphConfig, RadGraphModel


def run(texts: list[str]) -> dict[str, Any]:
    """Seconds of the bare encoder, the reader, and the reader one report at a time, on the same distinct texts.

    With random weights nearly every span is an entity, so the heads do more work than they do for a trained network.
    """
    distinct = list(dict.fromkeys(texts))
    with tempfile.TemporaryDirectory() as scratch:
        bert_tokenizer(Path(scratch))
        torch.manual_seed(0)
        RadGraphModel(RadGraphConfig()).save_pretrained(scratch)
        reader = RadGraphReader(scratch, device="cpu")
        encoder_s = min(encoder_seconds(reader, distinct, size) for size in (8, 16, 32))
        start = time.perf_counter()
        graphs = reader(texts)
        reader_s = time.perf_counter() - start
        single = RadGraphReader(scratch, device="cpu", batch_size=1)
        start = time.perf_counter()
        for text in texts:  # as the published package does: no batches, no memory of texts read before
            single.read_batch([text])
        single_s = time.perf_counter() - start
    return {
        "distinct": len(distinct),
        "entities_per_report": sum(len(graph["entities"]) for graph in graphs) / len(graphs),
        "encoder_s": encoder_s,
        "reader_s": reader_s,
        "one_by_one_s": single_s,
        "ratio_to_encoder": encoder_s / reader_s,
        "ratio_to_single": single_s / reader_s,
    }


def encoder_seconds(reader: RadGraphReader, texts: list[str], size: int) -> float:
    """The compute limit: forward passes over length-sorted batches of the same pieces, tokenisation not counted."""
    encode = reader._encoder
    encoder: BertModel = reader._model.encoder
    reports = sorted(encode(texts), key=encode.length)
    batches = [encode.collate(reports[index : index + size]) for index in range(0, len(reports), size)]
    start = time.perf_counter()
    with torch.inference_mode():
        for batch in batches:
            encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return time.perf_counter() - start
