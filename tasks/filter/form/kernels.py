"""The hot loop of form, compiled by numba: from a text's bytes to words and lines, and all counts of the four filters.

One pass over the bytes finds words (hash, length, character classes) and line ends. Everything after it works on words
and lines. No Python string is created and nothing grows with the corpus: the words and lines of one text are in the
workspace, which is reused. The rules are those of Gopher (Rae et al. 2021), C4 (Raffel et al. 2020) and FineWeb (Penedo
et al. 2024) as datatrove 0.10 computes them. Compiled code is cached on disk (`tasks/__init__.py`). What
makes no arrays doesn't count references to them either (`_nrt=False`), which would take a sixth of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from storage.shards.arrays import Bool, Int32, Int64, UInt8, UInt16, UInt64
from tasks.filter.form.characters import (
    ALPHABETIC,
    ALPHANUMERIC,
    BRACKET,
    CONTENT,
    CURLY,
    ENDS_SENTENCE,
    PUNCTUATED,
    SIZE,
    SPACE,
    SPECIAL,
    TERMINAL,
    UNSPACED,
)
from tasks.filter.form.line_kernels import closers_of, count_lines, count_newline_lines, cuts_word, ends_sentence
from tasks.filter.form.phrases import PhraseTables
from tasks.filter.form.repeat_kernels import (
    count_paragraphs,
    count_stop_sequences,
    duplicate_characters,
    number_ngrams,
    number_words,
    top_characters,
)
from tasks.text.kernels import FNV_OFFSET, code_point, decode, fnv, mix64

TOP = (2, 3, 4)  # for these n only the most frequent n-gram counts
DUPLICATE = (5, 6, 7, 8, 9, 10)  # for these n every repeat counts

COUNTS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "characters",
            "words",
            "content_words",
            "content_characters",
            "hashes",
            "ellipses",
            "lines",
            "bullet_lines",
            "ellipsis_lines",
            "alphabetic_words",
            "paragraphs",
            "duplicate_paragraphs",
            "duplicate_paragraph_characters",
            "pieces",
            "duplicate_pieces",
            "duplicate_piece_characters",
            "c4_lorem_ipsum_lines",
            "c4_curly_bracket_lines",
            "c4_sentences",
            "c4_lines",
            "c4_removed_lines",
            "c4_citations",
            "nonblank_lines",
            "punctuated_lines",
            "short_lines",
            "repeated_line_characters",
            "newlines",
        )
    ]
)


class Workspace(NamedTuple):
    """One text's words and lines. Byte offsets are relative to the text. `lengths` is a running sum of characters."""

    word_hashes: UInt64
    word_starts: Int32
    word_ends: Int32
    word_kinds: UInt16
    lengths: Int32
    line_words: Int32  # words up to the end of each line of `str.splitlines`
    newlines: Int32  # byte offset of each, words before it, and UTF-8 continuation bytes before it
    newline_words: Int32
    newline_continued: Int32
    numbers: Int32  # and `places`: n-grams that repeat, and their first words. `counts` and `firsts` are by number
    places: Int32
    counts: Int32
    firsts: Int32
    table: UInt64
    turn: Int64
    scratch: UInt8


class Tables(NamedTuple):
    """Character classes (`CharacterClasses`), and the phrases to find."""

    codes: UInt16
    bytes: UInt16
    phrases: PhraseTables


class StopWords(NamedTuple):
    """Lists of stop words: hashes of words, the list of each, and whether a word with these low bits may be one.

    A stop word that is cut into several words, such as any with several letters of a script without spaces, is a
    sequence: number s is `sequences[begins[s]:begins[s + 1]]` of list `sequence_lists[s]`.
    """

    hashes: UInt64
    lists: Int64
    perhaps: Bool
    sequences: UInt64
    begins: Int64
    sequence_lists: Int64
    perhaps_begins: Bool


class LineRules(NamedTuple):
    """`C4LineRules` as compiled code reads them."""

    terminal_punctuation: bool
    min_words: int
    max_word_length: int
    javascript: bool
    policy: bool
    citations: bool


@njit(cache=True, nogil=True, _nrt=False)
def read_words(data, begin, end, tables, work, row):
    """Find the words and lines of a text: (words, lines, newlines, continuation bytes).

    Words are as in `words/plain.py`. A word's hash is FNV-1a over its code points, with a final mix. Its classes are
    the union over its characters.
    """
    codes, classes = tables.codes, tables.bytes
    words, lines, newlines = 0, 0, 0
    continued = 0
    fresh = begin  # start of the current line
    dots = 0  # consecutive dots: every third one makes an ellipsis
    work.lengths[0] = 0
    i = begin
    while i < end:
        first, seen, last = i, np.uint16(0), np.uint16(0)
        before = continued
        h = FNV_OFFSET
        used = 1
        c = np.uint32(0)
        slow = SPECIAL
        cut = False
        while i < end:  # one word, up to the next white space. Empty between two white space characters
            b = data[i]
            kind = classes[b]
            if not kind & slow:  # fast path: an ASCII character that neither ends a word nor is counted
                h = fnv(h, b)
                seen |= kind
                last = kind
                i += 1
                continue
            c = np.uint32(b)  # slow path: everything outside ASCII, white space, dots and hash signs
            used = 1
            if b >= 128:
                c, used = decode(data, i, end)
                kind = codes[c] if c < SIZE else np.uint16(CONTENT)
                row.ellipses += c == 0x2026
            elif b == 0x2E:
                dots = dots + 1 if i > begin and data[i - 1] == 0x2E else 1
                row.ellipses += dots % 3 == 0
            elif b == 0x23:
                row.hashes += 1
            if kind & SPACE:
                break
            if (kind | seen) & UNSPACED:
                cut = cuts_word(kind, seen)
                if cut:
                    break
                slow = SPECIAL | ALPHANUMERIC
            continued += used - 1
            h = fnv(h, c)
            seen |= kind
            last = kind
            i += used
        if i > first:  # a word ended. Its characters are its bytes without continuation bytes
            seen = word_classes(data, first, i, seen, last, codes)
            add_word(work, row, words, first - begin, i - begin, i - first - (continued - before), seen, h)
            words += 1
        if i == end:
            break
        if cut:
            continue
        if c != 0x20:  # the white space that ended the word. A plain space, the usual case, doesn't end a line
            if ends_line(c):
                # \r\n is one line end, counted at the \r
                if not (c == 0x0A and i > begin and data[i - 1] == 0x0D):
                    work.line_words[lines] = words
                    lines += 1
                if c == 0x0A:
                    work.newlines[newlines] = i - begin
                    work.newline_words[newlines] = words
                    work.newline_continued[newlines] = continued
                    newlines += 1
                fresh = i + used
            continued += used - 1
        i += used
    if fresh < end:  # a last line without a line end
        work.line_words[lines] = words
        lines += 1
    return words, lines, newlines, continued


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def add_word(work, row, number, start, end, length, seen, h):
    """Store and count a word with its length in characters, its classes, and its hash `h` before the final mix."""
    row.alphabetic_words += seen & ALPHABETIC
    row.content_words += (seen & CONTENT) != 0
    row.content_characters += length if seen & CONTENT else 0
    work.word_hashes[number] = mix64(h)
    work.word_starts[number] = start
    work.word_ends[number] = end
    work.word_kinds[number] = seen
    work.lengths[number + 1] = work.lengths[number] + length


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def word_classes(data, start, end, seen, last, codes):
    """The classes of a word, from the union of its characters' classes (`seen`) and those of the last one (`last`)."""
    closers = closers_of(seen)
    seen &= ALPHABETIC | CONTENT | CURLY | BRACKET | UNSPACED
    # The backward search for terminal punctuation is needed only behind closing marks
    if last & TERMINAL:
        seen |= PUNCTUATED | ENDS_SENTENCE
    elif last & closers and ends_sentence(data, start, end, closers, codes):
        seen |= ENDS_SENTENCE
    return seen


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def ends_line(c):
    """Whether `str.splitlines` splits at this white space."""
    return 0x0A <= c <= 0x0D or 0x1C <= c <= 0x1E or c == 0x85 or c == 0x2028 or c == 0x2029


@njit(cache=True, nogil=True)
def count_repetition(work, words, stop_words, as_datatrove, top, duplicates, stops):
    """Count stop words, and characters in repeated word n-grams: `top` for n in TOP, `duplicates` for n in DUPLICATE.
    `as_datatrove` is explained at `top_characters`.

    Gopher, table A1 (Rae et al. 2021).
    """
    # `places` is the number of positions where a longer n-gram can still repeat. Each round shrinks it
    places = number_words(work, words, stop_words, stops)
    if len(stop_words.sequence_lists):
        count_stop_sequences(work, words, stop_words, stops)
    for k in range(len(top)):
        places, distinct = number_ngrams(work, places)
        top[k] = top_characters(work, words, k + 2, distinct, as_datatrove)
    for k in range(len(duplicates)):
        # If no n-gram repeats, neither does a longer one
        if not places:
            break
        places, _ = number_ngrams(work, places)
        duplicates[k] = duplicate_characters(work, k + 5, places)


@njit(cache=True, nogil=True)
def count_form(
    data: UInt8,
    offsets: Int64,
    tables: Tables,
    rules: LineRules,
    stop_words: StopWords,
    short: int,
    as_datatrove: bool,
    work: Workspace,
    rows: npt.NDArray[np.void],
    top: Int64,
    duplicates: Int64,
    stops: Int64,
) -> None:
    """Write all counts of D texts to `rows` (COUNTS), `top` (D × 3), `duplicates` (D × 6) and `stops` (D × lists of
    stop words), which must be zeroed.

    `data` contains the texts as UTF-8, text d at `offsets[d]:offsets[d + 1]`. Lines up to `short` characters are short.
    `as_datatrove` is as in `FormConfig`.
    """
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        row = rows[d]
        words, lines, newlines, continued = read_words(data, begin, end, tables, work, row)
        row.words = words
        row.characters = end - begin - continued
        count_lines(data, begin, work, lines, rules, tables, row)
        count_newline_lines(data, begin, end, work, newlines, words, continued, short, as_datatrove, row)
        count_paragraphs(data, begin, work, newlines, words, row)
        count_repetition(work, words, stop_words, as_datatrove, top[d], duplicates[d], stops[d])


@njit(cache=True, nogil=True)
def count_tokens(
    data: UInt8,
    starts: Int64,
    ends: Int64,
    firsts: Int64,
    tables: Tables,
    stop_words: StopWords,
    as_datatrove: bool,
    work: Workspace,
    rows: npt.NDArray[np.void],
    top: Int64,
    duplicates: Int64,
    stops: Int64,
) -> None:
    """Count these words in place of those that `count_form` finds. The words of text d are `data[starts[w]:ends[w]]`
    for w in `firsts[d]:firsts[d + 1]`. Overwrites the counts of words in `rows`. `top`, `duplicates` and `stops` are as
    for `count_form`, zeroed."""
    for d in range(len(firsts) - 1):
        row = rows[d]
        words = firsts[d + 1] - firsts[d]
        row.words = words
        row.content_words, row.content_characters, row.alphabetic_words = 0, 0, 0
        work.lengths[0] = 0
        for w in range(words):
            start, end = starts[firsts[d] + w], ends[firsts[d] + w]
            seen, length, h = np.uint16(0), 0, FNV_OFFSET
            i = start
            while i < end:
                c, used = code_point(data, i, end)
                h = fnv(h, c)
                seen |= tables.codes[c] if c < SIZE else np.uint16(CONTENT)
                length += 1
                i += used
            add_word(work, row, w, start - starts[firsts[d]], end - starts[firsts[d]], length, seen, h)
        count_repetition(work, words, stop_words, as_datatrove, top[d], duplicates[d], stops[d])


@njit(cache=True, nogil=True)
def hash_words(data: UInt8, tables: Tables, work: Workspace, rows: npt.NDArray[np.void]) -> UInt64:
    """The hashes of one text's words, as `count_form` compares them with stop words."""
    words, _, _, _ = read_words(data, np.int64(0), len(data), tables, work, rows[0])
    return work.word_hashes[:words].copy()
