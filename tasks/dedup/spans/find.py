"""Finding and removing repeated spans: text that several documents share is removed from all but one of them.

Described here for words. The other units of kinds.py, sentences and lines of a host, work the same way.

Near-duplicates share most of their text. This finds text that otherwise different documents share, such as licences,
notices and quotations, which a model memorises (Lee et al. 2022, "Deduplicating Training Data Makes Language Models
Better"). They build a suffix array of the corpus. Here every run of `min_words` words, a window, has a 64-bit key, and
keys are spilled by range and compared range by range, so that memory is bounded. Among N windows, about N²/2⁶⁵ pairs
share a key by chance: 3 pairs in 10¹⁰ windows, or some 100 GB of text.

A window's owner is its preferred occurrence: in an earlier artifact, then in the most trusted source, then in the
document with the smallest id, then first in the text. All other occurrences are cut, except those that overlap the
owner: in "no no no …" each window overlaps the next, and one must stay. Afterwards no window occurs in two places that
do not overlap. Every word that was cut still exists where its window is owned or, if it was cut there as part of
another window, where that one is owned. Each of these places is preferred to the one before, so the chain ends at one
that is kept.

Words are runs of `\\w`, as in `tasks.text.kernels.scan`, but folded character by character and without NFC, because
offsets must refer to the original text: a precomposed "é" does not equal a decomposed one, nor "ß" "ss".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool, Int64
from storage.shards.documents import Verdict, read_batches
from storage.shards.parquet import parquet_writer
from tasks.dedup.buckets import group, ranges_needed
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, Shard
from tasks.dedup.keeping.preference import standing
from tasks.dedup.partitions import Parts, PartWriter, range_of
from tasks.dedup.spans import word_kernels
from tasks.dedup.spans.kinds import Kind
from tasks.shards import ShardResult, map_shards
from tasks.stage.output import Output

REPEATED, SPANS = "repeated.npz", "spans.parquet"
WINDOWS = (np.uint64, np.uint32, np.uint32)  # key, place, word
MARKS = (np.int64, np.int64, np.int64)  # place, word, owner
SPANS_SCHEMA = pa.schema(
    [("place", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("units", pa.int64()), ("owner", pa.string())]
)
PORTION = 1 << 22  # bytes of text whose windows are spilled together: some 500,000 windows, 8 MB
NEAR = 1 << 28  # bytes, as `ranges_needed` counts them: the counters of such a partition fit into the CPU cache
ENOUGH = 64  # maximum partitions made to fit the cache, since each row group has a cost too
OWNERS_NAMED = 3
PREFERENCE = [("earlier", "descending"), *((name, "ascending") for name in ("rank", "id", "source", "content", "row"))]

Standing = tuple[Int64, Int64, pa.Array]  # rows, ascending; the rank of each by preference; ids in order of rank


def find_spans(config: DedupConfig, kind: Kind, corpus: Corpus, removed: Int64, memory: int, out: Output) -> list[Path]:
    """The spans to cut: for each own shard the path of a table, sorted by place (the document's index in the shard) and
    start, with start and end in bytes of the text, length in units, and the id of the owner. `removed` rows, ascending,
    are left out."""
    most = sum(pc.sum(shard.columns(["words"])["words"]).as_py() or 0 for shard in corpus.shards)  # windows
    parts = max(ranges_needed(most, memory // out.runtime.data.workers), min(ENOUGH, ranges_needed(most, NEAR)))
    # Named after the number of partitions, so that a run resumed with other memory does not mix them up
    spill = functools.partial(_spill_windows, kind, removed, parts)
    windows = Parts(map_shards(spill, corpus.shards, out, f"{kind.unit}-windows-{parts}", releases_gil=True), WINDOWS)
    find = functools.partial(_find_repeated, [shard.start for shard in corpus.shards], kind.documents, windows)
    repeated = map_shards(find, range(parts), out, f"{kind.unit}-repeated-{parts}", "partitions", releases_gil=True)
    standing = _by_standing(config, corpus, repeated)
    mark = functools.partial(_mark, kind.size, corpus, standing)
    marked = Parts(
        map_shards(mark, repeated, out, f"{kind.unit}-marked-{parts}", "partitions", releases_gil=True), MARKS
    )
    join = functools.partial(_join, kind, standing, marked)
    spans = map_shards(join, list(enumerate(corpus.own)), out, f"{kind.unit}-spans", releases_gil=True)
    totals = {name: sum(shard.counts[name] for shard in spans) for name in ("spans", "units")}
    out.count(**{f"{kind.unit}_spans_cut": totals["spans"], f"{kind.unit}s_cut": totals["units"]})
    return [shard.folder / SPANS for shard in spans]


def _spill_windows(kind: Kind, removed: Int64, parts: int, shard: Shard, folder: Path) -> dict[str, Any]:
    """Write the windows of a shard, partitioned by range of keys."""
    kept = shard.without(removed)
    salts = kind.salts(shard.documents)
    with PartWriter(folder, WINDOWS) as file:
        for texts, places in _texts(shard.documents, kept):
            hashes, _, ends = kind.find(texts)
            keys, text, word = word_kernels.find_windows(hashes, ends, kind.size)
            if salts is not None:
                keys ^= salts[places][text]
            file.write(range_of(keys, parts), parts, [keys, places.astype(np.uint32)[text], word])
    return file.counts


def _find_repeated(starts: Sequence[int], least: int, windows: Parts, number: int, folder: Path) -> dict[str, Any]:
    """Write the windows of a partition that share a key, if `least` documents have it, grouped by key: group g is
    `rows[ends[g - 1]:ends[g]]`."""
    columns = [(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint32))]
    for shard, (key, place, word) in windows.read(number):
        columns.append((key, place + np.int64(starts[shard]), word))
    keys, rows, words = (np.concatenate(column) for column in zip(*columns, strict=True))
    members, ends, _ = group(keys, np.arange(len(keys)))
    if least > 1:
        members, ends = _of_documents(least, rows, members, ends)
    documents = np.unique(rows[members])
    np.savez(folder / REPEATED, rows=rows[members], words=words[members], ends=ends, documents=documents)
    return {"windows": len(members)}


def _of_documents(least: int, rows: Int64, members: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """The groups whose members are in at least `least` documents."""
    sizes = np.diff(ends, prepend=0)
    groups = np.repeat(np.arange(len(ends)), sizes)
    order = np.lexsort((rows[members], groups))
    ordered = rows[members][order]  # lexsort is by group first, so `groups` is in this order
    new = np.ones(len(ordered), np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]) | (groups[1:] != groups[:-1])
    enough = np.bincount(groups[new], minlength=len(ends)) >= least
    return members[enough[groups]], np.cumsum(sizes[enough])


def _by_standing(config: DedupConfig, corpus: Corpus, repeated: list[ShardResult]) -> Standing:
    rows = functools.reduce(np.union1d, (np.load(part.folder / REPEATED)["documents"] for part in repeated))
    table = standing(config, corpus, rows)
    order = pc.sort_indices(table, sort_keys=PREFERENCE)
    return rows, np.argsort(order.to_numpy()), table["id"].combine_chunks().take(order)


def _mark(size: int, corpus: Corpus, documents: Standing, repeated: ShardResult, folder: Path) -> dict[str, Any]:
    """Write the windows of a partition that are to be cut, by own shard, with the rank of their owner."""
    with np.load(repeated.folder / REPEATED) as stored:
        rows, words, ends = stored["rows"], stored["words"].astype(np.int64), stored["ends"]
    standing = documents[1][np.searchsorted(documents[0], rows)]
    sizes = np.diff(ends, prepend=0)
    best = np.repeat(np.minimum.reduceat(standing << 32 | words, ends - sizes), sizes)
    owner, owner_word = best >> 32, best & 0xFFFFFFFF
    stays = (standing == owner) & (words < owner_word + size)  # the owner, and what overlaps it
    marked = np.flatnonzero(~stays & ~corpus.is_earlier(rows))
    starts = np.array([shard.start for shard in corpus.own])
    shard = np.searchsorted(starts, rows[marked], "right") - 1
    with PartWriter(folder, MARKS) as file:
        file.write(shard, len(starts), [rows[marked] - starts[shard], words[marked], owner[marked]])
    return file.counts


def _join(kind: Kind, documents: Standing, marked: Parts, job: tuple[int, Shard], folder: Path) -> dict[str, Any]:
    """Merge a shard's windows to cut into spans. A new span starts where the owner changes. Spans don't overlap."""
    number, shard = job
    parts = [[np.empty(0, np.int64)] * 3, *(part for _, part in marked.read(number))]
    place, word, owner = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(place << 32 | word)
    place, word, owner = place[order], word[order], owner[order]
    after = np.roll(word, 1) + kind.size  # where the previous window ends
    joined = (np.roll(place, 1) == place) & (word <= after)
    joined[:1] = False
    new = np.flatnonzero(~joined | (np.roll(owner, 1) != owner))
    first = np.where(joined, after, word)[new]
    last = word[np.roll(new, -1) - 1] + kind.size  # of the last span: new[0] - 1 = -1
    starts, ends = _bytes(kind, shard.documents, place[new], first, last)
    columns = [place[new], starts, ends, last - first, documents[2].take(pa.array(owner[new]))]
    with parquet_writer(folder / SPANS, SPANS_SCHEMA) as file:
        file.write_table(pa.table(columns, schema=SPANS_SCHEMA))
    return {"spans": len(new), "units": int((last - first).sum())}


def _bytes(kind: Kind, path: Path, place: Int64, first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """The byte offsets at which the units `first` and `last` of the documents at `place`, ascending, start."""
    starts, ends = np.empty(len(place), np.int64), np.empty(len(place), np.int64)
    for texts, places in _texts(path, np.unique(place)):
        _, word_starts, word_ends = kind.find(texts)
        mine = slice(*np.searchsorted(place, (places[0], places[-1] + 1)))
        text = np.searchsorted(places, place[mine])
        before = np.concatenate(([0], word_ends))[text] + text
        starts[mine], ends[mine] = word_starts[before + first[mine]], word_starts[before + last[mine]]
    return starts, ends


def _texts(path: Path, wanted: Int64) -> Iterator[tuple[pa.Array, Int64]]:
    """The texts of a shard at these indices, ascending, in portions, with the indices."""
    waiting: list[pa.Array] = []
    done = end = 0
    for start, batch in read_batches(path, ["text"], holding=wanted.tolist()):
        begin, end = np.searchsorted(wanted, (start, start + len(batch)))
        waiting.append(batch["text"].take(pa.array(wanted[begin:end] - start)))
        if sum(texts.nbytes for texts in waiting) >= PORTION:
            yield pa.concat_arrays(waiting), wanted[done:end]
            waiting, done = [], end
    if done < end:
        yield pa.concat_arrays(waiting), wanted[done:end]


def cut_spans(
    batch: pa.RecordBatch, first_place: int, found: Sequence[tuple[Kind, pa.Table]], keep: Bool | None = None
) -> tuple[pa.RecordBatch, list[Verdict]]:
    """The documents of a shard from `first_place` on without the spans of each kind, and a verdict for each changed
    document and kind. Documents with only white space left are removed, by the first kind. Those that `keep` excludes
    are removed without a verdict."""
    kept = np.ones(len(batch), np.bool_) if keep is None else keep.copy()
    changed = np.zeros(len(batch), np.bool_)
    texts: list[str] = []
    verdicts: list[Verdict] = []
    spans: dict[int, list[tuple[Kind, list[dict[str, Any]]]]] = {}
    for kind, table in found:
        begin, end = np.searchsorted(table["place"].to_numpy(), (first_place, first_place + len(batch)))
        mine = table.slice(begin, end - begin).to_pylist()
        for place, of_document in itertools.groupby(mine, lambda span: span["place"]):
            spans.setdefault(place - first_place, []).append((kind, list(of_document)))
    for row, cut in sorted(spans.items()):
        id_, text, source, _ = (column[row].as_py() for column in batch.columns)
        texts.append(_without(text.encode(), [span for _, some in cut for span in some]))
        changed[row], kept[row] = True, bool(texts[-1].strip())
        for number, (kind, some) in enumerate(cut):
            verdict: Literal["changed", "removed"] = "changed" if kept[row] or number else "removed"
            units = float(sum(span["units"] for span in some))
            verdicts.append(Verdict(id_, source, verdict, kind.reason, units, float(kind.size), _standing(kind, some)))
    column = pc.replace_with_mask(batch["text"], pa.array(changed), pa.array(texts, pa.string()))
    batch = batch.set_column(batch.schema.get_field_index("text"), "text", column)
    return batch.filter(pa.array(kept)), verdicts


def _without(text: bytes, cut: list[dict[str, Any]]) -> str:
    """The text without the bytes of these spans, which may overlap."""
    left = []
    done = 0
    for start, end in sorted((span["start"], span["end"]) for span in cut):
        left.append(text[done:start])
        done = max(done, end)
    return b"".join([*left, text[done:]]).decode()


def _standing(kind: Kind, cut: list[dict[str, Any]]) -> str:
    """The unit of the ledger's value, and the documents that still have the text."""
    shared = f" of {kind.documents} documents or more" if kind.documents > 1 else ""
    owners = list(dict.fromkeys(span["owner"] for span in cut))
    more = f" and {len(owners) - OWNERS_NAMED} more" if len(owners) > OWNERS_NAMED else ""
    return f"{kind.unit}s{shared} that stand in {', '.join(owners[:OWNERS_NAMED])}{more}"
