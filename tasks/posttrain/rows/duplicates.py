"""Duplicates among rows: of equal rows the first is kept, so that none is both trained on and held out.

Rows are equal when their messages are, after Unicode NFC and with each run of white space as one space. An answer that
is labelled as desirable in one row and as the opposite in another says nothing, and all such rows are dropped.
Near-duplicates are those of the stage `dedup`, found by its own code over the text of all messages of a row.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.shards.lines import write_json_lines
from tasks.posttrain.config import Deduplicate
from tasks.posttrain.rows.form import Row, RowForm
from tasks.posttrain.rows.prepare import read_rows
from tasks.posttrain.rows.same_rows import digest_as_compared, distinct, parts_of
from tasks.stage.output import Output

NEAR, BOTH_WAYS = "near_duplicate", "labelled_both_ways"


def split_rows(paths: list[Path], form: RowForm, out: Output) -> list[Path]:
    """Files with the rows of a form that those given stand for. Raises SourceError for a line that is not JSON."""
    if form.split is None:
        return paths
    path = out.scratch / "split.jsonl"
    write_json_lines(path, itertools.chain.from_iterable(map(form.split, read_rows(paths))))
    return [path]


def drop_duplicates(paths: list[Path], which: Deduplicate, out: Output) -> tuple[list[Path], Counter[str]]:
    """Files with the rows that are kept, in their order, and the number of those dropped by reason.

    Raises SourceError for a line that is not JSON.
    """
    dropped: Counter[str] = Counter()
    if which == "none":
        return paths, dropped
    kept = out.scratch / "distinct.jsonl"
    both_ways = _labelled_both_ways(read_rows(paths))
    write_json_lines(kept, distinct(_unlike(both_ways, read_rows(paths), dropped), dropped))
    if which == "near":
        copies = _near_copies(kept, out)
        dropped[NEAR] = len(copies)
        rows, kept = read_rows([kept]), out.scratch / "unlike.jsonl"
        write_json_lines(kept, (row for number, row in enumerate(rows) if number not in copies))
    return [kept], +dropped


def _labelled_both_ways(rows: Iterable[Row]) -> set[bytes]:
    """The digests of answers, without their labels, that have both."""
    labels: dict[bytes, bool] = {}
    both = set()
    for row in rows:
        if "label" in row and labels.setdefault(_unlabelled(row), row["label"]) != row["label"]:
            both.add(_unlabelled(row))
    return both


def _unlike(both_ways: set[bytes], rows: Iterable[Row], dropped: Counter[str]) -> Iterator[Row]:
    """The rows that are none of these; those are counted."""
    for row in rows:
        if both_ways and _unlabelled(row) in both_ways:
            dropped[BOTH_WAYS] += 1
        else:
            yield row


def _unlabelled(row: Row) -> bytes:
    return digest_as_compared(parts_of(row, but="label"))


def _near_copies(path: Path, out: Output) -> set[int]:
    """The numbers of rows that are near-duplicates of others: of each cluster the longest is kept, then the first.

    Imports compiled code.
    """
    from storage.shards.documents import Document, write_documents
    from tasks.dedup.config import DedupConfig
    from tasks.dedup.corpus import Corpus
    from tasks.dedup.duplicates import find_duplicates
    from tasks.dedup.sketch import sketch_corpus

    config, folder = DedupConfig(), out.scratch / "near"
    texts = ("\n\n".join(_texts(parts_of(row))) for row in read_rows([path]))
    numbered = (Document(f"{number:012}", text, "pairs") for number, text in enumerate(texts))
    write_documents(folder / "documents" / "00000.parquet", numbered)
    documents, sketched = Artifact.at(folder / "documents"), Output.at(folder / "sketches", runtime=out.runtime)
    sketch_corpus(config.sketch, documents, sketched)
    corpus = Corpus()
    corpus.add(documents, Artifact.at(sketched.path))
    found = find_duplicates(config, corpus, Output.at(folder / "found", runtime=out.runtime))
    return set(found["row"].to_pylist())


def _texts(value: Any) -> Iterator[str]:
    """The contents of messages, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
