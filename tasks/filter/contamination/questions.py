"""Benchmark questions as n-grams.

The search for a question is a search for its parts (`parts.py`). N-grams of `ngram` words are taken at every position
of a part. A shorter part is matched whole. A question whose parts are all too short can't be matched.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Bool, Int64, UInt8, UInt64
from tasks.filter.contamination import kernels
from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.contamination.parts import WORD, Part, count_words, parts_of
from tasks.text.scan import Scanner

BITS = 32  # bits of the bit map per n-gram: about one position in 32 is looked up in vain
SLOTS = 2  # rows of the table per n-gram


class Question(NamedTuple):
    """One question of a benchmark, and the texts to search for."""

    benchmark: str
    id: str
    parts: tuple[Part, ...]


class Pairs(NamedTuple):
    """A relation: number i is related to `members[ends[i - 1]:ends[i]]`."""

    ends: Int64
    members: Int64

    @classmethod
    def of(cls, numbers: Int64, members: Int64, size: int) -> Pairs:
        """Build the relation from two aligned arrays. `numbers` are ascending and below `size`."""
        return cls(np.cumsum(np.bincount(numbers, minlength=size)), members)

    def expand(self, rows: Int64, numbers: Int64) -> tuple[Int64, Int64]:
        """(row, member) for each member of the number of each (row, number)."""
        starts = np.concatenate(([0], self.ends[:-1]))[numbers]
        sizes = self.ends[numbers] - starts
        places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(starts, sizes)
        return np.repeat(rows, sizes), self.members[places]


class Index(NamedTuple):
    """Q questions, all their P parts and the parts' G distinct n-grams, indexed for the search.

    Part p belongs to question `owners[p]`, has `sizes[p]` distinct n-grams, and contains the query if `asks[p]`. N-gram
    g has the key `keys[g]`, and `held` maps it to its parts. The rest are arguments of kernels.find.
    """

    questions: list[Question]
    parts: list[Part]
    owners: Int64
    sizes: Int64
    asks: Bool
    keys: UInt64
    held: Pairs
    shortest: int
    wanted: Bool
    shift: np.uint64
    table: UInt64
    bits: UInt8

    @property
    def size(self) -> int:
        """The number of distinct n-grams."""
        return len(self.held.ends)


def read_questions(config: ContaminationConfig, files: Sequence[Path]) -> list[Question]:
    """All questions of the benchmark files. A benchmark has the name of its file.

    A short query that several questions of a benchmark share, with different answers ("Which of these is correct?"),
    identifies none of them. It isn't a part by itself.
    """
    questions = []
    for path in files:
        answers: dict[str, set[str]] = defaultdict(set)
        rows: list[tuple[str, str, list[Part]]] = []
        with path.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                parts = parts_of(row, config)
                answer = row["choices"][row["gold"]].strip().casefold()
                for part in parts:
                    answers[part.text.casefold()].add(answer)
                rows.append((path.stem, row["id"], parts))
        for benchmark, identity, parts in rows:
            questions.append(
                Question(
                    benchmark,
                    identity,
                    tuple(
                        part
                        for part in parts
                        if len(answers[part.text.casefold()]) == 1 or count_words(part.text) >= config.ngram
                    ),
                )
            )
    return questions


def index_questions(config: ContaminationConfig, questions: list[Question]) -> Index:
    """Index the n-grams of all parts of questions."""
    parts = [part for question in questions for part in question.parts]
    members, keys, openings, lengths = _ngrams(config, parts)
    distinct, places, numbers = np.unique(keys, return_index=True, return_inverse=True)
    ngrams, of_part = unique_pairs(numbers, members)
    exponent = max(10, (BITS * len(distinct)).bit_length())
    wanted = np.zeros(config.ngram + 1, np.bool_)
    wanted[lengths] = True
    index = Index(
        questions,
        parts,
        np.repeat(np.arange(len(questions)), [len(question.parts) for question in questions]),
        np.bincount(of_part, minlength=len(parts)),
        np.array([part.asks for part in parts], np.bool_),
        distinct,
        Pairs.of(ngrams, of_part, len(distinct)),
        config.min_words,
        wanted,
        np.uint64(64 - exponent),
        np.zeros((SLOTS * len(distinct) + 1, 2), np.uint64),
        np.zeros(1 << (exponent - 3), np.uint8),
    )
    kernels.fill(distinct, openings[places], index.shift, index.table, index.bits)
    return index


def unique_pairs(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Pairs of numbers, each once, ascending."""
    if not len(first):
        return first, second
    base = int(second.max()) + 1
    joined = np.unique(first * base + second)
    return joined // base, joined % base


def phrase(config: ContaminationConfig, index: Index, ngram: int) -> str:
    """The words of an n-gram, as in the first part that has it."""
    part = index.parts[index.held.members[index.held.ends[ngram - 1] if ngram else 0]]
    words = WORD.findall(Scanner().normalise(part.text))
    _, keys, _, lengths = _ngrams(config, [part])
    place = int(np.flatnonzero(keys == index.keys[ngram])[0])
    return " ".join(words[place : place + int(lengths[place])])


def _ngrams(config: ContaminationConfig, parts: list[Part]) -> tuple[Int64, UInt64, UInt64, Int64]:
    """For each n-gram of a part: the part, the n-gram's key, the key of its first `min_words` words, and its
    length."""
    scanner = Scanner()
    # Normalised first, so that a text that the scanner returns twice is the same both times and indexed once
    texts = pa.array([scanner.normalise(part.text) for part in parts], pa.string())
    empty = np.empty(0, np.int64)
    columns: list[tuple[Int64, UInt64, UInt64, Int64]] = [(empty, empty.view(np.uint64), empty.view(np.uint64), empty)]
    for scanned in scanner.scan(texts):
        starts = np.concatenate(([0], scanned.word_ends[:-1]))
        words = scanned.word_ends - starts
        length = np.minimum(words, config.ngram)
        count = np.where(words < config.min_words, 0, words - length + 1)
        row = np.repeat(np.arange(len(words)), count)
        firsts = starts[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        keys, openings = np.empty(len(row), np.uint64), np.empty(len(row), np.uint64)
        kernels.gather_keys(scanned.words, firsts, length[row], keys)
        kernels.gather_keys(scanned.words, firsts, np.full(len(row), config.min_words), openings)
        columns.append((scanned.rows[row], keys, openings, length[row]))
    rows, keys, openings, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
    return rows, keys, openings, lengths
