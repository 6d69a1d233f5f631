"""The hot loops over lines, compiled by numba. There are two kinds of lines.

Gopher's quality rules (Rae et al. 2021, A.1.1) and C4 (Raffel et al. 2020, 2.2) split at every line boundary of
`str.splitlines`. Gopher's repetition rules (table A1) and FineWeb (Penedo et al. 2024, 3.6) split at newlines. C4's
tests are those of `c4.py`, in the same order.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.filter.form.characters import (
    ALPHANUMERIC,
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
    UNSPACED,
    WIDE_CLOSER,
)
from tasks.filter.form.phrases import JAVASCRIPT, LOREM_IPSUM, LOW, POLICY, REACH
from tasks.filter.form.repeat_kernels import hash_span, next_turn, seen_before, table_shift
from tasks.text.kernels import code_point, same_bytes

EDIT = np.frombuffer(b"edit]", np.uint8)
NEEDED = np.frombuffer(b"citation needed]", np.uint8)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def ends_with_ellipsis(data, start, end):
    """Whether `data[start:end]` ends in ... or …"""
    if end - start < 3:
        return False
    a, b, c = data[end - 3], data[end - 2], data[end - 1]
    return (a == 0x2E and b == 0x2E and c == 0x2E) or (a == 0xE2 and b == 0x80 and c == 0xA6)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def starts_with_bullet(data, start, end):
    """Whether the nonempty `data[start:end]` starts with - or •"""
    if data[start] == 0x2D:
        return True
    return end - start >= 3 and data[start] == 0xE2 and data[start + 1] == 0x80 and data[start + 2] == 0xA2


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def cuts_word(kind, seen):
    """Whether a character of class `kind` begins a word within a run whose word so far has the classes `seen`."""
    return ((kind | seen) & UNSPACED) != 0 and (kind & ALPHANUMERIC) != 0 and (seen & ALPHANUMERIC) != 0


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def closers_of(seen):
    """The classes of the closing marks of a word or line with the classes `seen`."""
    return CLOSER | WIDE_CLOSER if seen & UNSPACED else CLOSER


@njit(cache=True, nogil=True, _nrt=False)
def ends_sentence(data, start, end, closers, codes):
    """Whether the word `data[start:end]` ends in terminal punctuation, ignoring closing marks after it."""
    while end > start:
        # Back over continuation bytes to the start of the last character
        last = end - 1
        while last > start and (data[last] & 0xC0) == 0x80:
            last -= 1
        c, _ = code_point(data, last, end)
        kind = codes[c] if c < SIZE else CONTENT
        if not kind & closers:
            return (kind & TERMINAL) != 0
        end = last
    return False


@njit(cache=True, nogil=True, _nrt=False)
def citation_length(data, i, end, codes):
    """Bytes of the citation that the bracket at `i` opens, such as [12], [edit], [citation needed], or 0."""
    # `\d*` of Python's `re` matches decimals of every script, and an empty pair of brackets
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


@njit(cache=True, nogil=True, _nrt=False)
def cut_citations(data, start, end, codes, out):
    """Write the line without its citations to `out`: (length, number of citations)."""
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


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def find_phrases(data, start, end, phrases):
    """The kinds of phrases in `data[start:end]`, as bits (Wu and Manber 1994). `phrases` is a PhraseTables."""
    bits = 0
    # `i` is the last byte of a window of REACH bytes. No phrase starts before the window
    i = start + REACH - 1
    while i < end:
        # The window's last two bytes say how far it may move without skipping a phrase's start
        shift = phrases.shifts[data[i - 1] & LOW, data[i] & LOW]
        if shift:
            i += shift
            continue
        # A phrase may start at the window's first byte: compare them all
        first = i - REACH + 1
        for p in range(len(phrases.lengths)):
            bits |= phrases.kinds[p] * starts_with(data, first, end, phrases.spelt[p], phrases.lengths[p])
        i += 1
    return bits


@njit(cache=True, nogil=True, _nrt=False)
def starts_with(data, start, end, phrase, length):
    """Whether `data[start:end]`, with ASCII letters lowered, starts with a phrase."""
    if end - start < length:
        return False
    for k in range(length):
        b = data[start + k]
        if 0x41 <= b <= 0x5A:
            b |= 0x20
        if b != phrase[k]:
            return False
    return True


@njit(cache=True, nogil=True, _nrt=False)
def count_sentences(data, end, codes):
    """Count the sentences in the first `end` bytes, as `c4.count_sentences` does."""
    sentences = 0
    open_end = False
    i = np.int64(0)
    start = np.int64(-1)
    seen = np.uint16(0)
    # One step past the end, where a space is assumed, so that the last word ends like all others
    while i <= end:
        c, used = np.uint32(0x20), 1
        if i < end:
            c, used = code_point(data, i, end)
        kind = codes[c] if c < SIZE else np.uint16(CONTENT)
        if kind & SPACE or cuts_word(kind, seen):
            if start >= 0:
                closed = ends_sentence(data, start, i, closers_of(seen), codes)
                sentences += closed
                open_end = not closed
            start = -1
            seen = np.uint16(0)
        if not kind & SPACE:
            start = i if start < 0 else start
            seen |= kind
        i += used
    # Words after the last sentence end are a sentence, too
    return sentences + open_end


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def count_c4_line(data, start, end, words, longest, marks, sentences, rules, tables, scratch, row):
    """Apply C4's rules to a stripped line, and count it and its contents if it stays.

    `marks` is the union of its characters' classes, `sentences` its number of sentences as long as no citation is cut.
    """
    if longest > rules.max_word_length:
        return
    # Only a line with a bracket can have a citation. Few have one, so cutting and recounting are rare
    if rules.citations and marks & BRACKET:
        length, citations = cut_citations(data, start, end, tables.codes, scratch)
        if citations:
            sentences = count_sentences(scratch, length, tables.codes)
            if test_c4_line(scratch, np.int64(0), length, words, marks, sentences, rules, tables, row):
                row.c4_citations += citations
            return
    test_c4_line(data, start, end, words, marks, sentences, rules, tables, row)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def test_c4_line(data, start, end, words, marks, sentences, rules, tables, row):
    """Apply the tests that follow the cutting of citations. Returns whether the line stays."""
    if rules.terminal_punctuation and not ends_c4_line(data, start, end, marks, tables.codes):
        return False
    if words < rules.min_words:
        return False
    phrases = find_phrases(data, start, end, tables.phrases)
    # Page rules count before the later line rules, as in `c4_utils.py`
    row.c4_lorem_ipsum_lines += (phrases & LOREM_IPSUM) != 0
    if rules.javascript and phrases & JAVASCRIPT:
        return False
    row.c4_curly_bracket_lines += (marks & CURLY) != 0
    if rules.policy and phrases & POLICY:
        return False
    row.c4_lines += 1
    # `count_lines` counted every non-blank line as removed
    row.c4_removed_lines -= words > 0
    row.c4_sentences += sentences
    return True


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def ends_c4_line(data, start, end, marks, codes):
    """Whether a line ends as C4 requires, as in `c4.ends_line`. `marks` is the union of its characters' classes."""
    if end == start:
        return False
    b = data[end - 1]
    if b == 0x2E and ends_with_ellipsis(data, start, end):
        return False
    # END_MARKS of `c4.py`: . ? ! " '
    if b == 0x2E or b == 0x3F or b == 0x21 or b == 0x22 or b == 0x27:
        return True
    return (marks & UNSPACED) != 0 and ends_sentence(data, start, end, closers_of(marks), codes)


@njit(cache=True, nogil=True, _nrt=False)
def count_lines(data, begin, work, lines, rules, tables, row):
    """Count over the lines of `str.splitlines`: bullets, ellipses, and what C4 keeps."""
    kinds, lengths, line_words = work.word_kinds, work.lengths, work.line_words
    starts, ends = work.word_starts, work.word_ends
    row.lines = lines
    w = 0
    for line in range(lines):
        first, w = w, line_words[line]
        # A line's properties from those of its words `first:w`, without reading its bytes again
        marks, longest, sentences, closed = 0, 0, 0, True
        for k in range(first, w):
            kind = kinds[k]
            marks |= kind
            closed = (kind & ENDS_SENTENCE) != 0
            sentences += closed
            longest = max(longest, lengths[k + 1] - lengths[k])
        # The stripped line: from its first word to its last
        start = begin + starts[first] if w > first else begin
        end = begin + ends[w - 1] if w > first else begin
        if w > first:
            # Until C4's tests let it pass
            row.c4_removed_lines += 1
            row.bullet_lines += starts_with_bullet(data, start, end)
            row.ellipsis_lines += ends_with_ellipsis(data, start, end)
        count_c4_line(
            data, start, end, w - first, longest, marks, sentences + (not closed), rules, tables, work.scratch, row
        )


@njit(cache=True, nogil=True, _nrt=False)
def count_newline_lines(data, begin, end, work, newlines, words, continued, short, as_datatrove, row):
    """Count over the lines between newlines: repeats (Gopher), and FineWeb's measures of non-blank lines.

    With `as_datatrove`, which splits at `\\n+` for Gopher, lines of white space count as repeats, and so does an empty
    piece before the first or after the last newline. FineWeb's punctuation must then be the line's very last character.
    """
    places, continuing, kinds, ends, table = (
        work.newlines,
        work.newline_continued,
        work.word_kinds,
        work.word_ends,
        work.table,
    )
    turn = next_turn(work)
    shift = table_shift(newlines + 1)
    size = end - begin
    start, w, before = 0, 0, 0
    for n in range(newlines + 1):
        # The end of this line in bytes, in words and in continuation bytes. The last line ends with the text
        if n < newlines:
            stop, last, after = places[n], work.newline_words[n], continuing[n]
        else:
            stop, last, after = size, words, continued
        # Both filters ignore empty lines
        if stop > start:
            characters = stop - start - (after - before)
            again = seen_before(table, shift, turn, hash_span(data, begin + start, begin + stop))
            if as_datatrove or last > w:
                row.pieces += 1
                row.duplicate_pieces += again
                row.duplicate_piece_characters += again * characters
            # With a word in it
            if last > w:
                row.nonblank_lines += 1
                row.repeated_line_characters += again * characters
                row.short_lines += characters <= short
                if as_datatrove:
                    row.punctuated_lines += ends[last - 1] == stop and (kinds[last - 1] & PUNCTUATED) != 0
                else:
                    row.punctuated_lines += (kinds[last - 1] & ENDS_SENTENCE) != 0
        start, w, before = stop + 1, last, after
    row.newlines = newlines
    # Empty pieces at both edges of the text equal each other, so the second is a duplicate
    if newlines and as_datatrove:
        edges = np.int64(places[0] == 0) + np.int64(places[newlines - 1] == size - 1)
        row.pieces += edges
        row.duplicate_pieces += edges == 2
