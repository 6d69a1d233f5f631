"""The memory and disk that dedup will need, from only the number of documents and the profile."""

from __future__ import annotations

from tasks.dedup.buckets import BYTES_A_KEY, ranges_for
from tasks.dedup.config import DedupConfig
from tasks.dedup.near_duplicates.candidates import bands
from tasks.stage.protocol import Forecast
from tasks.stage.runtime import Runtime

BASE = 300_000_000  # bytes: the interpreter, its libraries, the buffers of one worker
WORKER = 30_000_000  # bytes: the buffers of each further worker
DUPLICATE = 600  # bytes held for a duplicate and its pairs, as measured in benchmarks/memory.py
ROW_ON_DISK = 60  # bytes: id, source, length and hash, compressed
KEY_ON_DISK = 12  # bytes


def forecast_dedup(config: DedupConfig, documents: int, runtime: Runtime, *, duplicates: int = 0) -> Forecast:
    """Peak memory, and disk for sketches and bands. Memory holds the records of `duplicates` and, for each worker, a
    piece of a band's keys. The disk excludes the shingles of candidates (8 bytes per word of the documents that have
    any), the output, and with `spans` about twice the size of the text."""
    count, rows = bands(config.threshold, config.sketch.permutations)
    workers = runtime.data.workers
    ranges = ranges_for(documents, runtime.data.working_memory // workers)
    memory = BASE + (workers - 1) * WORKER + workers * documents * BYTES_A_KEY // ranges + duplicates * DUPLICATE
    disk = documents * (4 * config.sketch.permutations + ROW_ON_DISK + (count + 1) * KEY_ON_DISK)
    pieces = "one piece" if ranges == 1 else f"{ranges} pieces, for runtime.data.memory_limit"
    return Forecast(memory, disk, f"{count} bands of {rows} rows, each compared in {pieces}")
