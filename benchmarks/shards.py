"""`python -m benchmarks.shards [EXECUTOR …]`: what an executor of shards costs, by itself and for each shard.

A row is a process of its own: the start, with a map of one empty shard; then a map of 200 empty shards (or --shards),
and one of as many shards of some work in numpy. Seconds are wall time; CPU is of the row's process and all that it
started, to their ends.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import count
from tasks.shards import map_shards
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime
from tasks.stage.session import resources

EXECUTORS = ("thread", "process", "dask", "ray")
SHARDS = 200


def nothing(shard: int, folder: Path) -> dict[str, int]:
    """An empty shard."""
    return {}


def some(shard: int, folder: Path) -> dict[str, float]:
    """A shard of about 20 ms."""
    return {"sum": float(np.sort(np.random.default_rng(shard).random(200_000)).sum())}


def row(executor: str, workers: int, shards: int) -> dict[str, Any]:
    """Measure one executor in this process."""
    from benchmarks.shards import nothing, some  # by their module, which workers know, and not as of __main__

    found: dict[str, Any] = {"executor": executor, "workers": workers}
    with tempfile.TemporaryDirectory() as folder, resources():
        data = DataRuntime.model_validate({"executor": executor, "workers": workers})
        out = Output.at(Path(folder), runtime=Runtime(data=data))
        for name, function, count in (("start", nothing, 1), ("empty", nothing, shards), ("work", some, shards)):
            began = time.monotonic()
            map_shards(function, range(count), out, name, releases_gil=True)
            found[name] = time.monotonic() - began
        began = time.monotonic()
    found["end"] = time.monotonic() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["cpu"] = sum(one.ru_utime + one.ru_stime for one in used)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("executors", nargs="*", default=EXECUTORS)
    parser.add_argument("--shards", type=count, default=SHARDS, help=f"of a map (default {SHARDS})")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(row(asked.executors[0], asked.row, asked.shards)))
        return
    print("| executor | workers | start (s) | an empty shard (ms) | all with work (s) | end (s) | CPU (s) |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for executor in asked.executors:
        for workers in (1, 2):
            command = [sys.executable, "-m", "benchmarks.shards", executor, "--row", str(workers)]
            command += ["--shards", str(asked.shards)]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            got = json.loads(said.splitlines()[-1])
            print(
                f"| {executor} | {workers} | {got['start']:.1f} | {1000 * got['empty'] / asked.shards:.1f} | "
                f"{got['work']:.1f} | {got['end']:.1f} | {got['cpu']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
