"""Findings of personal data in pairs, a row per message. The side file carries a digest of the pairs' ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from storage.shards.parquet import open_parquet, parquet_writer
from tasks.filter.pairs.contents import groups, texts_of
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.findings import SCHEMA
from tasks.filter.pii.measure import measure_pii
from tasks.filter.side_files import FILE, IDS, IdDigest


def measure_pairs(config: PiiConfig, path: Path, folder: Path) -> dict[str, int]:
    """Write the signals of a file of pairs, a row group for each of its groups, and return the number of pairs."""
    digest = IdDigest()
    pairs = 0
    with parquet_writer(folder / FILE, SCHEMA, compression="zstd") as writer:
        for group in groups(path):
            texts = [text for pair in group for text in texts_of(pair)]
            writer.write_batch(measure_pii(config, pa.array(texts, pa.string())))
            digest.update(pa.array([pair["id"] for pair in group], pa.string()))
            pairs += len(group)
        writer.add_key_value_metadata({IDS: digest.hex()})
    return {"pairs": pairs}


def read_messages(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the signals of a file of pairs, a batch per group."""
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False).combine_chunks()
            yield pa.record_batch([column.chunk(0) for column in table.columns], SCHEMA)
