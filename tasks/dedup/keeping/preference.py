"""The order of preference among duplicates, independent of the order of documents.

The most trusted source comes first, by `source_order`, and what a model wrote comes last. Then the document with most
clean text: the characters in lines of text, less those in other lines, such as a site's navigation, and less some for
each defect. So a longer copy is preferred only if its additional characters are text: neither a copy that was cut short
nor one with menus around it wins. A long text on a single line counts a little less, since its line breaks are lost.
Then come the fewest defects, the longest after normalisation, a text in lines, and the smallest source and id.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, as_arrow, as_numpy
from storage.shards.documents import SYNTHETIC
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.keeping.kernels import LONGEST

BURDEN = 2  # characters of text that a character in another line takes away
REPAIR = 4  # characters of text that a defect takes away: a misread character adds up to 2
WHOLE = 0.8  # from this share on, a longest line of over 1,000 characters counts as the whole text apart from menus
UNBROKEN = 0.05  # share of such a text that counts less
LEAST = 0.25  # minimum share of all characters that counts as text, since verse, code and tables have few lines of it
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
    """The columns of `standing` for ascending rows, and the columns CONDITION of their sketches."""
    table, condition = standing(config, corpus, rows), corpus.columns(rows, CONDITION)
    for name in CONDITION:
        table = table.append_column(name, condition[name])
    return table


def for_choice(table: pa.Table) -> pa.Table:
    """Add the other columns that PREFERENCE names to a table of `described` with a column `cluster`, which must have
    all rows of a cluster: `clean`, see `clean_text`; `apart`, the characters in other lines, or 0 if they are most; and
    `broken`, whether there are several lines, most of them of text. Among equal words, these prefer headings in their
    own lines to a text on a single line, and to a line for each word.
    """
    text, other, longest = (as_numpy(table[name]) for name in ("text", "other", "longest"))
    added = {
        "clean": clean_text(table, as_numpy(table["cluster"])),
        "apart": np.where(other < text, other, 0),
        "broken": ((longest < text + other) & (other < text)).astype(np.int8),
    }
    for name, column in added.items():
        table = table.append_column(name, as_arrow(column))
    return table


def clean_text(table: pa.Table, clusters: Int64) -> Int64:
    """The clean text of each row in characters, perhaps negative. Documents of equal normalised text differ only in
    their lines, so the smallest value holds for all, less each one's own defects. A text that lost its line breaks
    hides its headings and menus, so its share of clean text is at most that of the best in its cluster with lines, and
    a little less."""
    text, other, repairs, longest = (as_numpy(table[name]).astype(np.int64) for name in CONDITION[2:])
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
    rank = [ranks.get(source, len(ranks) + source.startswith(SYNTHETIC)) for source in table["source"].to_pylist()]
    table = table.append_column("row", as_arrow(rows)).append_column("rank", as_arrow(np.array(rank, np.int64)))
    table = table.append_column("earlier", as_arrow(corpus.is_earlier(rows).astype(np.int8)))
    return table.append_column("content", as_arrow(corpus.contents(rows)))
