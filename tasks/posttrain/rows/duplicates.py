"""Duplicates among rows: the first of equal rows is kept, so that none is both trained on and held out.

Rows are equal if their messages are, after Unicode NFC and with each run of white space as one space. An answer that
is labelled as desirable in one row and as undesirable in another says nothing, so all such rows are dropped.
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
    """Files with the rows of the form, which may split each given row into several.

    Raises SourceError for a line that is not JSON.
    """
    if form.split is None:
        return paths
    path = out.scratch / "split.jsonl"
    write_json_lines(path, itertools.chain.from_iterable(map(form.split, read_rows(paths))))
    return [path]


def drop_duplicates(paths: list[Path], which: Deduplicate, out: Output) -> tuple[list[Path], Counter[str]]:
    """Files with the rows that are kept, in their order, and the number dropped by reason.

    Raises SourceError for a line that is not JSON.
    """
    dropped: Counter[str] = Counter()
    if which == "none":
        return paths, dropped
    kept = out.scratch / "distinct.jsonl"
    both_ways = _labelled_both_ways(read_rows(paths))
    write_json_lines(kept, distinct(_without(both_ways, read_rows(paths), dropped), dropped))
    if which == "near":
        copies = _near_copies(kept, out)
        dropped[NEAR] = len(copies)
        rows, kept = read_rows([kept]), out.scratch / "unlike.jsonl"
        write_json_lines(kept, (row for number, row in enumerate(rows) if number not in copies))
    return [kept], +dropped


def _labelled_both_ways(rows: Iterable[Row]) -> set[bytes]:
    """The digests of unlabelled answers that have both labels."""
    labels: dict[bytes, bool] = {}
    both = set()
    for row in rows:
        if "label" in row and labels.setdefault(_unlabelled(row), row["label"]) != row["label"]:
            both.add(_unlabelled(row))
    return both


def _without(both_ways: set[bytes], rows: Iterable[Row], dropped: Counter[str]) -> Iterator[Row]:
    """The rows whose answer is not in `both_ways`. The others are counted as dropped."""
    for row in rows:
        if both_ways and _unlabelled(row) in both_ways:
            dropped[BOTH_WAYS] += 1
        else:
            yield row


def _unlabelled(row: Row) -> bytes:
    return digest_as_compared(parts_of(row, but="label"))


def _near_copies(path: Path, out: Output) -> set[int]:
    """The numbers of rows to drop as near-duplicates: each cluster keeps its longest row, the first of these.

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
    duplicates = find_duplicates(config, corpus, Output.at(folder / "found", runtime=out.runtime))
    return set(duplicates["row"].to_pylist())


def _texts(value: Any) -> Iterator[str]:
    """The contents of all messages, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
