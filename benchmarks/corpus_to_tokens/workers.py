"""`python -m benchmarks.corpus_to_tokens.workers`: JSONL in, token shards out, by wall seconds and number of workers.

`gristmill run --to tokenize` with an empty store, start-up included, in turns. Each worker has one
thread; the digests of all runs must be equal. A run before the first is not counted: it compiles the hot loops.
Runs with one worker each, side by side, tell how fast as many workers could be if they shared nothing but the machine.

A last run with one worker, under the sampler of `benchmarks.budget`, tells what of each stage is in maps over shards,
which workers divide, and what isn't. From these parts follows how fast more workers than there are cores would be, by
Amdahl's law: a simulation, without what workers share (caches, memory, disks) and without waits at the ends of maps.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.budget.__main__ import stacks
from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.measure import corpus, corpus_parser, count, environment
from storage.store import Store

Figures = dict[str, list[float]]  # seconds by stage, and of the whole
WHOLE = "the whole command"
STAGES = ("download", "dedup", "filter", "tokenizer", "tokenize")
BESIDE = "start, publishing and end"
IN_MAP = "/tasks/shards/map_shards.py:_run;"
OF_STAGE = re.compile(rf"/tasks/({'|'.join(STAGES)})/")


def main() -> int:
    """Read the options, measure in turns, print the table. Returns 1 where digests differ."""
    parser = corpus_parser(__doc__, megabytes=360, runs="for each number of workers")
    parser.add_argument("--workers", type=count, nargs="+", default=[1, 2], help="numbers of workers (default 1 2)")
    parser.add_argument("--simulated", type=count, default=8, help="workers to simulate (default 8)")
    options = parser.parse_args()
    text = corpus(options.data.resolve(), options.megabytes)
    path = lines(text)
    print("compiling, not counted", file=sys.stderr)
    run(path, 1, defaultdict(list))
    figures: dict[int, Figures] = {workers: defaultdict(list) for workers in options.workers}
    together: dict[int, list[float]] = defaultdict(list)
    digests = set()
    for number in range(options.runs):
        for workers in options.workers:
            print(f"run {number + 1}/{options.runs}: {workers} workers, {text.megabytes:.1f} MB", file=sys.stderr)
            digests.add(run(path, workers, figures[workers]))
        for workers in options.workers[1:]:
            print(f"run {number + 1}/{options.runs}: {workers} runs side by side", file=sys.stderr)
            together[workers].append(side_by_side(path, workers))
    first, *others = options.workers
    print(f"{text.megabytes:.1f} MB, {text.documents:,} documents, medians of {options.runs}\n")
    print(f"| stage | s with {first} |" + "".join(f" s with {workers} | times as fast |" for workers in others))
    print("|---|---|" + "---|---|" * len(others))
    for stage in (*STAGES, WHOLE):
        alone = statistics.median(figures[first][stage])
        rest = [statistics.median(figures[workers][stage]) for workers in others]
        print(f"| {stage} | {alone:.1f} |" + "".join(f" {each:.1f} | {alone / each:.2f} × |" for each in rest))
    for workers in others:
        alone, beside = statistics.median(figures[first][WHOLE]), statistics.median(together[workers])
        limit = f"so {workers} workers can be {workers * alone / beside:.2f} × as fast"
        print(f"\n{workers} runs with one worker each, side by side: {beside:.1f} s, {limit}.")
    print(f"\nDigests of tokens: {'the same' if len(digests) == 1 else 'DIFFERENT'}.\n", flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        simulate(stacks(path, Path(folder)), options.simulated)
    return int(len(digests) != 1)


def run(text: Path, workers: int, figures: Figures) -> str:
    """One run; its seconds are added to `figures`, and the digest of the tokens returned."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        command = to_tokens(written_profile(text, Path(folder)), Path(folder) / "store", workers=workers)
        began = time.monotonic()
        subprocess.run(command, env=environment(1), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
        figures[WHOLE].append(time.monotonic() - began)
        made = {manifest.stage: manifest for _, manifest in Store(f"{folder}/store").manifests()}
        for stage in STAGES:
            figures[stage].append(made[stage].facts["seconds"])
        return made["tokenize"].digest


def side_by_side(text: Path, count: int) -> float:
    """The mean seconds of this many runs at once, each with one worker."""
    with ThreadPoolExecutor(count) as pool:
        figures: list[Figures] = [defaultdict(list) for _ in range(count)]
        list(pool.map(lambda each: run(text, 1, each), figures))
    return statistics.mean(each[WHOLE][0] for each in figures)


def simulate(found: Mapping[str, Mapping[str, float]], workers: int) -> None:
    """Print what of a run with one worker is in maps and outside of them, and how long it would take with more."""
    wall, cpu = split(found["wall"]), split(found["cpu"])
    whole = sum(wall[WHOLE])
    heads = "s in maps", "s outside", "of the whole", "CPU s outside", f"s with {workers}, simulated", "times as fast"
    print(f"| stage | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name, (inside, outside) in wall.items():
        told = outside + inside / workers
        print(
            f"| {name} | {inside:.1f} | {outside:.1f} | {outside / whole:.0%} | {cpu[name][1]:.1f} | {told:.1f} "
            f"| {(inside + outside) / told:.2f} × |"
        )


def split(seconds: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Seconds by stack as seconds in maps and outside of them, by stage, the whole last."""
    parts = {name: [0.0, 0.0] for name in (*STAGES, BESIDE, WHOLE)}
    for stack, taken in seconds.items():
        stage = OF_STAGE.search(stack)
        for name in (stage[1] if stage else BESIDE, WHOLE):
            parts[name][IN_MAP not in stack] += taken
    return {name: (inside, outside) for name, (inside, outside) in parts.items()}


if __name__ == "__main__":
    sys.exit(main())
