"""Byte-level BPE (Sennrich et al. 2016, over bytes as in Radford et al. 2019) from distinct pre-tokens with counts.

The merges equal those of `tokenizers`' BpeTrainer with `initial_alphabet=ByteLevel.alphabet()`, rank by rank: the most
frequent pair first, and of equally frequent ones the pair with the smaller ids. Ids are assigned to special tokens,
then to the 256 bytes in the order of their characters, then to merges. Counts have 64 bits; `tokenizers` counts pairs
in 32 bits and is wrong from 2,147,483,648 on. Training is single-threaded and so independent of the number of threads.

Memory: about 35 bytes per byte of the distinct words, most of it for pairs and their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import ConfigError
from storage.shards.arrays import Int32, Int64, UInt8
from tasks.tokenizer.bpe.alphabet import BYTE_ORDER, BYTES, spell, unspell
from tasks.tokenizer.bpe.kernels import NONE, Words, lay_out, learn

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

REMEDY = "Lower tokenizer.sample_bytes_per_source."


class Learnt(NamedTuple):
    """M merges in order of rank, M × 2 as (left id, right id); the bytes of every id; and for each merge the count of
    its pair when it was merged, which never rises."""

    merges: Int64
    vocabulary: list[bytes]
    counts: Int64


def train(
    words: UInt8, ends: Int64, counts: Int64, *, vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> Learnt:
    """Learn merges from W distinct words, word i being `words[ends[i - 1]:ends[i]]`, seen `counts[i]` times.

    There are fewer than `vocab_size` ids if no pair is left with a count of `min_frequency`, and more if special tokens
    and bytes already exceed it. The order of the words doesn't matter. Raises ConfigError for 2 GB of distinct words or
    more, for counts whose sum may overflow 64 bits, and for a special token that is duplicated or also a text token.
    """
    byte_ids, vocabulary = _first_ids(special_tokens)
    size = len(words) + len(ends) + 1
    check_sizes(ends, counts, size)
    laid = Words(np.empty(size, np.uint8), np.full(size, NONE, np.int32), np.empty(size, np.int32), counts)
    lay_out(words, ends, byte_ids, laid)
    rows: Int64 = learn(laid, byte_ids, len(vocabulary), vocab_size, max(1, min_frequency))
    merges, times = rows[:, :2], rows[:, 2]
    for left, right in merges.tolist():
        vocabulary.append(vocabulary[left] + vocabulary[right])
    _forbid(special_tokens, vocabulary)
    return Learnt(merges, vocabulary, times)


def settled_above(learnt: Learnt, *, vocab_size: int, min_frequency: int) -> int | None:
    """The count above which every word must be a single token. None if there were no merges to make.

    A word of two or more tokens contains a pair that is at least as frequent as the word. Merges are made in decreasing
    order of frequency, so a remaining pair is no more frequent than the last merge and, if merging stopped before the
    vocabulary was full, less frequent than `min_frequency`.
    """
    if len(learnt.vocabulary) < vocab_size:
        return max(1, min_frequency) - 1
    return int(learnt.counts[-1]) if len(learnt.counts) else None


def to_tokenizer(
    merges: Int64, vocabulary: Sequence[bytes], special_tokens: Sequence[str], split: PreTokenizer
) -> Tokenizer:
    """The merges as a tokenizer of the library, with the same `tokenizer.json` as its own trainer would give."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import BPE

    tokens = [*special_tokens, *(spell(token) for token in vocabulary[len(special_tokens) :])]
    pairs = [(tokens[left], tokens[right]) for left, right in merges.tolist()]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def check_sizes(ends: Int64, counts: Int64, size: int) -> None:
    """Raises ConfigError for words that need `size` places if those, or the sum of their counts, are too many."""
    if size > np.iinfo(np.int32).max:
        raise ConfigError(f"The distinct pre-tokens to learn from have {size:,} bytes, but the limit is 2 GB.", REMEDY)
    letters = float(np.diff(ends, prepend=0).astype(float) @ counts.astype(float))
    if letters > np.iinfo(np.int64).max / 2:  # half, to allow for rounding
        raise ConfigError("The pre-tokens to learn from are more than 64 bits can count.", REMEDY)


def _first_ids(special_tokens: Sequence[str]) -> tuple[Int32, list[bytes]]:
    """The id of each byte, and the vocabulary before any merge."""
    vocabulary = [token.encode() for token in special_tokens]
    byte_ids = np.empty(BYTES, np.int32)
    byte_ids[list(BYTE_ORDER)] = np.arange(BYTES) + len(vocabulary)
    return byte_ids, vocabulary + [bytes([byte]) for byte in BYTE_ORDER]


def _forbid(special_tokens: Sequence[str], vocabulary: list[bytes]) -> None:
    """Raise ConfigError if two tokens have the same spelling: the library would give both the same id."""
    learnt = set(vocabulary[len(special_tokens) :])
    for number, token in enumerate(special_tokens):
        if unspell(token) in learnt:
            raise ConfigError(f"The special token {token!r} is also a token of text.", "Choose another spelling.")
        if token in special_tokens[:number]:
            raise ConfigError(f"The special token {token!r} is listed twice.", "List it once.")
