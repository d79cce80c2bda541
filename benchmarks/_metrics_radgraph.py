"""Part of benchmarks/metrics.py: RadGraph's reader against its bare encoder and against one report at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _metrics_texts import bert_tokenizer
from transformers import BertModel

from rrg_hf.metrics.radgraph import RadGraphReader
from rrg_hf.modeling.radgraph import RadGraphConfig, RadGraphModel


def run(texts: list[str], rounds: int = 3) -> dict[str, Any]:
    """Seconds of the bare encoder, the reader, and the reader one report at a time, on the same distinct texts.

    Encoder and reader take turns and the fastest turn of each counts, since other work on the machine only adds time;
    `ratio_to_encoder_cpu` compares processor time instead. With random weights nearly every span is an entity, so the
    heads do more work than they do for a trained network.
    """
    distinct = list(dict.fromkeys(texts))
    with tempfile.TemporaryDirectory() as scratch:
        bert_tokenizer(Path(scratch))
        torch.manual_seed(0)
        RadGraphModel(RadGraphConfig()).save_pretrained(scratch)
        reader = RadGraphReader(scratch, device="cpu")
        reader.read_batch(distinct[:4])  # the first pass sets threads and memory up
        ways = {size: passes(reader, distinct, size) for size in (8, 16, 32)}
        best = min(ways, key=lambda size: timed(lambda: forward(reader, ways[size]))[0])
        encoder_turns, reader_turns = [], []
        for _ in range(rounds):
            encoder_turns.append(timed(lambda: forward(reader, ways[best])))
            reader._memory.clear()
            reader_turns.append(timed(lambda: reader(texts)))
        graphs = reader(texts)
        # as the published package does: no batches, no memory of texts read before
        single_s, _ = timed(lambda: [reader.read_batch([text]) for text in texts])
    (encoder_s, encoder_cpu), (reader_s, reader_cpu) = (
        tuple(map(min, zip(*turns, strict=True))) for turns in (encoder_turns, reader_turns)
    )
    return {
        "distinct": len(distinct),
        "entities_per_report": sum(len(graph["entities"]) for graph in graphs) / len(graphs),
        "encoder_s": encoder_s,
        "reader_s": reader_s,
        "one_by_one_s": single_s,
        "ratio_to_encoder": encoder_s / reader_s,
        "ratio_to_encoder_cpu": encoder_cpu / reader_cpu,
        "ratio_to_single": single_s / reader_s,
    }


def passes(reader: RadGraphReader, texts: list[str], size: int) -> list[dict[str, torch.Tensor]]:
    """Length-sorted batches, ready to go in: the compute limit leaves tokenisation out."""
    encode = reader._encoder
    reports = sorted(encode(texts), key=encode.length)
    batches = [encode.collate(reports[index : index + size]) for index in range(0, len(reports), size)]
    return [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]


def forward(reader: RadGraphReader, batches: list[dict[str, torch.Tensor]]) -> None:
    encoder: BertModel = reader._model.encoder
    with torch.inference_mode():
        for batch in batches:
            encoder(**batch)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu
