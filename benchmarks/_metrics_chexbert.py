"""Part of benchmarks/metrics.py: CheXbert's reader against its bare encoder and against one report at a time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _metrics_texts import bert_tokenizer
from transformers import BertModel

from rrg_hf.metrics.chexbert import CheXbertReader
from rrg_hf.modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling


def run(texts: list[str]) -> dict[str, Any]:
    """Seconds of the bare encoder, the reader, and the reader one report at a time, on the same distinct texts."""
    distinct = list(dict.fromkeys(texts))
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = bert_tokenizer(Path(scratch))
        torch.manual_seed(0)
        CheXbertForReportLabeling(CheXbertConfig()).save_pretrained(scratch)
        model = CheXbertForReportLabeling.from_pretrained(scratch).eval()
        encoder_s = min(encoder_seconds(model.bert, tokenizer, distinct, size) for size in (8, 16, 32))
        reader = CheXbertReader(scratch)
        start = time.perf_counter()
        reader(texts)
        reader_s = time.perf_counter() - start
        single = CheXbertReader(scratch, batch_size=1)
        start = time.perf_counter()
        for text in texts:  # as the published package does: no batches, no memory of texts read before
            single.read_batch([text])
        single_s = time.perf_counter() - start
    return {
        "distinct": len(distinct),
        "encoder_s": encoder_s,
        "reader_s": reader_s,
        "one_by_one_s": single_s,
        "ratio_to_encoder": encoder_s / reader_s,
        "ratio_to_single": single_s / reader_s,
    }


def encoder_seconds(encoder: BertModel, tokenizer: Any, texts: list[str], size: int) -> float:
    """The compute limit: forward passes over length-sorted batches, tokenisation not counted."""
    rows = sorted((tokenizer(text, truncation=True, max_length=512)["input_ids"] for text in texts), key=len)
    batches = [
        tokenizer.pad({"input_ids": rows[i : i + size]}, return_tensors="pt") for i in range(0, len(rows), size)
    ]
    start = time.perf_counter()
    with torch.inference_mode():
        for batch in batches:
            encoder(**batch)
    return time.perf_counter() - start
