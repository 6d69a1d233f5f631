"""The contamination stage in two passes: match n-grams of the benchmarks in documents, then judge the matches.

Whether an n-gram is a common phrase is known only after all documents are counted. The first pass therefore writes the
matches of each shard to a file, and the second pass reads these instead of the texts. In a document with the whole
query, a common phrase counts all the same: the more documents have a question, the wider it leaked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.arrays import Bool, Int64, UInt64
from storage.shards.documents import read_batches
from storage.shards.lines import write_json_lines
from storage.shards.parquet import parquet_writer
from tasks.filter.contamination import kernels
from tasks.filter.contamination.config import PHRASES, QUESTIONS, SHOWN, ContaminationConfig
from tasks.filter.contamination.plain import unwrapped
from tasks.filter.contamination.questions import Index, index_questions, phrase, read_questions, unique_pairs
from tasks.filter.side_files import FILE, IDS, IdDigest
from tasks.shards import ShardResult, collect, map_shards
from tasks.stage.output import Output
from tasks.text.scan import Scanner

MATCHES = "matches.npy"  # matches × 2: the document's row in the shard, and the number of the n-gram
COUNTS = "counts.npy"  # counts × 3: what is counted, the number of an n-gram or question, and the documents, if any
COUNTED, EXEMPT, ASKED = range(3)  # documents in which an n-gram counts or doesn't, or that share one with a question
NAMED = 1000  # maximum common phrases to write, the most frequent first
SCHEMA = pa.schema([("contamination_ngrams", pa.int64()), ("contamination_benchmarks", pa.string())])


def find_contamination(config: ContaminationConfig, documents: Artifact, benchmarks: Artifact, out: Output) -> None:
    """See the stage `contamination`. Memory: 80 bytes per n-gram of the benchmarks, and the matches of a shard."""
    index = index_questions(
        config, read_questions(config, [benchmarks.file(name) for name in benchmarks.names("*.jsonl")])
    )
    shards = documents.files("*.parquet")
    matched = map_shards(functools.partial(_match_shard, index), shards, out, "match", releases_gil=True)
    frequency = sum(
        (np.bincount(np.load(shard.folder / MATCHES)[:, 1], minlength=index.size) for shard in matched),
        start=np.zeros(index.size, np.int64),
    )
    rare = frequency <= config.max_documents
    marked = map_shards(functools.partial(_mark_shard, index, rare), matched, out, "count", releases_gil=True)
    collect(marked, FILE, out.path)
    counted, exempt, asked = _sum(marked, (index.size, index.size, len(index.questions)))
    _write_questions(index, counted, exempt, asked, marked, out)
    common = _write_phrases(config, index, counted, exempt, out)
    out.count(
        measured=sum(shard.counts["documents"] for shard in matched),
        contaminated=sum(shard.counts["contaminated"] for shard in marked),
        common_ngrams=common,
    )


def _sum(shards: Sequence[ShardResult], sizes: Sequence[int]) -> list[Int64]:
    """The counts of all shards, by what they are."""
    totals = [np.zeros(size, np.int64) for size in sizes]
    for shard in shards:
        counts = np.load(shard.folder / COUNTS)
        for what, total in enumerate(totals):
            _, numbers, times = counts[counts[:, 0] == what].T
            total[numbers] += times  # a number stands once in a shard
    return totals


def _counts(what: int, numbers: Int64) -> Int64:
    distinct, times = np.unique(numbers, return_counts=True)
    return np.stack((np.full(len(distinct), what), distinct, times), axis=1)


class Matcher:
    """Finds the n-grams of an index in batches of texts. Not thread-safe."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.scanner = Scanner()
        self.seen = np.full(index.size, -1, np.int64)
        self.stamp = 0
        self.texts, self.ngrams = np.empty(1024, np.int64), np.empty(1024, np.int64)

    def match(self, texts: pa.Array) -> tuple[Int64, Int64]:
        """(rows, n-grams) of all matches in the texts as written and as they read (`plain.py`), each pair once."""
        rows, ngrams = self._match(texts)
        hidden, plain = unwrapped(texts)
        if not len(hidden):
            return rows, ngrams
        again, more = self._match(plain)
        return unique_pairs(np.concatenate((rows, hidden[again])), np.concatenate((ngrams, more)))

    def _match(self, texts: pa.Array) -> tuple[Int64, Int64]:
        rows, ngrams = np.empty(0, np.int64), np.empty(0, np.int64)
        for scanned in self.scanner.scan(texts):
            count = self._find(scanned.words, scanned.word_ends)
            # The scanner returns a text again if it wasn't normalised the first time: drop its earlier matches
            first = ~np.isin(rows, scanned.rows)
            rows = np.concatenate((rows[first], scanned.rows[self.texts[:count]]))
            ngrams = np.concatenate((ngrams[first], self.ngrams[:count]))
        return rows, ngrams

    def _find(self, words: UInt64, word_ends: Int64) -> int:
        index = self.index
        while True:
            count: int = kernels.find(
                words,
                word_ends,
                index.shortest,
                index.wanted,
                index.shift,
                index.table,
                index.bits,
                self.seen,
                self.stamp,
                self.texts,
                self.ngrams,
            )
            self.stamp += len(word_ends)
            if count <= len(self.texts):
                return count
            self.texts, self.ngrams = np.empty(count, np.int64), np.empty(count, np.int64)


def _match_shard(index: Index, shard: Path, folder: Path) -> dict[str, Any]:
    matcher = Matcher(index)
    digest = IdDigest()
    matches = [np.empty((0, 2), np.int64)]
    sizes = []
    for start, batch in read_batches(shard, ["id", "text"]):
        rows, ngrams = matcher.match(batch["text"])
        matches.append(np.stack((rows + start, ngrams), axis=1))
        digest.update(batch["id"])
        sizes.append(batch.num_rows)
    np.save(folder / MATCHES, np.concatenate(matches))
    return {"documents": sum(sizes), "groups": sizes, "ids": digest.hex()}


def _mark_shard(index: Index, rare: Bool, matched: ShardResult, folder: Path) -> dict[str, Any]:
    matches = np.load(matched.folder / MATCHES)
    counts_here = rare[matches[:, 1]] | _of_whole_query(index, matches)
    rows, ngrams = matches[counts_here].T
    documents = matched.counts["documents"]
    counts = np.bincount(rows, minlength=documents)
    with_part, parts = index.held.expand(rows, ngrams)
    with_question, questions = unique_pairs(with_part, index.owners[parts])
    numbers = {COUNTED: ngrams, EXEMPT: matches[~counts_here, 1], ASKED: questions}
    np.save(folder / COUNTS, np.concatenate([_counts(*one) for one in numbers.items()]))
    benchmarks = sorted({question.benchmark for question in index.questions})
    number = {benchmark: place for place, benchmark in enumerate(benchmarks)}
    of_question = np.array([number[question.benchmark] for question in index.questions], np.int64)
    with_benchmark, met = unique_pairs(with_question, of_question[questions])
    names = [""] * documents
    for row, benchmark in zip(with_benchmark.tolist(), met.tolist(), strict=True):
        names[row] = f"{names[row]},{benchmarks[benchmark]}" if names[row] else benchmarks[benchmark]
    _write_shard(folder / FILE, pa.record_batch([pa.array(counts), pa.array(names, pa.string())], SCHEMA), matched)
    hit = dict(zip(benchmarks, np.bincount(met, minlength=len(benchmarks)).tolist(), strict=True))
    return {"contaminated": int(np.count_nonzero(counts)), "benchmarks": hit}


def _of_whole_query(index: Index, matches: Int64) -> Bool:
    """Mark the matches (a document's row and an n-gram) that belong to a part with the query, if the document contains
    the whole part."""
    numbers, parts = index.held.expand(np.arange(len(matches)), matches[:, 1])
    base = len(index.parts) + 1
    pairs, place, times = np.unique(matches[numbers, 0] * base + parts, return_inverse=True, return_counts=True)
    whole = index.asks[pairs % base] & (times == index.sizes[pairs % base])
    belongs = np.zeros(len(matches), np.bool_)
    belongs[numbers[whole[place]]] = True
    return belongs


def _write_shard(path: Path, signals: pa.RecordBatch, matched: ShardResult) -> None:
    """Write a side file with the row groups of the document shard."""
    start = 0
    with parquet_writer(path, SCHEMA, compression="zstd") as writer:
        for size in matched.counts["groups"]:
            writer.write_batch(signals.slice(start, size))
            start += size
        writer.add_key_value_metadata({IDS: matched.counts["ids"]})


def _write_questions(
    index: Index, counted: Int64, exempt: Int64, asked: Int64, marked: Sequence[ShardResult], out: Output
) -> None:
    """Write questions.jsonl, with the part of each question of which the largest share is found, and a table with a row
    per benchmark."""
    found, common = (_by_part(index, times > 0) for times in (counted, (exempt > 0) & (counted == 0)))
    rows: dict[str, dict[str, Any]] = {}
    start = 0
    with (out.path / QUESTIONS).open("w", encoding="utf-8") as lines:
        for question, holders in zip(index.questions, asked.tolist(), strict=True):
            end = start + len(question.parts)
            line = {"benchmark": question.benchmark, "id": question.id, "ngrams": 0, "found": 0, "part": ""}
            line |= {"documents": holders, "common": 0}
            if question.parts:
                best = start + int(np.argmax(found[start:end] / index.sizes[start:end]))
                line |= {"ngrams": int(index.sizes[best]), "found": int(found[best]), "common": int(common[best])}
                line |= {"part": index.parts[best].name}
            empty = {"questions": 0, "unmatchable": 0, "dirty": 0, "common_only": 0, "documents": 0}
            row = rows.setdefault(question.benchmark, {"benchmark": question.benchmark, **empty})
            row["questions"] += 1
            row["unmatchable"] += not question.parts
            met = bool(found[start:end].any())
            row["dirty"] += met
            row["common_only"] += not met and bool(common[start:end].any())
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            start = end
    for benchmark, row in rows.items():
        row["documents"] = sum(shard.counts["benchmarks"][benchmark] for shard in marked)
    out.table("Benchmarks in the documents", [rows[benchmark] for benchmark in sorted(rows)])


def _by_part(index: Index, chosen: Bool) -> Int64:
    """The number of chosen n-grams of each part."""
    ngrams = np.flatnonzero(chosen)
    _, parts = index.held.expand(ngrams, ngrams)
    return np.bincount(parts, minlength=len(index.parts))


def _write_phrases(config: ContaminationConfig, index: Index, counted: Int64, exempt: Int64, out: Output) -> int:
    """Write phrases.jsonl and a table: the n-grams that don't count in some documents, because too many documents have
    them. Returns their number."""
    numbers = np.flatnonzero(exempt)
    named = numbers[np.argsort(-exempt[numbers], kind="stable")][:NAMED].tolist()
    rows = []
    for number in named:
        _, parts = index.held.expand(np.zeros(1, np.int64), np.array([number]))
        benchmarks = sorted({index.questions[owner].benchmark for owner in index.owners[parts].tolist()})
        text = phrase(config, index, number)
        rows.append({"phrase": text, "documents": int(exempt[number]), "benchmarks": ",".join(benchmarks)})
    write_json_lines(out.path / PHRASES, rows)
    if rows:
        out.table("Common phrases, not counted", rows[:SHOWN])
    return len(numbers)
