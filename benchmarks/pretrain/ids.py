"""Training ids for the peers, read from the file without our loader."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.pretrain.sizes import Task, token_files

HEADER_BYTES, COUNT_AT = 256, 24  # of a token shard, see storage/shards/tokens.py


def ids_of(task: Task) -> np.memmap[Any, np.dtype[np.uint16]]:
    """The ids of the largest shard, memory-mapped."""
    path = max(token_files(task.tokens), key=lambda path: path.stat().st_size)
    count = int(np.fromfile(path, "<u8", 1, offset=COUNT_AT)[0])
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (count,))
