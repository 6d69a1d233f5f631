"""What decides which of several documents is preferred; independent of the order of documents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus


def standing(config: DedupConfig, corpus: Corpus, rows: Int64) -> pa.Table:
    """For ascending rows: `row`, `id`, `source` and `length`; `rank`, the position of the source in `source_order`;
    `earlier`, 1 for a document that an earlier dedup kept, else 0; and `content`, the hash of the shard's content, so
    that of equal documents the same one is preferred whatever the order of shards.
    """
    table = corpus.columns(rows, ["id", "source", "length"])
    ranks = {name: number for number, name in enumerate(config.source_order)}
    rank = [ranks.get(source, len(ranks)) for source in table["source"].to_pylist()]
    table = table.append_column("row", pa.array(rows)).append_column("rank", pa.array(rank, pa.int64()))
    table = table.append_column("earlier", pa.array(corpus.is_earlier(rows).astype(np.int8)))
    return table.append_column("content", pa.array(corpus.contents(rows), pa.string()))
