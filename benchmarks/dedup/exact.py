"""`python -m benchmarks.dedup.exact`: hashes that find exact duplicates, ours beside one line of Python.

The line is what most pipelines do: lower case, one space between words, xxh3 with 128 bits. Each side runs in a process
of its own, in turns, over texts that lie in memory as Arrow arrays; reading is not counted, figures are medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from benchmarks.corpus import build
from benchmarks.measure import corpus_parser, environment
from tasks.dedup.sketch import exact_hashes
from tasks.text.scan import Scanner

ROOT = Path(__file__).resolve().parents[2]


def one_line(texts: list[pa.StringArray]) -> int:
    """The baseline: distinct documents by the hash of their lower-case words."""
    found = set()
    for column in texts:
        for text in column.to_pylist():
            found.add(xxhash.xxh3_128_digest(" ".join(text.lower().split()).encode()))
    return len(found)


def ours(texts: list[pa.StringArray]) -> int:
    """Distinct documents by the project's exact hash."""
    found: set[bytes] = set()
    scanner = Scanner(words=False)
    for column in texts:
        batch: list[bytes] = [b""] * len(column)
        for scanned in scanner.scan(column):
            for row, digest in zip(scanned.rows.tolist(), exact_hashes(scanned), strict=True):
                batch[row] = digest
        found.update(batch)
    return len(found)


SIDES: dict[str, Callable[[list[pa.StringArray]], int]] = {"gristmill": ours, "one line": one_line}


def measure(side: str, folder: Path) -> None:
    """In a process of its own: CPU seconds and distinct documents of one side as JSON."""
    texts = []
    for path in sorted(folder.glob("*.parquet")):
        texts += pq.read_table(path, columns=["text"], use_threads=False)["text"].chunks
    SIDES[side](texts[:1])  # what is compiled or loaded on the first call
    started = time.process_time()
    distinct = SIDES[side](texts)
    print(json.dumps({"seconds": time.process_time() - started, "distinct": distinct}))


def main() -> None:
    """Run the sides in turns and print the table."""
    parser = corpus_parser(__doc__, megabytes=120)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--measure", choices=list(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.data / f"{options.megabytes:g}mb"
    if options.measure:
        measure(options.measure, folder)
        return
    tally = build(folder, options.megabytes)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    command = [sys.executable, "-m", "benchmarks.dedup.exact", "--data", str(options.data.resolve())]
    for _ in range(options.runs):
        for side in options.sides:
            arguments = ["--megabytes", str(options.megabytes), "--measure", side]
            done = subprocess.run(
                [*command, *arguments], cwd=ROOT, env=environment(1), stdout=subprocess.PIPE, text=True, check=True
            )
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    report(found, tally.bytes / 1e6, options.runs)


def report(found: dict[str, list[dict[str, float]]], megabytes: float, runs: int) -> None:
    """The table: speeds, and their ratio to the baseline."""
    speeds = {side: megabytes / statistics.median(run["seconds"] for run in taken) for side, taken in found.items()}
    print(f"{platform.machine()}, 1 thread, {megabytes:.1f} MB, medians of {runs}\n")
    print("| side | MB a core-second | ratio | distinct documents |\n|---|---|---|---|")
    for side, value in speeds.items():
        ratio = f"{value / speeds['one line']:.2f}" if "one line" in speeds else "–"
        print(f"| {side} | {value:,.0f} | {ratio} | {found[side][-1]['distinct']:,.0f} |")


if __name__ == "__main__":
    main()
