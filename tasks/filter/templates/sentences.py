"""The sentences of documents, and the keys under which they and their templates are counted, host by host.

A sentence ends as in `dedup.sentences`, and also at a line end. It counts word for word, and also as a template if
something is left out of it and enough words remain. A document's opening is its first sentences, up to enough words in
their templates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt8, UInt64
from tasks.dedup.spans import word_kernels
from tasks.dedup.spans.kinds import stops
from tasks.filter.templates import kernels
from tasks.filter.templates.characters import template_characters
from tasks.filter.templates.config import TemplateCountsConfig
from tasks.text.characters import characters
from tasks.text.scan import utf8

NOT_MARKED = np.empty(0, np.uint8)
SENTENCES, TEMPLATES, OPENINGS = COUNTED = ("sentences", "templates", "openings")


class Counted(NamedTuple):
    """Everything of one kind to count: document numbers, sentences from `places` up to `stops`, and keys."""

    documents: Int64
    places: Int64
    stops: Int64
    keys: UInt64


class Sentences(NamedTuple):
    """The S sentences of D documents, each with its document, its characters without white space, and its begin, and
    what to count, by kind. `marks` are empty unless requested."""

    documents: Int64
    sizes: Int64
    counted: dict[str, Counted]
    starts: Int64
    marks: UInt8


def find_sentences(config: TemplateCountsConfig, texts: pa.Array, salts: UInt64, *, mark: bool = False) -> Sentences:
    """The sentences of D texts, with keys that include the documents' salts (D). With `mark`, `marks` says for each
    byte whether templates leave it out."""
    data, offsets = utf8(texts)
    exact, starts, ends = word_kernels.find_sentences(data, offsets, *characters(True, True), stops(True))
    count = int(ends[-1]) if len(ends) else 0
    exact = exact[:count]
    hashes, rows = np.empty(count, np.uint64), np.zeros((count, kernels.COLUMNS), np.int64)
    marks = np.zeros(len(data), np.uint8) if mark else NOT_MARKED
    kernels.find_templates(data, offsets, starts, ends, *template_characters(), hashes, rows, marks)
    openings, after = np.zeros(len(texts), np.uint64), np.zeros(len(texts), np.int64)
    kept = kernels.find_openings(hashes, rows, ends, config.opening_words, openings, after)
    words, left, gaps, sizes = rows.T
    documents = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
    salted = salts[documents]
    whole = np.flatnonzero(words >= config.words)
    filled = np.flatnonzero((gaps > 0) & (left >= config.words))
    opened = np.flatnonzero(kept >= config.words)
    firsts = ends - np.diff(ends, prepend=0)
    counted = {
        SENTENCES: Counted(documents[whole], whole, whole + 1, exact[whole] ^ salted[whole]),
        TEMPLATES: Counted(documents[filled], filled, filled + 1, hashes[filled] ^ salted[filled]),
        OPENINGS: Counted(opened, firsts[opened], after[opened], openings[opened] ^ salts[opened]),
    }
    return Sentences(documents, sizes, counted, starts, marks)
