"""Two hot loops, compiled by numba: cutting documents into paragraphs, and tf-idf sums of texts."""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Float64, Int32, Int64, UInt8
from tasks.filter.fasttext_model.word_kernels import ALONE, BREAK, FNV_OFFSET, LETTER, find, step
from tasks.text.kernels import decode

NEWLINE = np.uint8(ord("\n"))
BLANK = np.uint8(ord(" "))  # bytes up to here are white space or control characters


@njit(cache=True, nogil=True)
def cut_paragraphs(
    data: UInt8, offsets: Int64, kinds: UInt8, most: int, begins: Int64, characters: Int64, firsts: Int64
) -> int:
    """Cut D documents `data[offsets[d]:offsets[d + 1]]` at blank lines, and where a word begins after `most` bytes.

    Written: the begin of each paragraph (it ends where the next one begins), its characters, and in `firsts[d]` the
    number of a document's first paragraph: each has at least one. Returns the number of paragraphs, at most
    `len(data) // min(3, most) + D`. `kinds` are those of `fasttext_model.kernels.Tables`.
    """
    count = 0
    beyond = len(kinds) - 1
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        firsts[d] = count
        begin = i
        length = 0
        new_lines = 0  # since the last character that is not white space
        before = BREAK
        while i < stop:
            b = data[i]
            used = 1
            if b < 128:
                kind = kinds[b]
            else:
                c, used = decode(data, i, stop)
                kind = kinds[min(np.int64(c), beyond)]
            if b > BLANK:
                # A word begins at this character
                starts = kind == ALONE or (kind == LETTER and before != LETTER)
                # White space stays with the paragraph before; only a non-blank character opens the next
                if i > begin and (new_lines > 1 or (starts and i - begin >= most)):
                    begins[count], characters[count] = begin, length
                    count += 1
                    begin, length = i, 0
                new_lines = 0
            elif b == NEWLINE:
                new_lines += 1
            before = kind
            length += 1
            i += used
        # The rest of the document, an empty document too
        begins[count], characters[count] = begin, length
        count += 1
    return count


@njit(cache=True, nogil=True)
def sum_terms(
    kinds: UInt8, slots: Int32, letters: UInt8, starts: Int64, weights: Float64,
    data: UInt8, begins: Int64, ends: Int64, sums: Float64, norms: Float64, words: Int64,
) -> None:  # fmt: skip
    """For each text `data[begins[p]:ends[p]]`: the sum of `weights[w, 1:]` over its known words in `sums[p]`, the L2
    norm of its tf-idf vector in `norms[p]` (`weights[w, 0]` is a word's idf), and its number of words.

    The features are those of scikit-learn's TfidfVectorizer: term frequency times idf, divided by the L2 norm. The norm
    is updated word by word, (t + 1)² − t² = 2t + 1, so no second pass over the vocabulary is needed.
    """
    known = len(weights)
    times = np.zeros(known, np.int64)
    last = np.full(known, -1, np.int64)  # the text that `times` belongs to, so that nothing is cleared between texts
    beyond = len(kinds) - 1
    for p in range(len(begins)):
        i, stop = begins[p], ends[p]
        begin, h, inside, number, square = i, FNV_OFFSET, False, 0, 0.0
        # One turn past the end, where a break closes the last word
        while i <= stop:
            kind = np.uint8(BREAK)
            used = 1
            if i < stop:
                b = data[i]
                if b < 128:
                    kind = kinds[b]
                else:
                    c, used = decode(data, i, stop)
                    kind = kinds[min(np.int64(c), beyond)]
            if kind != BREAK:
                if not inside:
                    begin, h, inside = i, FNV_OFFSET, True
                for k in range(i, i + used):
                    h = step(h, data[k])
            elif inside:
                inside = False
                number += 1
                word = find(slots, letters, starts, data, begin, i, h)
                if word >= 0:
                    # The word's first occurrence in this text
                    if last[word] != p:
                        last[word], times[word] = p, 0
                    square += (2 * times[word] + 1) * weights[word, 0] ** 2
                    times[word] += 1
                    for k in range(sums.shape[1]):
                        sums[p, k] += weights[word, k + 1]
            i += used
        norms[p] = np.sqrt(square)
        words[p] = number
