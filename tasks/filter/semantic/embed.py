"""The embeddings of all documents: for each shard an array of float16 to map into memory, and a side file with the
number of tokens read of each document."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.documents import read_batches
from storage.shards.parquet import parquet_writer
from tasks.filter.classifier.workers import Placement, placement
from tasks.filter.semantic.config import EmbeddingsConfig
from tasks.filter.semantic.encoder import open_encoder
from tasks.filter.side_files import FILE, IDS, IdDigest
from tasks.shards import collect_all
from tasks.shards.incremental import map_new_shards
from tasks.stage.output import Output

EMBEDDINGS, TOKENS = "embeddings.npy", "tokens"
FOLDERS = {FILE: "", EMBEDDINGS: ""}
SCHEMA = pa.schema([(TOKENS, pa.int64())])


def embed_documents(config: EmbeddingsConfig, documents: Artifact, encoder: Artifact, out: Output) -> None:
    """See the stage `embeddings`."""
    where = placement(out)
    work = functools.partial(_embed_shard, config.model_dump_json(), encoder.path, where)
    name = f"embed-{where.device}"  # another device rounds differently
    embedded = map_new_shards(work, documents, out, name, files=FOLDERS, accelerators=where.accelerators)
    open_encoder.cache_clear()  # of this process, if it was the only worker
    collect_all(embedded, FOLDERS, out.path)
    out.count(
        documents=sum(shard.counts["documents"] for shard in embedded),
        tokens=sum(shard.counts["tokens"] for shard in embedded),
        cut_off=sum(shard.counts["cut_off"] for shard in embedded),
        model=config.encoder.named,
    )


def _embed_shard(config_json: str, encoder: Path, where: Placement, shard: Path, folder: Path) -> dict[str, Any]:
    opened = open_encoder(config_json, encoder, where.here())
    digest = IdDigest()
    vectors = [np.zeros((0, opened.width), np.float16)]
    total = cut = 0
    with parquet_writer(folder / FILE, SCHEMA, compression="zstd") as writer:
        for _, batch in read_batches(shard, ["id", "text"]):
            embedded, read = opened.embed(batch["text"])
            vectors.append(embedded)
            writer.write_batch(pa.record_batch([pa.array(read, mask=read == 0)], SCHEMA))
            digest.update(batch["id"])
            total += int(read.sum())
            cut += int((read == opened.limit).sum())
        writer.add_key_value_metadata({IDS: digest.hex()})
    joined = np.concatenate(vectors)
    np.save(folder / EMBEDDINGS, joined)
    return {"documents": len(joined), "tokens": total, "cut_off": cut}
