"""Form signals of a column of texts: the kernels count, numpy divides.

A share is null if its denominator is zero: a text without lines, words or characters.
"""

from __future__ import annotations

import functools
import re
import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.shards.arrays import Bool, Int32, Int64, UInt64
from tasks.filter.form.c4 import c4_lines, keep_c4_lines
from tasks.filter.form.characters import character_classes
from tasks.filter.form.config import FormConfig, stop_words_in
from tasks.filter.form.kernels import (
    COUNTS,
    DUPLICATE,
    TOP,
    LineRules,
    StopWords,
    Tables,
    Workspace,
    count_form,
    count_tokens,
    hash_words,
)
from tasks.filter.form.latex import without_formulas
from tasks.filter.form.phrases import phrase_tables
from tasks.filter.form.repeat_kernels import STOPPED
from tasks.filter.form.words.tokens import count_sentences, tokenize
from tasks.text.scan import utf8

COUNTED = (
    "c4_lorem_ipsum_lines",
    "c4_curly_bracket_lines",
    "c4_sentences",
    "c4_lines",
    "c4_removed_lines",
    "c4_citations",
    "nonblank_lines",
)
WORDED = re.compile(r"words|mean_word|alphabetic|hashes|ellipses|stop_words|top_|duplicate_\d+gram")
FINEWEB = ("nonblank_lines", "punctuated_lines", "short_lines", "repeated_line_characters", "newlines_per_word")
LARGE = 1 << 22  # bytes: workspaces for longer texts aren't kept
TURNS = 1 << 31  # rounds after which a workspace is replaced: its table numbers them with 32 bits
_local = threading.local()  # a workspace belongs to one thread


def measure_form(config: FormConfig, texts: pa.Array) -> pa.RecordBatch:
    """The signals of D texts (a string column without nulls): D rows, a column per signal in `rules.py`.

    Additional columns are `text_lines`, the non-blank lines, and those of the transformation `c4.keep_c4_lines`: lines
    kept, non-blank lines removed, citations removed.
    """
    columns = _measure(config, texts)
    columns["text_lines"] = columns["nonblank_lines"]
    if config.formulas:
        prose = pa.array([without_formulas(text, config.formulas) for text in texts.to_pylist()], pa.string())
        columns |= {name: column for name, column in _measure(config, prose).items() if WORDED.match(name)}
    if config.spacy:
        lines = [c4_lines(text, config.c4, config.part_unspaced) for text in texts.to_pylist()]
        columns["c4_sentences"] = pa.array([count_sentences(config.spacy, kept) for kept in lines], pa.int64())
    if config.fineweb_after_c4:
        left = pa.array(
            [keep_c4_lines(text, config.c4, config.part_unspaced) for text in texts.to_pylist()], pa.string()
        )
        columns |= {name: column for name, column in _measure(config, left).items() if name in FINEWEB}
    return pa.record_batch(columns)


def _measure(config: FormConfig, texts: pa.Array) -> dict[str, pa.Array]:
    data, offsets = utf8(texts)
    rows = np.zeros(len(texts), COUNTS)
    top = np.zeros((len(texts), len(TOP)), np.int64)
    duplicates = np.zeros((len(texts), len(DUPLICATE)), np.int64)
    longest = int(np.diff(offsets).max(initial=0))
    lists = {"stop_words": config.stop_words}
    lists |= {stop_words_in(language): words for language, words in sorted(config.stop_words_of.items())}
    tables = _tables(config.part_unspaced)
    stop_words = _stop_words(tuple(map(tuple, lists.values())), config.part_unspaced)
    stops = np.zeros((len(texts), len(lists)), np.int64)
    rules = LineRules(**config.c4.model_dump())
    count_form(
        data,
        offsets,
        tables,
        rules,
        stop_words,
        config.short_line_length,
        config.as_datatrove,
        _workspace(longest),
        rows,
        top,
        duplicates,
        stops,
    )
    if config.spacy:
        for counts in (top, duplicates, stops):
            counts[:] = 0
        count_tokens(
            data,
            *tokenize(config.spacy, data, offsets),
            tables,
            stop_words,
            config.as_datatrove,
            _workspace(2 * longest),
            rows,
            top,
            duplicates,
            stops,  # a token may be a single byte beside another
        )
    stopped = {name: pa.array(counts) for name, counts in zip(lists, stops.T, strict=True)}
    return _columns(rows, top, duplicates) | stopped


def _columns(rows: npt.NDArray[np.void], top: Int64, duplicates: Int64) -> dict[str, pa.Array]:
    words, lines, characters = rows["words"], rows["lines"], rows["characters"]
    columns = {
        "words": pa.array(rows["content_words"]),
        "mean_word_length": _share(rows["content_characters"], rows["content_words"]),
        "hashes_per_word": _share(rows["hashes"], words),
        "ellipses_per_word": _share(rows["ellipses"], words),
        "bullet_lines": _share(rows["bullet_lines"], lines),
        "ellipsis_lines": _share(rows["ellipsis_lines"], lines),
        "alphabetic_words": _share(rows["alphabetic_words"], words),
        "characters": pa.array(characters),
        "duplicate_paragraphs": _share(rows["duplicate_paragraphs"], rows["paragraphs"]),
        "duplicate_paragraph_characters": _share(rows["duplicate_paragraph_characters"], characters),
        "duplicate_lines": _share(rows["duplicate_pieces"], rows["pieces"]),
        "duplicate_line_characters": _share(rows["duplicate_piece_characters"], characters),
    }
    for k, n in enumerate(TOP):
        columns[f"top_{n}gram_characters"] = _share(top[:, k], characters)
    for k, n in enumerate(DUPLICATE):
        columns[f"duplicate_{n}gram_characters"] = _share(duplicates[:, k], characters)
    columns |= {name: pa.array(rows[name]) for name in COUNTED}
    nonblank = rows["nonblank_lines"]
    return columns | {
        "punctuated_lines": _share(rows["punctuated_lines"], nonblank),
        "short_lines": _share(rows["short_lines"], nonblank),
        "repeated_line_characters": _share(rows["repeated_line_characters"], characters - rows["newlines"]),
        "newlines_per_word": _share(rows["newlines"], words),
    }


def _share(part: Int64, whole: Int64) -> pa.Array:
    none = whole == 0
    return pa.array(part / np.where(none, 1, whole), mask=none)


@functools.cache
def _tables(part_unspaced: bool) -> Tables:
    classes = character_classes(part_unspaced)
    return Tables(classes.codes, classes.bytes, phrase_tables())


@functools.cache
def _stop_words(lists: tuple[tuple[str, ...], ...], part_unspaced: bool) -> StopWords:
    hashed = [
        (number, _hash_words(word, part_unspaced))
        for number, words in enumerate(lists)
        for word in dict.fromkeys(words)
    ]
    single = [(number, hashes) for number, hashes in hashed if len(hashes) == 1]
    several = [(number, hashes) for number, hashes in hashed if len(hashes) > 1]
    words = np.array([hashes[0] for _, hashes in single], np.uint64)
    firsts = np.array([hashes[0] for _, hashes in several], np.uint64)
    return StopWords(
        words,
        np.array([number for number, _ in single], np.int64),
        _low_bits(words),
        np.concatenate([np.empty(0, np.uint64), *(hashes for _, hashes in several)]),
        np.cumsum([0, *(len(hashes) for _, hashes in several)]),
        np.array([number for number, _ in several], np.int64),
        _low_bits(firsts),
    )


def _hash_words(text: str, part_unspaced: bool) -> UInt64:
    data = np.frombuffer(text.encode(), np.uint8)
    return hash_words(data, _tables(part_unspaced), _workspace(len(data)), np.zeros(1, COUNTS))


def _low_bits(hashes: UInt64) -> Bool:
    perhaps = np.zeros(int(STOPPED) + 1, np.bool_)
    perhaps[hashes & STOPPED] = True
    return perhaps


def _workspace(size: int) -> Workspace:
    """A workspace for texts of up to `size` bytes: the thread's own, which grows, or a new one for a very long text.

    Pages take memory only once they are written: 10 to 50 bytes per byte of the longest text.
    """
    if size > LARGE:
        return _new_workspace(size)
    if getattr(_local, "size", -1) < size or _local.workspace.turn[0] > TURNS:
        _local.size = size
        _local.workspace = _new_workspace(size)
    workspace: Workspace = _local.workspace
    return workspace


def _new_workspace(size: int) -> Workspace:
    words = size // 2 + 2  # an upper bound, plus one

    def numbers(length: int) -> Int32:
        return np.empty(length, np.int32)

    rows = 8  # the power of two that `table_shift` can index at most: twice the lines of a text of only newlines
    while rows < 2 * (size + 1):
        rows *= 2
    return Workspace(
        np.empty(words, np.uint64),
        numbers(words),
        numbers(words),
        np.empty(words, np.uint16),
        numbers(words),
        numbers(size + 1),
        numbers(size),
        numbers(size),
        numbers(size),
        numbers(words),
        numbers(words),
        numbers(words),
        numbers(words),
        np.zeros((rows, 2), np.uint64),
        np.zeros(1, np.int64),
        np.empty(size, np.uint8),
    )
