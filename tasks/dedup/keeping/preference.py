"""Which of several documents is preferred; independent of the order of documents.

Of duplicates, the most trusted source's comes first, as `source_order` says. Then the one with most clean text: the
characters in lines of text, less those in other lines, such as a site's navigation, and less some for each defect. So a
longer copy is preferred as far as what it has more of is text: one that was cut short is not, and neither is one with
menus around it. A long text on a single line counts a little less, since its lines are lost. Then fewest defects, the
longest after normalisation, one in lines, and the smallest source and id.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.keeping.kernels import LONGEST

BURDEN = 2  # characters of text that a character in another line takes away
REPAIR = 4  # characters of text that a defect takes away: a misread character adds up to 2
WHOLE = 0.8  # share of a text from which on its longest line, of over 1,000 characters, is all of it but for menus
UNBROKEN = 0.05  # share of such a text that counts less
LEAST = 0.25  # of all characters at least count as text, since verse, code and tables have few lines of it
PREFERENCE = [
    ("earlier", "descending"),
    ("rank", "ascending"),
    ("clean", "descending"),
    ("repairs", "ascending"),
    ("length", "descending"),
    ("apart", "descending"),
    ("broken", "descending"),
    *((name, "ascending") for name in ("source", "id", "content", "row")),
]
CONDITION = ["exact", "length", "text", "other", "repairs", "longest"]


def described(config: DedupConfig, corpus: Corpus, rows: Int64) -> pa.Table:
    """What `standing` has, for ascending rows, and the columns CONDITION of their sketches."""
    table, condition = standing(config, corpus, rows), corpus.columns(rows, CONDITION)
    for name in CONDITION:
        table = table.append_column(name, condition[name])
    return table


def for_choice(table: pa.Table) -> pa.Table:
    """The table, which is as `described` makes it and has a column `cluster`, with the other columns that PREFERENCE
    names: `clean`, see `clean_text`; `apart`, the characters in other lines, or 0 if they are most; and `broken`,
    whether there are several lines, most of them of text. Of equal words, these prefer headings in lines of their own
    to a text on a single line, and to a line for each word. All rows of a cluster must be there.
    """
    text, other, longest = (table[name].to_numpy() for name in ("text", "other", "longest"))
    added = {
        "clean": clean_text(table, table["cluster"].to_numpy()),
        "apart": np.where(other < text, other, 0),
        "broken": ((longest < text + other) & (other < text)).astype(np.int8),
    }
    for name, column in added.items():
        table = table.append_column(name, pa.array(column))
    return table


def clean_text(table: pa.Table, clusters: Int64) -> Int64:
    """How much clean text each row has, in characters; it may be negative. Documents of equal normalised text have the
    same words in other lines, so the least of them is that of all, less each one's own defects. What lost its line
    breaks no longer shows its headings and menus, so it has no larger share of clean text than the best of its cluster
    that has lines, and a little less."""
    text, other, repairs, longest = (table[name].to_numpy().astype(np.int64) for name in CONDITION[2:])
    size = text + other
    clean = np.maximum(text - BURDEN * other, (LEAST * size).astype(np.int64))
    unbroken = (longest > LONGEST) & (longest > WHOLE * size)
    _, clusters = np.unique(clusters, return_inverse=True)
    best = np.zeros(clusters.max(initial=-1) + 1)
    np.maximum.at(best, clusters[~unbroken], (clean / np.maximum(size, 1))[~unbroken])
    in_lines = np.where(best > 0, best, 1)[clusters]
    clean = np.where(unbroken, np.minimum(clean, (in_lines * size).astype(np.int64)), clean)
    _, place = np.unique(np.array(table["exact"].to_pylist(), "S16"), return_inverse=True)
    least = np.full(len(clean), np.iinfo(np.int64).max)
    np.minimum.at(least, place, clean)
    found: Int64 = least[place] - REPAIR * repairs - (UNBROKEN * size * unbroken).astype(np.int64)
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
