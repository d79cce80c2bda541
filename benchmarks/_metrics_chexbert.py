"""Part of benchmarks/metrics.py: CheXbert's reader against its bare encoder and against one report at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _metrics_texts import bert_tokenizer

from rrg_hf.metrics.chexbert import CheXbertReader
from rrg_hf.modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling


def run(texts: list[str], rounds: int = 3) -> dict[str, Any]:
    """Seconds of the bare encoder, the reader, and the network one report at a time.

    Encoder and reader take turns and the fastest turn of each counts, since other work on the machine only adds time;
    `ratio_to_encoder_cpu` compares processor time instead.
    """
    distinct = list(dict.fromkeys(texts))
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = bert_tokenizer(Path(scratch))
        torch.manual_seed(0)
        CheXbertForReportLabeling(CheXbertConfig()).save_pretrained(scratch)
        encoder = CheXbertForReportLabeling.from_pretrained(scratch).eval().bert
        reader = CheXbertReader(scratch, device="cpu")
        reader.read_batch(distinct[:4])  # the first pass sets threads and memory up
        sizes = {size: passes(tokenizer, distinct, size) for size in (8, 16, 32)}
        encoder_turns, reader_turns = [], []
        for _ in range(rounds):
            encoder_turns += [timed(lambda batches=batches: forward(encoder, batches)) for batches in sizes.values()]
            reader._memory.clear()
            reader_turns.append(timed(lambda: reader(texts)))
        # as the published package does: no batches, no memory of texts read before
        single_s, _ = timed(lambda: [reader.read_batch([text]) for text in texts])
    (encoder_s, encoder_cpu), (reader_s, reader_cpu) = (
        tuple(map(min, zip(*turns, strict=True))) for turns in (encoder_turns, reader_turns)
    )
    return {
        "distinct": len(distinct),
        "encoder_s": encoder_s,
        "reader_s": reader_s,
        "one_by_one_s": single_s,
        "ratio_to_encoder": encoder_s / reader_s,
        "ratio_to_encoder_cpu": encoder_cpu / reader_cpu,
        "ratio_to_single": single_s / reader_s,
    }


def passes(tokenizer: Any, texts: list[str], size: int) -> list[Any]:
    """Length-sorted batches, ready to go in: the compute limit leaves tokenisation out."""
    rows = sorted((tokenizer(text, truncation=True, max_length=512)["input_ids"] for text in texts), key=len)
    return [tokenizer.pad({"input_ids": rows[i : i + size]}, return_tensors="pt") for i in range(0, len(rows), size)]


def forward(encoder: Any, batches: list[Any]) -> None:
    with torch.inference_mode():
        for batch in batches:
            encoder(**batch)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu
