"""Further merges for an existing byte-level BPE, learned from words that it has already cut into tokens.

The new merges come after all old ones. So the old ones go first, and a text without a new token keeps its ids. Between
two borders of tokens a text is always cut alike, whatever is around it: merges are made in order of rank, and none
crossed the borders. So all occurrences of a pair are found at the beginning, or when the merge that makes one of its
tokens is made, and two merges never spell the same token. That is what the kernels of a new vocabulary rely on too.

A vocabulary may have tokens that its merges don't reach, such as added ones. A pair that spells one is never merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from storage.errors import SourceError
from storage.shards.arrays import Int32, Int64
from tasks.tokenizer.bpe.alphabet import spell
from tasks.tokenizer.bpe.kernels import NONE, Words, apply, begin, join, room_for_changes, take_first
from tasks.tokenizer.bpe.pretokens import Pretokens
from tasks.tokenizer.bpe.train import check_sizes

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Merge(NamedTuple):
    """A new token: the two tokens that it joins, as they are spelled, and how often they were neighbours."""

    left: str
    right: str
    times: int

    @property
    def token(self) -> str:
        """The new token, as it is spelled."""
        return self.left + self.right


def learn_further(tokenizer: Tokenizer, words: Pretokens, *, number: int, min_frequency: int) -> list[Merge]:
    """At most `number` merges to append to those of a tokenizer, fewer if no pair is left with a count of
    `min_frequency`. Of equally frequent pairs that with the smaller ids is merged first, and new ids follow all others.

    The order of the words doesn't matter. Raises SourceError for a tokenizer that doesn't cut words into bytes.
    """
    vocabulary = tokenizer.get_vocab()
    known = max(vocabulary.values()) + 1
    laid, lengths, first = _lay_out(tokenizer, words, known + number)
    pairs, queue = begin(*first.grouped, min_frequency)
    size = len(laid.symbols)
    lists = np.empty(3 * size, np.int32)
    used = len(first.places)
    lists[:used] = first.places
    changes = room_for_changes(size, known + number)
    spelled = {id: token for token, id in vocabulary.items()}
    merges: list[Merge] = []
    while len(merges) < number:
        queue, (count, pair, start, places) = take_first(pairs, queue, min_frequency)
        if not count:
            break
        left, right = pair >> 32, pair & 0xFFFFFFFF
        merge = Merge(spelled[left], spelled[right], int(count))
        if merge.token in vocabulary:
            continue
        new = known + len(merges)
        vocabulary[merge.token], spelled[new] = new, merge.token
        lengths[new] = lengths[left] + lengths[right]
        join(laid, lengths, left, right, new, lists[start : start + places], changes)
        pairs, queue, used = apply(changes, left, right, new, min_frequency, lists, used, pairs, queue)
        merges.append(merge)
    return merges


def extended_settings(settings: Mapping[str, Any], merges: list[Merge]) -> dict[str, Any]:
    """A parsed tokenizer.json with further merges, whose tokens have the ids after its last.

    Its added tokens enter the vocabulary too: `tokenizers` numbers those that lack there after all others.
    """
    model, added = settings["model"], settings["added_tokens"]
    vocabulary = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    first = max(vocabulary.values()) + 1
    vocabulary |= {merge.token: first + number for number, merge in enumerate(merges)}
    in_words = any(isinstance(pair, str) for pair in model["merges"])
    further = [f"{one.left} {one.right}" if in_words else [one.left, one.right] for one in merges]
    return {**settings, "model": {**model, "vocab": vocabulary, "merges": [*model["merges"], *further]}}


class _Pairs(NamedTuple):
    """The positions of all pairs, ordered by pair; for each pair its key, its count, and where its positions are."""

    places: Int32
    grouped: tuple[Int64, Int64, Int64, Int64]


def _lay_out(tokenizer: Tokenizer, words: Pretokens, ids: int) -> tuple[Words, Int32, _Pairs]:
    """The words as the kernels read them, the bytes of each of `ids` ids, and the pairs."""
    tokens, owners = _tokens(tokenizer, words)
    lengths = np.zeros(ids, np.int32)
    for token, id in tokenizer.get_vocab().items():
        lengths[id] = len(token)  # a character for each byte
    sizes = lengths[tokens].astype(np.int64)
    if not np.array_equal(np.bincount(owners, sizes, len(words.ends)), np.diff(words.ends, prepend=0)):
        raise SourceError(
            "The tokenizer of the base has no token for some byte, so new ones can't be learned.",
            "Leave out tokenizer.extend, or choose another base.",
        )
    starts = 1 + owners + np.cumsum(sizes) - sizes  # a separator stands before all words, and after each
    size = len(words.words) + len(words.ends) + 1
    check_sizes(words.ends, words.counts, size)
    laid = Words(np.empty(0, np.uint8), np.full(size, NONE, np.int32), np.zeros(size, np.int32), words.counts)
    laid.symbols[starts] = laid.symbols[starts + sizes - 1] = tokens
    for at in (starts, starts + sizes - 1):
        laid.owners[at] = owners
    inner = np.flatnonzero(owners[1:] == owners[:-1])
    keys = (tokens[inner].astype(np.int64) << 32) | tokens[inner + 1]
    order = np.argsort(keys, kind="stable")  # positions ascend within a pair
    distinct, firsts, numbers = np.unique(keys[order], return_index=True, return_counts=True)
    counts = np.add.reduceat(words.counts[owners[inner][order]], firsts) if len(firsts) else firsts
    return laid, lengths, _Pairs(starts[inner][order].astype(np.int32), (distinct, counts, firsts, numbers))


def _tokens(tokenizer: Tokenizer, words: Pretokens) -> tuple[Int32, Int64]:
    """The ids of all words, one word after the other, and the word that each belongs to."""
    data, begun = words.words.tobytes(), 0
    ids: list[int] = []
    numbers: list[int] = []
    for end in words.ends.tolist():
        found = [token.id for token in tokenizer.model.tokenize(spell(data[begun:end]))]
        ids += found
        numbers.append(len(found))
        begun = end
    owners = np.repeat(np.arange(len(numbers)), numbers)
    return np.array(ids, np.int32), owners
