"""The hot loops over lines, compiled by numba. There are two kinds of lines.

Gopher's quality rules and C4 cut at every line boundary of `str.splitlines`; Gopher's repetition rules and FineWeb cut
at newlines. C4's tests are those of `c4.py`, in the same order.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.filter.form.characters import (
    BRACKET,
    CLOSER,
    CONTENT,
    CURLY,
    DECIMAL,
    ENDS_SENTENCE,
    PUNCTUATED,
    SIZE,
    SPACE,
    TERMINAL,
)
from tasks.filter.form.phrases import JAVASCRIPT, LOREM_IPSUM, LOW, POLICY, REACH
from tasks.filter.form.repeat_kernels import hash_span, next_turn, seen_before, table_shift
from tasks.text.kernels import code_point, same_bytes

EDIT = np.frombuffer(b"edit]", np.uint8)
NEEDED = np.frombuffer(b"citation needed]", np.uint8)


@njit(cache=True, nogil=True, inline="always")
def ends_with_ellipsis(data, start, end):
    """Whether the bytes from `start` to `end` end in ... or …"""
    if end - start < 3:
        return False
    a, b, c = data[end - 3], data[end - 2], data[end - 1]
    return (a == 0x2E and b == 0x2E and c == 0x2E) or (a == 0xE2 and b == 0x80 and c == 0xA6)


@njit(cache=True, nogil=True, inline="always")
def starts_with_bullet(data, start, end):
    """Whether the bytes from `start` on start with - or •"""
    if data[start] == 0x2D:
        return True
    return end - start >= 3 and data[start] == 0xE2 and data[start + 1] == 0x80 and data[start + 2] == 0xA2


@njit(cache=True, nogil=True)
def ends_sentence(data, start, end, codes):
    """Whether the word from `start` to `end` ends in terminal punctuation, closing marks aside."""
    while end > start:
        last = end - 1
        while last > start and (data[last] & 0xC0) == 0x80:
            last -= 1
        c, _ = code_point(data, last, end)
        kind = codes[c] if c < SIZE else CONTENT
        if not kind & CLOSER:
            return (kind & TERMINAL) != 0
        end = last
    return False


@njit(cache=True, nogil=True)
def citation_length(data, i, end, codes):
    """The length of the citation that starts with the bracket at `i`, in bytes; 0 if none does."""
    j = i + 1
    while j < end and data[j] != 0x5D:
        c, used = code_point(data, j, end)
        if c >= SIZE or not codes[c] & DECIMAL:
            break
        j += used
    if j < end and data[j] == 0x5D:
        return j + 1 - i
    for phrase in (EDIT, NEEDED):
        if i + 1 + len(phrase) <= end and same_bytes(data, i + 1, phrase, 0, len(phrase)):
            return len(phrase) + 1
    return 0


@njit(cache=True, nogil=True)
def cut_citations(data, start, end, codes, out):
    """Write the line without its citations to `out`: (length, citations)."""
    at = 0
    cut = 0
    i = start
    while i < end:
        length = citation_length(data, i, end, codes) if data[i] == 0x5B else 0
        if length:
            cut += 1
            i += length
        else:
            out[at] = data[i]
            at += 1
            i += 1
    return at, cut


@njit(cache=True, nogil=True, inline="always")
def find_phrases(data, start, end, phrases):
    """Which phrases the bytes hold, as bits; `phrases` are PhraseTables."""
    bits = 0
    i = start + REACH - 1
    while i < end:
        shift = phrases.shifts[data[i - 1] & LOW, data[i] & LOW]
        if shift:
            i += shift
            continue
        first = i - REACH + 1
        for p in range(len(phrases.lengths)):
            bits |= phrases.kinds[p] * starts_with(data, first, end, phrases.spelt[p], phrases.lengths[p])
        i += 1
    return bits


@njit(cache=True, nogil=True)
def starts_with(data, start, end, phrase, length):
    """Whether the bytes from `start` on, ASCII letters in lower case, start with a phrase."""
    if end - start < length:
        return False
    for k in range(length):
        b = data[start + k]
        if 0x41 <= b <= 0x5A:
            b |= 0x20
        if b != phrase[k]:
            return False
    return True


@njit(cache=True, nogil=True)
def count_sentences(data, end, codes):
    """Sentences in the first `end` bytes, as `c4.count_sentences` has them."""
    sentences = 0
    open_end = False
    i = 0
    start = -1
    while i <= end:
        c, used = np.uint32(0x20), 1
        if i < end:
            c, used = code_point(data, i, end)
        if c < SIZE and codes[c] & SPACE:
            if start >= 0:
                closed = ends_sentence(data, start, i, codes)
                sentences += closed
                open_end = not closed
            start = -1
        elif start < 0:
            start = i
        i += used
    return sentences + open_end


@njit(cache=True, nogil=True, inline="always")
def count_c4_line(data, start, end, words, longest, marks, sentences, rules, tables, scratch, row):
    """Test a stripped line with C4's rules, and count it and what it holds if it stays.

    `marks` are the classes of all its characters, `sentences` their number as long as no citation is cut.
    """
    if longest > rules.max_word_length:
        return
    if rules.citations and marks & BRACKET:
        length, citations = cut_citations(data, start, end, tables.codes, scratch)
        if citations:
            sentences = count_sentences(scratch, length, tables.codes)
            if test_c4_line(scratch, 0, length, words, marks, sentences, rules, tables, row):
                row.c4_citations += citations
            return
    test_c4_line(data, start, end, words, marks, sentences, rules, tables, row)


@njit(cache=True, nogil=True, inline="always")
def test_c4_line(data, start, end, words, marks, sentences, rules, tables, row):
    """The tests after citations are cut; whether the line stays."""
    if rules.terminal_punctuation:
        if end == start:
            return False
        b = data[end - 1]
        if not (b == 0x2E or b == 0x3F or b == 0x21 or b == 0x22 or b == 0x27):
            return False
        if b == 0x2E and ends_with_ellipsis(data, start, end):
            return False
    if words < rules.min_words:
        return False
    found = find_phrases(data, start, end, tables.phrases)
    row.c4_lorem_ipsum_lines += (found & LOREM_IPSUM) != 0
    if rules.javascript and found & JAVASCRIPT:
        return False
    row.c4_curly_bracket_lines += (marks & CURLY) != 0
    if rules.policy and found & POLICY:
        return False
    row.c4_lines += 1
    row.c4_removed_lines -= words > 0
    row.c4_sentences += sentences
    return True


@njit(cache=True, nogil=True)
def count_lines(data, begin, work, lines, rules, tables, row):
    """Lines of `str.splitlines`: bullets, ellipses, and what C4 keeps."""
    kinds, lengths, line_words = work.word_kinds, work.lengths, work.line_words
    starts, ends = work.word_starts, work.word_ends
    row.lines = lines
    w = 0
    for line in range(lines):
        first, w = w, line_words[line]
        marks, longest, sentences, closed = 0, 0, 0, True
        for k in range(first, w):
            kind = kinds[k]
            marks |= kind
            closed = (kind & ENDS_SENTENCE) != 0
            sentences += closed
            longest = max(longest, lengths[k + 1] - lengths[k])
        start = begin + starts[first] if w > first else begin
        end = begin + ends[w - 1] if w > first else begin
        if w > first:
            row.c4_removed_lines += 1
            row.bullet_lines += starts_with_bullet(data, start, end)
            row.ellipsis_lines += ends_with_ellipsis(data, start, end)
        count_c4_line(
            data, start, end, w - first, longest, marks, sentences + (not closed), rules, tables, work.scratch, row
        )


@njit(cache=True, nogil=True)
def count_newline_lines(data, begin, end, work, newlines, words, continued, short, row):
    """Lines between newlines: duplicates of all that are not empty (Gopher), and FineWeb's measures of those not blank.

    An empty piece before the first newline, or after the last, counts as a line of Gopher's: newlines in a row are one
    cut there.
    """
    places, continuing, kinds, ends, table = (
        work.newlines, work.newline_continued, work.word_kinds, work.word_ends, work.table,
    )  # fmt: skip
    turn = next_turn(work)
    shift = table_shift(newlines + 1)
    size = end - begin
    start, w, before = 0, 0, 0
    for n in range(newlines + 1):
        if n < newlines:
            stop, last, after = places[n], work.newline_words[n], continuing[n]
        else:
            stop, last, after = size, words, continued
        if stop > start:
            characters = stop - start - (after - before)
            again = seen_before(table, shift, turn, hash_span(data, begin + start, begin + stop))
            row.pieces += 1
            row.duplicate_pieces += again
            row.duplicate_piece_characters += again * characters
            if last > w:
                row.nonblank_lines += 1
                row.repeated_line_characters += again * characters
                row.short_lines += characters <= short
                row.punctuated_lines += ends[last - 1] == stop and (kinds[last - 1] & PUNCTUATED) != 0
        start, w, before = stop + 1, last, after
    row.newlines = newlines
    if newlines:
        edges = np.int64(places[0] == 0) + np.int64(places[newlines - 1] == size - 1)
        row.pieces += edges
        row.duplicate_pieces += edges == 2
