"""Benchmark questions as n-grams.

The text of a question is its query followed by the right answer, without "Question:" and "Answer:", which only the
prompt has. Wrong answers are left out: in a document they give nothing away, and are often true sentences about
something else. N-grams of `ngram` words are taken at every position; a shorter text is matched whole if it has at least
`min_words` words (GPT-3 drops those below 8: Brown et al. 2020, appendix C), otherwise it can't be matched. A document
with other words between query and answer is still found by the n-grams within either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Bool, Int64, UInt8, UInt64
from tasks.filter.contamination import kernels
from tasks.filter.contamination.config import ContaminationConfig
from tasks.text.scan import Scanner

BITS = 32  # of the bit map per n-gram: about one position in 32 is looked up in vain
SLOTS = 2  # of the table per n-gram

_PROMPT = re.compile(r"^\s*Question:|\bAnswer:\s*$")


class Question(NamedTuple):
    """One question of a benchmark; `text` is what documents are searched for."""

    benchmark: str
    id: str
    text: str


class Pairs(NamedTuple):
    """A relation: number i is related to `members[ends[i - 1]:ends[i]]`."""

    ends: Int64
    members: Int64

    @classmethod
    def of(cls, numbers: Int64, members: Int64, size: int) -> Pairs:
        """From two aligned arrays; `numbers` are ascending and below `size`."""
        return cls(np.cumsum(np.bincount(numbers, minlength=size)), members)

    def expand(self, rows: Int64, numbers: Int64) -> tuple[Int64, Int64]:
        """(row, member) for each (row, number), each pair once, ascending."""
        starts = np.concatenate(([0], self.ends[:-1]))[numbers]
        sizes = self.ends[numbers] - starts
        places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(starts, sizes)
        return unique_pairs(np.repeat(rows, sizes), self.members[places])


class Index(NamedTuple):
    """Q questions and their G distinct n-grams, indexed for the search.

    `ngrams[q]` is the number of distinct n-grams of question q; `asked` maps each n-gram to its questions. The rest are
    the arguments of kernels.find.
    """

    questions: list[Question]
    ngrams: Int64
    asked: Pairs
    shortest: int
    wanted: Bool
    shift: np.uint64
    table: UInt64
    bits: UInt8

    @property
    def size(self) -> int:
        """The number of distinct n-grams."""
        return len(self.asked.ends)


def read_questions(files: Sequence[Path]) -> list[Question]:
    """All questions of the benchmark files; a benchmark has the name of its file."""
    found = []
    for path in files:
        with path.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                query = _PROMPT.sub("", row["query"])
                found.append(Question(path.stem, row["id"], f"{query} {row['choices'][row['gold']]}"))
    return found


def index_questions(config: ContaminationConfig, questions: list[Question]) -> Index:
    """Index the n-grams of all questions."""
    owners, keys, openings, lengths = _ngrams(config, questions)
    distinct, places, numbers = np.unique(keys, return_index=True, return_inverse=True)
    ngrams, of_question = unique_pairs(numbers, owners)
    exponent = max(10, (BITS * len(distinct)).bit_length())
    wanted = np.zeros(config.ngram + 1, np.bool_)
    wanted[lengths] = True
    index = Index(
        questions,
        np.bincount(of_question, minlength=len(questions)),
        Pairs.of(ngrams, of_question, len(distinct)),
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


def _ngrams(config: ContaminationConfig, questions: list[Question]) -> tuple[Int64, UInt64, UInt64, Int64]:
    """For each n-gram of a question: the question, the n-gram's key, the key of its first `min_words` words, and its
    length."""
    scanner = Scanner()
    # Normalised first, so that a text that the scanner returns twice is the same both times and indexed once
    texts = pa.array([scanner.normalise(question.text) for question in questions], pa.string())
    empty = np.empty(0, np.int64)
    parts: list[tuple[Int64, UInt64, UInt64, Int64]] = [(empty, empty.view(np.uint64), empty.view(np.uint64), empty)]
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
        parts.append((scanned.rows[row], keys, openings, length[row]))
    owners, keys, openings, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return owners, keys, openings, lengths
