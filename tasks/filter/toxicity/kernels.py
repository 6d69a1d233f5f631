"""Two hot loops, compiled by numba: cutting documents into pieces, and tf-idf sums of texts."""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Float64, Int32, Int64, UInt8
from tasks.filter.fasttext_model.word_kernels import ALONE, BREAK, FNV_OFFSET, LETTER, find, step
from tasks.text.kernels import among, decode

BLANK = np.uint8(ord(" "))  # bytes up to here are white space or control characters
ENDS = np.array([ord(c) for c in ".!?…"], np.uint32)  # a sentence ends here if a blank follows
WIDE_ENDS = np.array([ord(c) for c in "。！？"], np.uint32)  # here without one
CLOSERS = np.array([ord(c) for c in "\"')]}»”’」』"], np.uint32)  # belong to the sentence before


@njit(cache=True, nogil=True)
def cut_pieces(data: UInt8, offsets: Int64, kinds: UInt8, most: int, begins: Int64, sizes: Int64, firsts: Int64) -> int:
    """Cut D documents `data[offsets[d]:offsets[d + 1]]` into pieces of whole sentences, as many as fit into `most`
    bytes. A longer sentence is cut where a word begins.

    A run of white space counts as one byte, so that pieces don't depend on where lines end. Writes the begin of each
    piece (it ends where the next one begins), its size counted this way, and in `firsts[d]` the number of a document's
    first piece: each has at least one. Returns the number of pieces, at most `2 * len(data) // most + 2 * D`. `kinds`
    are those of `fasttext_model.kernels.Tables`.
    """
    count = 0
    beyond = len(kinds) - 1
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        firsts[d] = count
        begin, size = i, 0
        # Begin of the last sentence in this piece, the piece's size before it, and the white space between
        sentence, sentence_at, sentence_gap = i, 0, 0
        # Whether this is after white space, after a sentence's end, and where a sentence may begin
        blank, ended, fresh = False, False, False
        before = BREAK
        while i < stop:
            c, used = np.uint32(data[i]), 1
            if c >= 128:
                c, used = decode(data, i, stop)
            kind = kinds[min(np.int64(c), beyond)]
            if c <= BLANK:
                blank, fresh = True, fresh or ended
            else:
                gap = 1 if blank and size > 0 else 0
                closes = among(c, CLOSERS) and ended and not blank
                if fresh and not closes:
                    sentence, sentence_at, sentence_gap = i, size, gap
                if size + gap >= most and (kind == ALONE or (kind == LETTER and before != LETTER)):
                    if sentence > begin:
                        begins[count], sizes[count] = begin, sentence_at
                        count += 1
                        begin, size = sentence, size - sentence_at - sentence_gap
                    if size + gap >= most:
                        begins[count], sizes[count] = begin, size
                        count += 1
                        begin, size, gap = i, 0, 0
                    sentence, sentence_at, sentence_gap = begin, 0, 0
                wide = among(c, WIDE_ENDS)
                ended = wide or among(c, ENDS) or closes
                fresh = wide or (fresh and closes)
                blank = False
                size += gap + used
            before = kind
            i += used
        # The rest of the document, an empty document too
        begins[count], sizes[count] = begin, size
        count += 1
    return count


@njit(cache=True, nogil=True)
def sum_terms(
    kinds: UInt8,
    slots: Int32,
    letters: UInt8,
    starts: Int64,
    weights: Float64,
    data: UInt8,
    begins: Int64,
    ends: Int64,
    sums: Float64,
    norms: Float64,
    words: Int64,
) -> None:
    """Write for each text `data[begins[p]:ends[p]]` the sum of `weights[w, 1:]` over its known words to `sums[p]`, the
    L2 norm of its tf-idf vector to `norms[p]` (`weights[w, 0]` is a word's idf), and its number of words.

    The features are those of scikit-learn's TfidfVectorizer: term frequency times idf, divided by the L2 norm. The norm
    is updated word by word, (t + 1)² − t² = 2t + 1, so no second pass over the vocabulary is needed.
    """
    known = len(weights)
    times = np.zeros(known, np.int64)
    last = np.full(known, -1, np.int64)  # the text to which `times` refers, so that nothing is cleared between texts
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
