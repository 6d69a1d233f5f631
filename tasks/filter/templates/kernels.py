"""Sentences to templates, compiled by numba: names, numbers, identifiers and quotations are left out.

A word is the text between white space, from its first letter or digit on, or a letter of a script that is written
without spaces. Left out are

- identifiers: words with a digit, an underscore or a capital after a small letter, and words joined by signs other than
  hyphens and apostrophes (`a.b`, `and/or`, addresses)
- names: words that begin with a capital. The first word of a sentence is one only if a second follows it directly
- quotations within a sentence, up to LONGEST_QUOTED bytes

In a label, up to LABEL_WORDS words before a colon, all words are kept. A run of words and quotations that are left out
is one gap, whatever its length. The template is what remains, in lower case.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Int64, UInt8, UInt32, UInt64
from tasks.filter.templates.characters import BREAK, JOINER, MARK
from tasks.text.characters import ALONE, SIZE, SPACE, WORD
from tasks.text.kernels import FNV_OFFSET, code_point, fnv, mix64

WORDS, KEPT, GAPS, SIZE_OF = range(4)  # columns: words, those left in the template, gaps, characters but white space
COLUMNS = 4
LONGEST_QUOTED = 400
LABEL = 2  # words for which a label counts beside its own
LABEL_WORDS = 3
COLON = np.uint32(58)
GAP = np.uint64(1)


@njit(cache=True, nogil=True)
def find_templates(
    data: UInt8,
    offsets: Int64,
    starts: Int64,
    ends: Int64,
    kinds: UInt8,
    folded: UInt32,
    closers: UInt32,
    hashes: UInt64,
    rows: Int64,
    marks: UInt8,
) -> None:
    """Write the hash of each sentence's template to `hashes` (S), add its counts to `rows` (S, COLUMNS), and set
    `marks`, unless it is empty, to 1 for each byte of `data` that is left out.

    Text d is `data[offsets[d]:offsets[d + 1]]`. Its sentences are laid out as in `find_sentences`.
    """
    first = 0
    for d in range(len(ends)):
        for s in range(first, ends[d]):
            begin, stop = offsets[d] + starts[s + d], offsets[d] + starts[s + d + 1]
            hashes[s] = _template(data, begin, stop, kinds, folded, closers, rows[s], marks)
            rows[s, SIZE_OF] = _visible(data, begin, stop, kinds)
        first = ends[d]


@njit(cache=True, nogil=True)
def _template(data, begin, stop, kinds, folded, closers, row, marks):
    h = FNV_OFFSET
    gap = False  # whether the template so far ends with a gap
    held_at = held_end = -1  # the first word, if it begins with a capital: the next word decides whether it is a name
    held = FNV_OFFSET
    before = 0  # the kind of the character before
    label = _label(data, begin, stop, kinds)
    row[KEPT] += LABEL * (label > begin)
    i = begin
    while i < stop:
        c, used = code_point(data, i, stop)
        kind = np.int64(kinds[c]) if c < SIZE else 0
        at = i
        out = capital = False
        if kind & WORD:
            i, hashed, capital, identifier, closed = _word(data, at, stop, kinds, folded)
            capital = capital and not identifier and at >= label
            out = identifier or capital
            before = WORD
        else:
            closer = closers[c] if c < SIZE and not before & WORD else np.uint32(0)
            end = _closed(data, at + used, stop, closer, kinds) if closer else 0
            i = end if end else at + used
            before = kind
            if not end:
                continue
            out = True
        if held_at >= 0:  # a name is more than one word with a capital
            if capital:
                h, gap = _leave_out(h, gap, row, marks, held_at, held_end), True
            else:
                h, gap = _keep(h, held, row), False
            held_at = -1
        if capital and row[WORDS] == 0 and row[GAPS] == 0 and not closed:
            held_at, held_end, held = at, i, hashed
        elif out and not (capital and row[WORDS] == 0 and row[GAPS] == 0):
            h, gap = _leave_out(h, gap, row, marks, at, i), True
        else:
            h, gap = _keep(h, hashed, row), False
        row[WORDS] += kind & WORD != 0
    if held_at >= 0:
        h = _keep(h, held, row)
    return mix64(h)


@njit(cache=True, nogil=True)
def _label(data, begin, stop, kinds):
    """The place of the colon that ends a sentence's label, or `begin`. A label is up to LABEL_WORDS words of letters, a
    colon, and white space."""
    words = 0
    inside = False
    i = begin
    while i < stop:
        c, used = code_point(data, i, stop)
        kind = np.int64(kinds[c]) if c < SIZE else 0
        if kind & MARK:
            return begin
        if kind & WORD:
            words += not inside
            inside = True
        elif c == COLON:
            after, _ = code_point(data, i + used, stop) if i + used < stop else (np.uint32(32), 1)
            blank = after < SIZE and kinds[after] & SPACE
            return i if 0 < words <= LABEL_WORDS and blank else begin
        elif kind & SPACE:
            inside = False
        elif words and not kind & JOINER:
            return begin
        if words > LABEL_WORDS:
            return begin
        i += used
    return begin


@njit(cache=True, nogil=True, inline="always")
def _keep(h, word, row):
    row[KEPT] += 1
    return fnv(h, word)


@njit(cache=True, nogil=True, inline="always")
def _leave_out(h, gap, row, marks, begin, end):
    if len(marks):
        marks[begin:end] = 1
    if gap:
        return h
    row[GAPS] += 1
    return fnv(h, GAP)


@njit(cache=True, nogil=True)
def _word(data, i, stop, kinds, folded):
    """(end, hash, whether it begins with a capital, whether it is an identifier, whether a sign follows) of the word
    that begins at `i`."""
    c, used = code_point(data, i, stop)
    kind = np.int64(kinds[c])
    h = fnv(FNV_OFFSET, folded[c])
    name = folded[c] != c
    identifier = kind & MARK != 0
    i += used
    end = i
    if kind & ALONE:
        return end, mix64(h), False, False, False
    small = not name
    joined = apart = False  # since the last letter: signs that join the parts of a word, and other signs
    while i < stop:
        c, used = code_point(data, i, stop)
        kind = np.int64(kinds[c]) if c < SIZE else 0
        if kind & (SPACE | BREAK | ALONE):
            break
        i += used
        if kind & WORD:
            capital = folded[c] != c
            identifier = identifier or kind & MARK != 0 or apart or (capital and small and not joined)
            small = not capital
            h = fnv(h, folded[c])
            end = i
            joined = apart = False
        elif kind & JOINER:
            joined = True
        else:
            apart = True
    return end, mix64(h), name, identifier, apart


@njit(cache=True, nogil=True)
def _closed(data, i, stop, closer, kinds):
    """The place after the mark that closes a nonempty quotation whose text begins at `i`, or 0. A letter must not
    follow the mark."""
    begin = i
    last = min(stop, i + LONGEST_QUOTED)
    while i < last:
        c, used = code_point(data, i, last)
        if c == closer and i > begin:
            if i + used >= stop:
                return i + used
            after, _ = code_point(data, i + used, stop)
            if after >= SIZE or not kinds[after] & WORD:
                return i + used
        i += used
    return 0


@njit(cache=True, nogil=True, inline="always")
def _visible(data, i, stop, kinds):
    size = 0
    while i < stop:
        c, used = code_point(data, i, stop)
        size += c >= SIZE or not kinds[c] & SPACE
        i += used
    return size


@njit(cache=True, nogil=True)
def find_openings(hashes: UInt64, rows: Int64, ends: Int64, least: int, openings: UInt64, stops: Int64) -> Int64:
    """The number of words left in the opening of each of D documents: the templates of its first sentences up to
    `least` words, or of all. Writes the opening's hash to `openings` (D), and the sentence after it to `stops` (D)."""
    kept = np.zeros(len(ends), np.int64)
    first = 0
    for d in range(len(ends)):
        h = FNV_OFFSET
        s = first
        while s < ends[d] and kept[d] < least:
            h = fnv(h, hashes[s])
            kept[d] += rows[s, KEPT]
            s += 1
        openings[d] = mix64(h)
        stops[d] = s
        first = ends[d]
    return kept
