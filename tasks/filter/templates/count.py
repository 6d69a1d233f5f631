"""Counts how many documents of a host have each sentence, each template and each opening, over all documents.

Keys are spilled by range and counted range by range, as in dedup. Each takes 12 bytes on disk, in all about a fifth of
the text. Memory holds one range, within the memory limit, and 48 bytes for each document.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storage.artifact import Artifact
from storage.shards.arrays import Int64, UInt64
from storage.shards.documents import read_batches
from storage.shards.parquet import open_parquet
from tasks.dedup.buckets import TYPES, grouped, ranges_needed
from tasks.dedup.partitions import Parts, PartWriter, range_of
from tasks.dedup.spans.kinds import salts_of
from tasks.filter.templates.config import TemplateCountsConfig
from tasks.filter.templates.frequent import HOSTS, Frequent, look_up, write_shown, write_table
from tasks.filter.templates.sentences import COUNTED, Counted, find_sentences
from tasks.shards import ShardResult, map_shards
from tasks.stage.output import Output

DOCUMENTS, FREQUENT = "documents.npy", "frequent.npz"
BYTES_A_SENTENCE = 32  # a lower bound for most sentences


class Corpus(NamedTuple):
    """All documents as rows: the first row of each shard, the hash of each document's host and the beginning of its id,
    and the hosts with enough documents, ascending, with their numbers of documents."""

    shards: list[Path]
    starts: list[int]
    salts: UInt64
    ids: UInt64
    hosts: UInt64
    sizes: Int64

    def documents_of(self, salts: UInt64) -> Int64:
        """The number of documents of each host, 0 for a host with too few."""
        return look_up(self.hosts, self.sizes, salts)


def count_templates(config: TemplateCountsConfig, documents: Artifact, out: Output) -> None:
    """See the stage `template_counts`."""
    corpus = _read_hosts(config, documents, out)
    ranges = ranges_needed(_most_keys(corpus.shards), out.runtime.data.working_memory // out.runtime.data.workers)
    jobs = list(zip(corpus.shards, corpus.starts, strict=True))
    spill = functools.partial(_spill, config, corpus, ranges)
    spilled = Parts(map_shards(spill, jobs, out, f"sentences-{ranges}", releases_gil=True), TYPES)
    parts = range(len(COUNTED) * ranges)
    reduce = functools.partial(_reduce, config, corpus, spilled)
    counted = map_shards(reduce, parts, out, f"templates-{ranges}", "partitions", releases_gil=True)
    frequent = {}
    for number, kind in enumerate(COUNTED):
        frequent[kind] = _joined(counted[number * ranges : (number + 1) * ranges])
        write_table(kind, frequent[kind].keys, frequent[kind].documents, out.path)
    write_table(HOSTS, corpus.hosts, corpus.sizes, out.path)
    write_shown(config, corpus.shards, corpus.starts, frequent, out)
    out.count(
        documents=len(corpus.salts),
        hosts=len(corpus.hosts),
        documents_of_hosts=int(corpus.sizes.sum()),
        **{kind: len(table.keys) for kind, table in frequent.items()},
    )


def _read_hosts(config: TemplateCountsConfig, documents: Artifact, out: Output) -> Corpus:
    shards = documents.files("*.parquet")
    read = map_shards(functools.partial(_hosts, config), shards, out, "hosts")
    rows = np.concatenate([np.empty((0, 2), np.uint64), *(np.load(shard.folder / DOCUMENTS) for shard in read)])
    salts, ids = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
    starts = np.cumsum([0, *(shard.counts["documents"] for shard in read)]).tolist()[:-1]
    hosts, sizes = np.unique(salts, return_counts=True)
    enough = sizes >= config.documents
    return Corpus(shards, starts, salts, ids, hosts[enough], sizes[enough])


def _hosts(config: TemplateCountsConfig, shard: Path, folder: Path) -> dict[str, Any]:
    parts = [np.empty((0, 2), np.uint64)]
    for _, batch in read_batches(shard, ["id", "source", "metadata"]):
        ids = np.array([int(identity[:16], 16) for identity in batch["id"].to_pylist()], np.uint64)
        parts.append(np.stack((salts_of(batch["source"], batch["metadata"], config.by), ids), axis=1))
    rows = np.concatenate(parts)
    np.save(folder / DOCUMENTS, rows)
    return {"documents": len(rows)}


def _most_keys(shards: list[Path]) -> int:
    size = 0
    for shard in shards:
        with open_parquet(shard) as file:
            text = file.schema_arrow.names.index("text")
            size += sum(
                file.metadata.row_group(n).column(text).total_uncompressed_size for n in range(file.num_row_groups)
            )
    return size // BYTES_A_SENTENCE


def _spill(
    config: TemplateCountsConfig, corpus: Corpus, ranges: int, job: tuple[Path, int], folder: Path
) -> dict[str, Any]:
    """Write the keys of a shard's documents, each once per document, by kind and range."""
    shard, first = job
    with PartWriter(folder, TYPES) as file:
        for start, batch in read_batches(shard, ["text"]):
            salts = corpus.salts[first + start : first + start + len(batch)]
            rows = np.flatnonzero(corpus.documents_of(salts))
            sentences = find_sentences(config, batch["text"].take(rows), salts[rows])
            for number, kind in enumerate(COUNTED):
                keys, documents = _distinct(sentences.counted[kind])
                places = (rows[documents] + start).astype(np.uint32)
                file.write(range_of(keys, ranges), ranges, [keys, places], number * ranges)
    return file.counts


def _distinct(counted: Counted) -> tuple[UInt64, Int64]:
    """(keys, documents), each pair once."""
    order = np.lexsort((counted.keys, counted.documents))
    keys, documents = counted.keys[order], counted.documents[order]
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (documents[1:] != documents[:-1])
    return keys[new], documents[new]


def _reduce(config: TemplateCountsConfig, corpus: Corpus, spilled: Parts, number: int, folder: Path) -> dict[str, Any]:
    """Write the frequent keys of a partition, each with the document of the smallest id that has it."""
    members, ends, keys = grouped(spilled, corpus.starts, number)
    sizes = np.diff(ends, prepend=0)
    of_host = corpus.documents_of(corpus.salts[members[ends - 1]])
    enough = sizes >= np.maximum(config.documents, config.share * of_host)
    members, sizes = members[np.repeat(enough, sizes)], sizes[enough]
    firsts = np.cumsum(sizes) - sizes
    order = np.lexsort((corpus.ids[members], np.repeat(np.arange(len(sizes)), sizes)))
    rows = members[order][firsts] if len(firsts) else members
    np.savez(folder / FREQUENT, keys=keys[enough], documents=sizes, of_host=of_host[enough], rows=rows)
    return {"frequent": len(sizes)}


def _joined(counted: list[ShardResult]) -> Frequent:
    columns = []
    for part in counted:
        with np.load(part.folder / FREQUENT) as stored:
            columns.append([stored[name] for name in Frequent._fields])
    keys, *others = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(keys)
    return Frequent(keys[order], *(column[order] for column in others))
