"""Which of several documents is preferred; independent of the order of documents.

Of duplicates, the most trusted source's comes first, as `source_order` says. Then the one with most clean text: the
characters in lines of text, less those in other lines, such as a site's navigation, and less some for each defect. So a
longer copy is preferred as far as what it has more of is text: one that was cut short is not, and neither is one with
menus around it. Then fewest defects, the longest after normalisation, and the smallest source and id.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus

BURDEN = 2  # characters of text that a character in another line takes away
REPAIR = 4  # characters of text that a defect takes away: a misread character adds up to 2
LEAST = 0.25  # of all characters at least count as text, since verse, code and tables have few lines of it
PREFERENCE = [
    ("earlier", "descending"),
    ("rank", "ascending"),
    ("clean", "descending"),
    ("repairs", "ascending"),
    ("length", "descending"),
    ("apart", "descending"),
    *((name, "ascending") for name in ("source", "id", "content", "row")),
]
CONDITION = ["exact", "length", "repairs", "text", "other"]


def for_choice(config: DedupConfig, corpus: Corpus, rows: Int64) -> pa.Table:
    """What `standing` has, for ascending rows, and the other columns that PREFERENCE names: `length` and `repairs` as
    in the sketch; `clean`, see `clean_text`; and `apart`, the characters in other lines, or 0 if they are most. Of
    equal words, that prefers headings in lines of their own to a text on a single line, and to a line for each word.
    """
    table = corpus.columns(rows, CONDITION)
    text, other = table["text"].to_numpy(), table["other"].to_numpy()
    added = {"length": table["length"], "repairs": table["repairs"], "clean": pa.array(clean_text(table)),
             "apart": pa.array(np.where(other < text, other, 0))}  # fmt: skip
    columns = standing(config, corpus, rows)
    for name, column in added.items():
        columns = columns.append_column(name, column)
    return columns


def clean_text(table: pa.Table) -> Int64:
    """How much clean text each row has, in characters; it may be negative. Documents of equal normalised text have the
    same words in other lines, so the least of them is that of all, less each one's own defects."""
    text, other, repairs = (table[name].to_numpy().astype(np.int64) for name in ("text", "other", "repairs"))
    clean = np.maximum(text - BURDEN * other, (LEAST * (text + other)).astype(np.int64))
    _, place = np.unique(np.array(table["exact"].to_pylist(), "S16"), return_inverse=True)
    least = np.full(len(clean), np.iinfo(np.int64).max)
    np.minimum.at(least, place, clean)
    found: Int64 = least[place] - REPAIR * repairs
    return found


def standing(config: DedupConfig, corpus: Corpus, rows: Int64) -> pa.Table:
    """For ascending rows: `row`, `id` and `source`; `rank`, the position of the source in `source_order`; `earlier`, 1
    for a document that an earlier dedup kept, else 0; and `content`, the hash of the shard's content, so that of equal
    documents the same one is preferred whatever the order of shards.
    """
    table = corpus.columns(rows, ["id", "source"])
    ranks = {name: number for number, name in enumerate(config.source_order)}
    rank = [ranks.get(source, len(ranks)) for source in table["source"].to_pylist()]
    table = table.append_column("row", pa.array(rows)).append_column("rank", pa.array(rank, pa.int64()))
    table = table.append_column("earlier", pa.array(corpus.is_earlier(rows).astype(np.int8)))
    return table.append_column("content", pa.array(corpus.contents(rows), pa.string()))
