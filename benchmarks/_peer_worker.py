"""Part of benchmarks/metrics_peers.py, run by the other environment's Python: times a published package on texts.

    python _peer_worker.py radgraph|chexbert TEXTS.json FOLDER RESULT.json

Nothing of rrg_hf is imported. FOLDER holds what the package would download: for RadGraph the unpacked archive in
`radgraph/`, for F1CheXbert `chexbert.pth` and a tokenizer in `tokenizer/`.
"""

import json
import sys
import time
from pathlib import Path


def time_radgraph(texts, folder):
    from radgraph import RadGraph

    reader = RadGraph(model_type="radgraph", model_cache_dir=str(folder), cuda=-1)
    reader(texts[:2])
    start, cpu = time.perf_counter(), time.process_time()
    graphs = reader(texts)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return wall, cpu, [list(graphs[str(index)]["entities"].values()) for index in range(len(texts))]


def time_chexbert(texts, folder):
    import f1chexbert.f1chexbert as package
    import torch
    from transformers import AutoConfig, BertConfig, BertTokenizer

    # The package asks the Hub for bert-base-uncased; its geometry is BertConfig's default.
    tokenizer = BertTokenizer.from_pretrained(str(folder / "tokenizer"))
    BertTokenizer.from_pretrained = lambda *_, **__: tokenizer
    AutoConfig.from_pretrained = lambda *_, **__: BertConfig()
    package.CACHE_DIR = str(folder)
    scorer = package.F1CheXbert(device="cpu")
    with torch.inference_mode():
        scorer.get_label(texts[0])
        start, cpu = time.perf_counter(), time.process_time()
        labels = [scorer.get_label(text) for text in texts]
        return time.perf_counter() - start, time.process_time() - cpu, labels


def main():
    name, texts, folder, result = sys.argv[1:]
    import torch
    import transformers

    work = {"radgraph": time_radgraph, "chexbert": time_chexbert}[name]
    wall, cpu, found = work(json.loads(Path(texts).read_text(encoding="utf-8")), Path(folder))
    content = {"seconds": wall, "cpu_seconds": cpu, "found": found, "threads": torch.get_num_threads()}
    content["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    Path(result).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main()
