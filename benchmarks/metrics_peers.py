"""CheXbert and RadGraph of this library against the published packages, side by side, with the same random weights.

The packages (radgraph 0.1.18, f1chexbert 0.0.2) need an older transformers and so an environment of their own:

    python -m venv peers && peers/bin/pip install torch "transformers<5" radgraph f1chexbert
    python benchmarks/metrics_peers.py --peer peers/bin/python --texts annotation.json --limit 200

Both read every text twice, as a metric does that meets each report as a reference and as a prediction; both start with
nothing remembered. The weights are written once in the published layout and geometry: the package reads them as
downloaded, this library after its converter. What the two find must be equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _metrics_texts import bert_tokenizer
from metrics import read_texts
from transformers import BertConfig

from rrg_hf.metrics.chexbert import CheXbertReader
from rrg_hf.metrics.radgraph import RadGraphReader
from rrg_hf.modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling, convert_chexbert
from rrg_hf.modeling.radgraph import convert_radgraph

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.tiny_radgraph import Shape, bert_config, make_archive

# RadGraph v1's geometry. The shifts leave more entities and relations than a trained network finds, all compared.
SHAPE = Shape(
    hidden=768, layers=12, heads=12, intermediate=3072, max_length=512, max_span_width=8, feature_size=20,
    ffn_size=150, entity_shift=1.0, relation_shift=-1.0,
)  # fmt: skip


def write_tokenizer(folder: Path, texts: list[str]) -> Path:
    """bert-base-uncased's files with a vocabulary learnt from the texts, for both versions of transformers."""
    with tempfile.TemporaryDirectory() as scratch:
        words = bert_tokenizer(Path(scratch), texts).get_vocab()
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.__getitem__)) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({**bert_config(SHAPE), "vocab_size": len(words)}))
    return folder


def prepare_radgraph(folder: Path, tokenizer: Path) -> RadGraphReader:
    archive, _ = make_archive(folder, SHAPE, tokenizer)
    with tarfile.open(archive) as content:
        content.extractall(folder / "radgraph", filter="data")
    return RadGraphReader(convert_radgraph(archive, str(tokenizer), folder / "converted"), device="cpu")


def prepare_chexbert(folder: Path, tokenizer: Path) -> CheXbertReader:
    torch.manual_seed(0)
    network = CheXbertForReportLabeling(CheXbertConfig(**BertConfig().to_diff_dict()))
    with torch.no_grad():
        for head in network.linear_heads:
            head.weight.normal_(std=0.1)  # so that the labels differ
    state = {f"module.{name}": value for name, value in network.state_dict().items()}
    torch.save({"epoch": 0, "model_state_dict": state}, folder / "chexbert.pth")
    (folder / "tokenizer").symlink_to(tokenizer)
    return CheXbertReader(
        convert_chexbert(folder / "chexbert.pth", str(tokenizer), folder / "converted"), device="cpu"
    )


def comparable(name: str, answers: list[Any]) -> list[Any]:
    """Entities with their relations, by place and not by number; CheXbert's labels as they are."""
    if name == "chexbert":
        return answers
    rows = []
    for entities in answers:
        found = {str(number): entity for number, entity in enumerate(entities, start=1)}
        row = []
        for entity in entities:
            relations = sorted([kind, found[to]["start_ix"], found[to]["end_ix"]] for kind, to in entity["relations"])
            row.append([entity["start_ix"], entity["end_ix"], entity["tokens"], entity["label"], relations])
        rows.append(sorted(row))
    return rows


def as_published(name: str, answers: list[Any]) -> list[Any]:
    """This library's answers in the form of the packages'."""
    if name == "radgraph":
        return [list(graph["entities"].values()) for graph in answers]
    return [[int(state in (1, 3)) for state in answer["classes"]] for answer in answers]


def measured(work: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="Python of the environment with the published packages")
    parser.add_argument("--texts", type=Path, help="R2Gen annotation .json; phantom reports without it")
    parser.add_argument("--limit", type=int, help="only the first so many reports")
    parser.add_argument("--metrics", nargs="+", choices=("chexbert", "radgraph"), default=["chexbert", "radgraph"])
    arguments = parser.parse_args()
    texts = read_texts(arguments.texts, arguments.limit)
    texts += texts[::-1]
    print(f"{len(texts)} texts, {len(set(texts))} of them distinct, {torch.get_num_threads()} threads, {sys.platform}")
    for name in arguments.metrics:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            tokenizer = write_tokenizer(folder / "words", texts)
            prepare = {"chexbert": prepare_chexbert, "radgraph": prepare_radgraph}[name]
            reader = prepare(folder, tokenizer)
            reader.read_batch(texts[:2])
            ours, our_cpu, answers = measured(lambda reader=reader: reader(texts))
            (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
            worker = str(Path(__file__).with_name("_peer_worker.py"))
            command = [arguments.peer, worker, name, str(folder / "texts.json"), str(folder), str(folder / "out.json")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            peer = json.loads((folder / "out.json").read_text(encoding="utf-8"))
        mine, theirs = (comparable(name, found) for found in (as_published(name, answers), peer["found"]))
        if name == "radgraph":
            entities, relations = sum(map(len, mine)), sum(len(entity[-1]) for found in mine for entity in found)
            print(f"radgraph: {entities} entities and {relations} relations in all with these weights")
        equal = sum(a == b for a, b in zip(mine, theirs, strict=True))
        print(
            f"{name}: package {peer['seconds']:.1f} s ({peer['cpu_seconds']:.1f} s of processor, "
            f"transformers {peer['versions']['transformers']}, torch {peer['versions']['torch']}, {peer['threads']} "
            f"threads), this library {ours:.1f} s ({our_cpu:.1f} s of processor): {peer['seconds'] / ours:.1f} times "
            f"as fast; the same answer on {equal} of {len(texts)} texts",
            flush=True,
        )


if __name__ == "__main__":
    main()
