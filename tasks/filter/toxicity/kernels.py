"""Two hot loops, compiled by numba: documents to paragraphs, and tf-idf sums of paragraphs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from tasks.filter.fasttext_model.word_kernels import ALONE, BREAK, FNV_OFFSET, LETTER, Integers, find, step
from tasks.text.kernels import Bytes, Offsets, decode

Numbers = npt.NDArray[np.float64]
NEWLINE = np.uint8(ord("\n"))
BLANK = np.uint8(ord(" "))  # what is not above it and no new line is white space


@njit(cache=True, nogil=True)
def cut_paragraphs(
    data: Bytes, offsets: Offsets, kinds: Bytes, most: int, begins: Offsets, characters: Offsets, firsts: Offsets
) -> int:
    """Cut D documents `data[offsets[d]:offsets[d + 1]]` at blank lines, and where a word begins after `most` bytes.

    Written: where each paragraph begins (it ends where the next one does), its characters, and in `firsts[d]` the
    number of a document's first paragraph: each has at least one. Returns the number of paragraphs, which
    `len(data) // min(3, most) + D` bounds. `kinds` are those of `fasttext_model.kernels.Tables`.
    """
    count = 0
    beyond = len(kinds) - 1
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        firsts[d] = count
        begin = i
        length = 0
        new_lines = 0  # since the last character that is no white space
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
                starts = kind == ALONE or (kind == LETTER and before != LETTER)
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
        begins[count], characters[count] = begin, length
        count += 1
    return count


@njit(cache=True, nogil=True)
def sum_terms(
    kinds: Bytes, slots: Integers, letters: Bytes, starts: Offsets, weights: Numbers,
    data: Bytes, begins: Offsets, ends: Offsets, sums: Numbers, norms: Numbers, words: Offsets,
) -> None:  # fmt: skip
    """Of each text `data[begins[p]:ends[p]]` the sum over its known words of `weights[w, 1:]` in `sums[p]`, the L2 norm
    of its tf-idf vector in `norms[p]` (`weights[w, 0]` is a word's idf), and its words.

    (t + 1)² − t² = 2t + 1: the norm grows with each word, and nothing is counted twice.
    """
    known = len(weights)
    times = np.zeros(known, np.int64)
    last = np.full(known, -1, np.int64)  # the text that `times` is of
    beyond = len(kinds) - 1
    for p in range(len(begins)):
        i, stop = begins[p], ends[p]
        begin, h, inside, number, square = i, FNV_OFFSET, False, 0, 0.0
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
                    if last[word] != p:
                        last[word], times[word] = p, 0
                    square += (2 * times[word] + 1) * weights[word, 0] ** 2
                    times[word] += 1
                    for k in range(sums.shape[1]):
                        sums[p, k] += weights[word, k + 1]
            i += used
        norms[p] = np.sqrt(square)
        words[p] = number
