"""The hot loop of fastText's prediction, compiled by numba: UTF-8 bytes to sums of n-gram vectors.

It follows fastText 0.9.3 (Joulin et al. 2016, `Dictionary::getLine`, `addSubwords`, `computeSubwords`, `addWordNgrams`)
down to the order of additions. The only exception: in a text, `</s>` and `__label__…` are ordinary words, which neither
end the text nor are skipped. It is faster because texts stay in their Arrow buffer, a text can be cut into pieces whose
sums add up to the whole, and a frequent unknown word is summed only once. Arrays are passed one by one, because each
call with a tuple would update reference counts, which takes longer than the sums.

Tensor names: P pieces, D width of the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from storage.shards.arrays import Float32, Float64, Int32, Int64, UInt8
from tasks.filter.fasttext_model.word_kernels import BREAK, FNV_OFFSET, LETTER, find, step
from tasks.text.kernels import decode

NGRAM_PRIME = np.uint64(116049371)
END = np.array([ord(c) for c in "</s>"], np.uint8)  # fastText's word for the end of a line
KEPT = 1 << 14  # cached sums of unknown words per call: text repeats them, and 1.6 MB fit in the cache
KEPT_BYTES = 24  # longer words aren't cached
END_HASH = np.uint32(3617362777)
OPEN, CLOSE = np.uint8(ord("<")), np.uint8(ord(">"))


class Tables(NamedTuple):
    """A model as the kernel reads it, built by `Classifier`. W words, R rows of n-grams after them.

    `slots` is an open hash table of word numbers (−1: free), whose length is a power of two. Word w is
    `letters[starts[w]:starts[w + 1]]`. `word_rows[w]` is the sum of the word's row and those of its character n-grams,
    `word_counts[w]` their number. `held` has a bit for each bucket that has a row, `places` its row. Both are empty if
    every bucket has one. `kinds` is BREAK, LETTER or ALONE for each code point. Code points beyond its end are like its
    last.
    """

    kinds: UInt8
    slots: Int32
    letters: UInt8
    starts: Int64
    word_rows: Float32
    word_counts: Int32
    rows: Float32
    held: UInt8
    places: Int32
    buckets: int
    shortest: int
    longest: int
    word_ngrams: int


@njit(cache=True, nogil=True)
def add_characters(
    rows: Float32,
    held: UInt8,
    places: Int32,
    buckets: int,
    shortest: int,
    longest: int,
    data: UInt8,
    start: int,
    end: int,
    sums: Float32,
    at: int,
) -> int:
    """Add the rows of the character n-grams of `<word>` to `sums[at]`. Returns their number (`computeSubwords`)."""
    count = 0
    size = end - start + 2
    modulus = np.uint32(buckets)
    for i in range(size):
        # An n-gram starts at a character, never at a continuation byte. Place 0 is `<`, the last one `>`
        if 0 < i < size - 1 and (data[start + i - 1] & 0xC0) == 0x80:
            continue
        h = FNV_OFFSET
        j = i
        n = 1
        while j < size and n <= longest:
            # Extend the n-gram by one character: `<`, `>` or all bytes of one of the word's
            if j == 0:
                h = step(h, OPEN)
                j = 1
            elif j == size - 1:
                h = step(h, CLOSE)
                j = size
            else:
                h = step(h, data[start + j - 1])
                j += 1
                while j < size - 1 and (data[start + j - 1] & 0xC0) == 0x80:
                    h = step(h, data[start + j - 1])
                    j += 1
            # `<` and `>` by themselves aren't n-grams
            if n >= shortest and not (n == 1 and (i == 0 or j == size)):
                row = np.int64(h % modulus)
                # A quantized model keeps only the most useful buckets. The others contribute nothing
                if len(held) == 0 or (held[row >> 3] >> (row & 7)) & 1:
                    row = row if len(held) == 0 else np.int64(places[row])
                    for k in range(rows.shape[1]):
                        sums[at, k] += rows[row, k]
                    count += 1
            n += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def add_unknown(
    rows, held, places, buckets, shortest, longest, data, start, end, h,
    seen_sizes, seen_letters, seen_sums, seen_counts, sums, p,
):  # fmt: skip
    """Add the sum of a word unknown to the model. Returns its number of rows. `seen_*` caches short words."""
    size = end - start
    if size > KEPT_BYTES:
        return add_characters(rows, held, places, buckets, shortest, longest, data, start, end, sums, p)
    # Direct-mapped cache: the newest word of a slot replaces the one before
    slot = np.int64(h) & (KEPT - 1)
    known = seen_sizes[slot] == size
    k = 0
    while known and k < size:
        known = seen_letters[slot, k] == data[start + k]
        k += 1
    # A miss: sum into the slot
    if not known:
        seen_sizes[slot] = size
        for k in range(size):
            seen_letters[slot, k] = data[start + k]
        for k in range(seen_sums.shape[1]):
            seen_sums[slot, k] = 0
        seen_counts[slot] = add_characters(
            rows, held, places, buckets, shortest, longest, data, start, end, seen_sums, slot
        )
    for k in range(seen_sums.shape[1]):
        sums[p, k] += seen_sums[slot, k]
    return seen_counts[slot]


@njit(cache=True, nogil=True, inline="always")
def add_ngrams(rows, buckets, longest, h, number, recent, sums, p):
    """Add the rows of the word n-grams that end with the line's `number`-th word, of hash h. Returns their number
    (`addWordNgrams`)."""
    # fastText keeps word hashes as signed 32-bit numbers, and extends their sign to 64 bits
    signed = np.uint64(np.int64(np.int32(h)))
    count = 0
    for n in range(2, min(longest, number) + 1):
        # The hash runs from the first word of the n-gram to the last, but `recent` has the latest first
        joined = recent[n - 2]
        for k in range(n - 3, -1, -1):
            joined = joined * NGRAM_PRIME + recent[k]
        row = np.int64((joined * NGRAM_PRIME + signed) % np.uint64(buckets))
        for k in range(rows.shape[1]):
            sums[p, k] += rows[row, k]
        count += 1
    for k in range(longest - 1, 0, -1):
        recent[k] = recent[k - 1]
    recent[0] = signed
    return count


@njit(cache=True, nogil=True)
def sum_pieces(
    kinds: UInt8, slots: Int32, letters: UInt8, starts: Int64, word_rows: Float32, word_counts: Int32,
    rows: Float32, held: UInt8, places: Int32, buckets: int, shortest: int, longest: int, word_ngrams: int,
    data: UInt8, begins: Int64, ends: Int64, sums: Float32, counts: Int64, words: Int64,
) -> None:  # fmt: skip
    """For each piece `data[begins[p]:ends[p]]`: the sum of its rows in `sums[p]` (P, D), their number, and its words.

    The first two lines of arguments are `Tables`. Each piece is a line: it ends with fastText's `</s>`, which isn't
    counted as a word. `seen_*` caches unknown words: per slot the word's length (−1: empty), bytes, sum and rows.
    """
    width = rows.shape[1]
    kept = KEPT if longest > 0 else 1
    seen_sizes = np.full(kept, -1, np.int64)
    seen_letters = np.empty((kept, KEPT_BYTES), np.uint8)
    seen_sums = np.empty((kept, width), np.float32)
    seen_counts = np.zeros(kept, np.int64)
    recent = np.zeros(word_ngrams + 1, np.uint64)  # hashes of the last words, the latest first
    beyond = len(kinds) - 1
    for p in range(len(begins)):
        i, stop = begins[p], ends[p]
        start = i
        h = FNV_OFFSET
        inside = False
        count = 0
        number = 0
        # One character per turn, and one turn past the end, where a break closes the last word
        while i <= stop:
            kind = BREAK  # at the end of the piece
            used = 1
            if i < stop:
                b = data[i]
                if b < 128:
                    kind = kinds[b]
                else:
                    c, used = decode(data, i, stop)
                    kind = kinds[min(np.int64(c), beyond)]
            # A letter extends the word or starts one. A character that is a word by itself only starts one
            if kind != BREAK:
                if kind == LETTER or not inside:
                    if not inside:
                        start, h, inside = i, FNV_OFFSET, True
                    for k in range(i, i + used):
                        h = step(h, data[k])
                    i += used
                    if kind == LETTER:
                        continue
            elif not inside:
                i += used
                continue
            # The word `data[start:i]` is complete. The character at i, if it is a word by itself, comes next
            inside = False
            word = find(slots, letters, starts, data, start, i, h)
            if word >= 0:
                for k in range(width):
                    sums[p, k] += word_rows[word, k]
                count += word_counts[word]
            elif longest > 0:
                count += add_unknown(
                    rows, held, places, buckets, shortest, longest, data, start, i, h,
                    seen_sizes, seen_letters, seen_sums, seen_counts, sums, p,
                )  # fmt: skip
            number += 1
            if word_ngrams > 1:
                count += add_ngrams(rows, buckets, word_ngrams, h, number, recent, sums, p)
        # The end of the line adds a row, and takes part in word n-grams
        words[p] = number
        word = find(slots, letters, starts, END, 0, len(END), END_HASH)
        if word >= 0:
            for k in range(width):
                sums[p, k] += word_rows[word, k]
            count += word_counts[word]
        if word_ngrams > 1:
            count += add_ngrams(rows, buckets, word_ngrams, END_HASH, number + 1, recent, sums, p)
        counts[p] = count


@njit(cache=True, nogil=True)
def two_likeliest(
    hidden: Float32, output: Float32, left: Int64, right: Int64, least: float, labels: Int64, scores: Float64
) -> None:
    """The two most likely labels of each row of `hidden` (P, D) and their probabilities, by hierarchical softmax.

    Inner node n has the vector `output[n]` and the children `left[n]`, `right[n]`: below L a label, else inner node
    child − L. Children come before their parents. As in fastText (`HierarchicalSoftmaxLoss::dfs`), each step adds 1e-5,
    and nodes below `least` are not expanded.
    """
    inner = len(left)
    chance = np.empty(2 * inner + 1)
    for p in range(len(hidden)):
        # `chance` has the labels first, then the inner nodes. The root is the last
        chance[:] = 0.0
        chance[2 * inner] = 1.0
        # From the root down, since parents come after their children
        for n in range(inner - 1, -1, -1):
            here = chance[inner + 1 + n]
            if here < least:
                continue
            dot = np.float32(0)
            for k in range(hidden.shape[1]):
                dot += output[n, k] * hidden[p, k]
            # The sigmoid is the probability of the right child
            share = 1.0 / (1.0 + np.exp(-np.float64(dot)))
            chance[left[n]] = here * (1.0 - share + 1e-5)
            chance[right[n]] = here * (share + 1e-5)
        # The two highest, the lower label first on a tie
        first, second = -1, -1
        for label in range(inner + 1):
            if first < 0 or chance[label] > chance[first]:
                first, second = label, first
            elif second < 0 or chance[label] > chance[second]:
                second = label
        labels[p, 0], labels[p, 1] = first, second
        scores[p, 0], scores[p, 1] = min(1.0, chance[first]), min(1.0, chance[second])
