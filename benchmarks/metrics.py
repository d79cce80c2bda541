"""Speed of the clinical metrics' readers, measured side by side in one run, with random weights in the real geometry.

For CheXbert, RadGraph and RaTEScore: seconds of the bare encoder's own best length-sorted forward pass over the
distinct texts (the compute limit), of the reader over all texts, and of the reader fed one report at a time as the
published packages do. Ratios are what counts; seconds depend on the machine.

    python benchmarks/metrics.py --texts annotation.json            # R2Gen's IU annotation: its 590 test reports
    python benchmarks/metrics.py --limit 100 --metrics chexbert     # phantom reports, a quick look
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

METRICS = ("chexbert", "radgraph", "ratescore")
TARGETS = {"chexbert": 0.85, "radgraph": 0.7, "ratescore": 1.0}


def read_texts(path: Path | None, limit: int | None) -> list[str]:
    """Reports to score against themselves, shuffled."""
    if path is None:
        from _metrics_texts import corpus

        reports = corpus()
    else:
        content = json.loads(path.read_text(encoding="utf-8"))
        reports = [row["report"] for row in content["test"]]
    return reports[:limit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="R2Gen annotation .json; phantom reports without it")
    parser.add_argument("--limit", type=int, help="only the first so many reports")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=list(METRICS))
    arguments = parser.parse_args()
    texts = read_texts(arguments.texts, arguments.limit)
    source = arguments.texts.name if arguments.texts else "phantom"
    print(f"{len(texts)} reports of {source}, {torch.get_num_threads()} threads, {sys.platform}")
    for name in arguments.metrics:
        # RaTEScore's part makes its pairs itself; the other readers get each report as a reference and as a prediction
        given = texts if name == "ratescore" else texts + texts[::-1]
        row: dict[str, Any] = importlib.import_module(f"_metrics_{name}").run(given)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        figures = ", ".join(f"{key} {value:.3g}" for key, value in row.items() if isinstance(value, (int, float)))
        print(f"{name}: {figures}, wanted {TARGETS[name]}; peak memory so far {peak:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
