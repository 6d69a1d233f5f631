"""Texts that are like a document: near-duplicates of it, longer texts that contain it, and quotations of it.

Near-duplicates and containers are found by the shingles of dedup (tasks/dedup), but exactly: as few documents are
looked for, each text's shingles are compared with theirs, without the estimate of MinHash. A quotation is a run of
words of the document. Up to `GAP` words in a row may differ, in the text or in the document, so that a redacted name or
address doesn't hide it. They don't count. Words are compared as dedup does: letters, digits and `_` after Unicode NFC
and case folding, without white space, punctuation and invisible characters. A text with markup or escapes is also
compared as it reads (tasks/filter/contamination/plain.py). A text that says the same in other words isn't found, nor a
translation.

Shapes: T texts, D versions of documents, S distinct shingles of all D.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt64
from tasks.dedup.config import SketchConfig
from tasks.dedup.near_duplicates.verify import shingle_sets
from tasks.dedup.sketch import scanner_of
from tasks.filter.contamination.plain import plain, unwrapped
from tasks.text.characters import INVISIBLE
from tasks.text.kernels import GOLDEN
from tasks.text.scan import Scanner

NEAR, CONTAINS, QUOTES = "near-duplicate", "contains it", "quotes it"
SEED = 5  # words that a quotation has to have in a row
GAP = 8  # words that may differ between two such rows, as in an e-mail address
SPARSE = 4  # a text is compared word by word if it has this part of the shingles of a run
ROUNDING = 1e-9  # .7 × 10 is above 7
POSITIONS = 32  # of a repeated row of words that are tried
SHOWN = 160  # characters of a quotation
WORD = re.compile(r"\w+")


class Version(NamedTuple):
    """A document's text as some artifact, or a file, has it."""

    id: str
    text: str


class Match(NamedTuple):
    """Text `row` is like a document. `value` is a Jaccard similarity, the share of the document's shingles that it has,
    or the number of the document's words that it quotes."""

    row: int
    document: str
    kind: str
    value: float
    quotation: str


class Words(NamedTuple):
    """A text in NFC, its words' hashes, and where each word begins and ends."""

    text: str
    hashes: UInt64
    spans: list[tuple[int, int]]

    def quotation(self, first: int, last: int) -> str:
        """The beginning of the text from word `first` to word `last`, on one line."""
        return " ".join(self.text[self.spans[first][0] : self.spans[last][1]][: 2 * SHOWN].split())[:SHOWN]


class Sought(NamedTuple):
    """Shingles of `size` words of D versions: `shingles_S` ascending, the versions that have each, and for each
    version the number of its shingles and how many of them a text needs to be looked at."""

    size: int
    shingles_S: UInt64
    ends_S: Int64
    owners: Int64
    sizes_D: Int64
    needed_D: Int64

    @classmethod
    def of(cls, size: int, sets: Sequence[UInt64], needed_D: Int64) -> Sought:
        """The index of these sets."""
        joined = np.concatenate(sets)
        sizes = np.array([len(one) for one in sets], np.int64)
        order = np.argsort(joined, kind="stable")
        shingles, counts = np.unique(joined, return_counts=True)
        return cls(size, shingles, np.cumsum(counts), np.repeat(np.arange(len(sets)), sizes)[order], sizes, needed_D)

    def shared(self, sets: Sequence[UInt64]) -> Iterator[tuple[int, Int64]]:
        """(row, the number of shingles that it shares with each version) for each set that has enough of any."""
        joined = np.concatenate([np.empty(0, np.uint64), *sets])
        place = np.minimum(np.searchsorted(self.shingles_S, joined), len(self.shingles_S) - 1)
        hit = np.flatnonzero(self.shingles_S[place] == joined)
        rows = np.repeat(np.arange(len(sets)), [len(one) for one in sets])[hit]
        least = self.needed_D.min()
        for row in np.flatnonzero(np.bincount(rows, minlength=1) >= least).tolist():
            found = place[hit[np.searchsorted(rows, row) : np.searchsorted(rows, row, side="right")]]
            starts = np.concatenate(([0], self.ends_S[:-1]))[found]
            owners = np.concatenate([self.owners[a:b] for a, b in zip(starts, self.ends_S[found], strict=True)])
            counts = np.bincount(owners, minlength=len(self.sizes_D))
            if (counts >= self.needed_D).any():
                yield row, counts


class Likeness:
    """What is looked for: versions of documents, near-duplicates with shingles of `ngram` words and a similarity of at
    least `threshold`, and quotations of at least `run` words. Of a shorter document, the whole. Safe for threads."""

    def __init__(self, versions: Sequence[Version], *, ngram: int, threshold: float, run: int) -> None:
        as_read = [Version(one.id, plain(one.text)) for one in versions]
        self.versions = list(dict.fromkeys((*versions, *as_read)))
        self.threshold, self.run = threshold, run
        scanner, texts = scanner_of(SketchConfig()), pa.array([one.text for one in self.versions], pa.string())
        words_D = [_words_of(scanner, pa.scalar(one.text)) for one in self.versions]
        lengths = {one.id: len(words) for one, words in zip(self.versions, words_D, strict=True)}
        self.short = {identity for identity, length in lengths.items() if length < run}  # ids
        sets = shingle_sets(scanner, ngram, texts)
        needed = np.maximum(1, np.ceil(threshold * np.array([len(one) for one in sets]) - ROUNDING)).astype(np.int64)
        self.near = Sought.of(ngram, sets, needed)
        seeds = np.array([min(SEED, run, len(words)) for words in words_D])
        self._phrases = [Phrases.of(words, seed) for words, seed in zip(words_D, seeds.tolist(), strict=True)]
        self.quoted: list[tuple[Int64, Sought]] = []  # by seed: the versions, and their index
        for seed in sorted(set(seeds.tolist()), reverse=True):
            members = np.flatnonzero(seeds == seed)
            sets = shingle_sets(scanner, seed, texts.take(pa.array(members)))
            needed = np.array([max(1, _fewest(words_D[each], seed, run) // SPARSE) for each in members])
            self.quoted.append((members, Sought.of(seed, sets, needed)))

    def matches(self, texts: pa.Array) -> list[Match]:
        """At most one match for each text (T,): the closest."""
        scanner = scanner_of(SketchConfig())
        found = {match.row: match for match in self._matches(scanner, texts)}
        rows, as_read = unwrapped(texts)
        if len(rows):
            for match in self._matches(scanner, as_read):
                row = int(rows[match.row])
                found.setdefault(row, match._replace(row=row))
        return [found[row] for row in sorted(found)]

    def _matches(self, scanner: Scanner, texts: pa.Array) -> Iterator[Match]:
        done = set()
        near = shingle_sets(scanner, self.near.size, texts)
        for row, counts in self.near.shared(near):
            jaccard = counts / (self.near.sizes_D + len(near[row]) - counts)
            share = counts / self.near.sizes_D
            kind, values = (NEAR, jaccard) if jaccard.max() >= self.threshold else (CONTAINS, share)
            best = int(values.argmax())
            if values[best] >= self.threshold:
                done.add(row)
                start = " ".join(texts[row].as_py()[: 2 * SHOWN].split())[:SHOWN]
                yield Match(row, self.versions[best].id, kind, float(values[best]), start)
        for members, quoted in self.quoted:
            sets = near if quoted.size == self.near.size else shingle_sets(scanner, quoted.size, texts)
            for row, counts in quoted.shared(sets):
                if row not in done and (match := self._quotation(scanner, row, texts[row], members, quoted, counts)):
                    done.add(row)
                    yield match

    def _quotation(
        self, scanner: Scanner, row: int, text: pa.Scalar, members: Int64, quoted: Sought, counts: Int64
    ) -> Match | None:
        """A quotation of one of these versions, of which the text has `counts` seeds."""
        words = _words_of(scanner, text)
        for number in np.argsort(-counts, kind="stable").tolist():
            if counts[number] < quoted.needed_D[number]:
                continue
            mine = self._phrases[members[number]]
            length, first, last = longest_run(words, mine, min(self.run, len(mine.words)))
            if length:
                quotation = read_words(scanner, text.as_py()).quotation(first, last)
                return Match(row, self.versions[members[number]].id, QUOTES, length, quotation)
        return None


class Phrases(NamedTuple):
    """A document's words, and its rows of `seed` words: their hashes ascending, and where each begins."""

    words: UInt64
    seed: int
    keys: UInt64
    places: Int64

    @classmethod
    def of(cls, words: UInt64, seed: int) -> Phrases:
        """The index of these words."""
        keys = _keys(words, seed)
        places = np.argsort(keys, kind="stable")
        return cls(words, seed, keys[places], places)

    def beginnings(self, key: np.uint64) -> list[int]:
        """Where rows with this hash begin, or the first of very many."""
        first = int(np.searchsorted(self.keys, key))
        last = int(np.searchsorted(self.keys[first : first + POSITIONS], key, side="right"))
        return [int(place) for place in self.places[first : first + last]]


def longest_run(words: UInt64, document: Phrases, least: int) -> tuple[int, int, int]:
    """(the number of words, the first and the last place in `words`) of the longest run of the document's words, or
    zeros if it has fewer than `least`."""
    keys = _keys(words, document.seed)
    hits = _dense(np.flatnonzero(np.isin(keys, document.keys)), document.seed, least)
    best = (0, 0, 0)
    start = end = length = document_end = 0
    for place in hits.tolist():
        if place < end:
            continue
        known = document.beginnings(keys[place])
        near = [at for at in known if 0 <= at - document_end <= GAP] if length and place - end <= GAP else []
        if not near:
            start, length = place, 0
        size, at = max((_common(words[place:], document.words[at:]), at) for at in near or known)
        end, length, document_end = place + size, length + size, at + size
        best = max(best, (length, start, end - 1), key=lambda run: run[0])
    return best if best[0] >= least else (0, 0, 0)


def _dense(hits: Int64, seed: int, least: int) -> Int64:
    """The hits that lie close enough together for a run of `least` words, whatever the document's order is."""
    if not len(hits):
        return hits
    apart = np.diff(hits)
    group = np.concatenate(([0], np.cumsum(apart > seed + GAP)))
    covered = np.bincount(group, np.append(np.minimum(apart, seed), seed))
    return hits[covered[group] >= least]


def read_words(scanner: Scanner, text: str) -> Words:
    """The words of a text, with their places, as the scanner hashes them."""
    text = unicodedata.normalize("NFC", text.translate(dict.fromkeys(map(ord, INVISIBLE))))
    tokens = list(WORD.finditer(text))
    hashes: list[UInt64] = [np.empty(0, np.uint64)] * len(tokens)
    for scanned in scanner.scan(pa.array([token.group() for token in tokens], pa.string())):
        for row, part in zip(
            scanned.rows.tolist(), np.split(scanned.words[: scanned.word_ends[-1]], scanned.word_ends[:-1]), strict=True
        ):
            hashes[row] = part.copy()
    spans = [token.span() for token, part in zip(tokens, hashes, strict=True) for _ in part]
    return Words(text, np.concatenate([np.empty(0, np.uint64), *hashes]), spans)


def _words_of(scanner: Scanner, text: pa.Scalar) -> UInt64:
    """The hashes of a text's words. A text without words has one, of all its characters."""
    words = np.empty(0, np.uint64)
    for scanned in scanner.scan(pa.array([text.as_py()], pa.string())):
        words = scanned.words[: scanned.word_ends[-1]].copy()
    return words


def _keys(words: UInt64, size: int) -> UInt64:
    """A hash of each `size` words in a row."""
    count = max(0, len(words) - size + 1)
    weights = np.cumprod(np.array([1, *[GOLDEN] * (size - 1)], np.uint64))
    return sum((words[k : k + count] * weights[k] for k in range(size)), np.zeros(count, np.uint64))


def _common(one: UInt64, other: UInt64) -> int:
    """The number of equal words at the beginning of both."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def _fewest(words: UInt64, seed: int, run: int) -> int:
    """The fewest distinct seeds of any run of a document."""
    keys = _keys(words, seed)
    width = max(1, min(run, len(words)) - seed + 1)
    if len(keys) <= width:
        return len(np.unique(keys))
    # A seed counts in a run if it occurred last before the run began
    order = np.argsort(keys, kind="stable")
    before = np.full(len(keys), -1)
    again = keys[order][1:] == keys[order][:-1]
    before[order[1:][again]] = order[:-1][again]
    new = before < np.arange(len(keys)) - width  # a bound from below: repeats within a run's width don't count
    sums = np.concatenate(([0], np.cumsum(new)))
    return int((sums[width:] - sums[:-width]).min())
