"""How fast phantom studies are drawn on one core, and how large a data set of them is.

    python benchmarks/phantom.py [--sizes 96 128 224 512] [--seconds 4]

Counts the CPU time of all threads (set OMP_NUM_THREADS=1 for figures of one core), so that other work on the machine
does not blur the figures. Target: at least 100 studies a second at
128 px, report included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from rrg_hf.data.phantom import phantom_study


def rate(work: Callable[[int], object], seconds: float) -> float:
    """Calls per second of CPU time."""
    for index in range(5):
        work(index)
    start, done = time.process_time(), 0
    while time.process_time() - start < seconds:
        work(done)
        done += 1
    return done / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 128, 224, 512])
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU time of each measurement")
    arguments = parser.parse_args()
    print(f"{'size':>5}  {'study/s':>8}  {'row/s, 3 masks':>14}  {'row/s, all masks':>16}  {'KiB/row':>8}")
    for size in arguments.sizes:
        plain = rate(lambda index, size=size: phantom_study(index, size=size), arguments.seconds)
        rows = rate(lambda index, size=size: phantom_study(index, size=size).to_row(), arguments.seconds)
        full = rate(lambda index, size=size: phantom_study(index, size=size).to_row(None), arguments.seconds)
        row = phantom_study(0, size=size).to_row()
        stored = len(row["images"][0]["bytes"]) + sum(len(mask["mask"]["bytes"]) for mask in row["masks"])
        print(f"{size:>5}  {plain:>8.0f}  {rows:>14.0f}  {full:>16.0f}  {stored / 1024:>8.1f}")


if __name__ == "__main__":
    main()
