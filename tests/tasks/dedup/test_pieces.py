"""Dedup brings everything together from its shards, in bounded memory and with few files open."""

from __future__ import annotations

import resource
import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.dedup.clusters import WAITING, unique_edges
from tasks.dedup.partitions import Parts, PartWriter
from tasks.shards import ShardResult
from tests.tasks.dedup.test_dedup import corpus, run

TYPES = (np.uint64, np.uint32)
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**64 - 1)), max_size=20)


@given(st.lists(st.lists(ROWS, max_size=3), max_size=4))
def test_a_partition_has_what_was_written_to_it(shards: list[list[list[tuple[int, int]]]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        wanted, results = defaultdict(list), []
        for number, writes in enumerate(shards):
            place = Path(folder) / str(number)
            place.mkdir()
            with PartWriter(place, TYPES) as file:
                for rows in writes:
                    part, keys = np.array([*rows], np.uint64).reshape(-1, 2).T
                    file.write(part, 5, [keys, np.arange(len(keys))], first=2)
                    for row, (one, key) in enumerate(rows):
                        wanted[one + 2].append((number, key, row))
            results.append(ShardResult(place, file.counts))
        parts = Parts(results, TYPES)
        for number in range(8):
            found = [
                (shard, *row)
                for shard, (keys, rows) in parts.read(number)
                for row in zip(keys.tolist(), rows.tolist(), strict=True)
            ]
            assert found == wanted[number]


def test_edges_of_many_parts_are_joined_in_little_memory() -> None:
    draw = np.random.default_rng(1)
    edges = draw.integers(0, 1000, (WAITING // 4, 2))
    parts = [edges[:, :: 1 if number % 2 else -1] for number in range(200)]  # 52 MB
    wanted = np.unique(np.sort(edges, axis=1), axis=0)
    tracemalloc.start()
    try:
        assert np.array_equal(unique_edges(iter(parts)), wanted)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_the_number_of_open_files_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    """A mapping of each shard's signatures held a file open for each: at 1,024, 4 GB of text, that was the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        out = run(tmp_path, corpus(), shards=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert out.counts["documents"]["kept"] > 30
