"""Signals of source code. Kernels count lines, characters and encoded data. The language comes from the metadata."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt8
from tasks.filter.code import kernels
from tasks.filter.code.comment_kernels import count_comments
from tasks.filter.code.comments import FAMILIES
from tasks.filter.code.config import CodeConfig
from tasks.filter.code.html import visible
from tasks.filter.code.languages import generated_name, language_of
from tasks.filter.code.licences import licence_of
from tasks.filter.metadata import first_texts
from tasks.text.characters import SIZE
from tasks.text.scan import utf8

HEAD = 10_000  # characters that are cut into first lines: a line of a minified file may take megabytes
SCHEMA = pa.schema(
    [
        ("code_language", pa.string()),
        ("code_lines", pa.int64()),
        ("code_mean_line", pa.float64()),
        ("code_longest_line", pa.int64()),
        ("code_alphabetic", pa.float64()),
        ("code_alphanumeric", pa.float64()),
        ("code_white_space", pa.float64()),
        ("code_encoded", pa.float64()),
        ("code_longest_encoded", pa.int64()),
        ("code_numbers", pa.float64()),
        ("code_comments", pa.float64()),
        ("code_visible", pa.float64()),
        ("code_visible_characters", pa.int64()),
        ("code_generated", pa.string()),
        ("code_licence", pa.string()),
    ]
)


def measure_code(config: CodeConfig, texts: pa.Array, metadata: pa.Array) -> pa.RecordBatch:
    """The signals of D texts with their metadata; see `stage.py` for the columns."""
    data, offsets = utf8(texts)
    rows = np.zeros((len(texts), kernels.FIELDS), np.int64)
    kernels.count(data, offsets, _characters(), kernels.byte_classes(), rows)
    paths = first_texts(metadata, config.path_fields)
    named = first_texts(metadata, config.language_fields)
    languages = [name or language_of(path) or config.language for name, path in zip(named, paths, strict=True)]
    families = np.array([FAMILIES.get(language or "", 0) for language in languages], np.int64)
    commented = np.zeros(len(texts), np.int64)
    count_comments(data, offsets, families, commented)
    generated, licences, seen = _read(config, texts, paths, languages)
    characters = rows[:, kernels.CHARACTERS]
    page = np.array([each is None for each in seen], np.bool_)
    shown = np.array([each or 0 for each in seen], np.int64)
    return pa.record_batch(
        [
            pa.array(languages, pa.string()),
            pa.array(rows[:, kernels.LINES]),
            _share(rows[:, kernels.IN_LINES], rows[:, kernels.LINES]),
            pa.array(rows[:, kernels.LONGEST]),
            _share(rows[:, kernels.LETTERS], characters),
            _share(rows[:, kernels.ALPHANUMERIC], characters),
            _share(rows[:, kernels.WHITE], characters),
            _share(np.minimum(rows[:, kernels.ENCODED], characters), characters),
            pa.array(rows[:, kernels.LONGEST_ENCODED]),
            _share(rows[:, kernels.NUMBERS], characters),
            pa.array(commented / np.maximum(1, characters), mask=families == 0),
            pa.array(shown / np.maximum(1, characters), mask=page),
            pa.array(shown, mask=page),
            pa.array(generated, pa.string()),
            pa.array(licences, pa.string()),
        ],
        SCHEMA,
    )


def _read(
    config: CodeConfig, texts: pa.Array, paths: Sequence[str], languages: Sequence[str | None]
) -> tuple[list[str], list[str], list[int | None]]:
    """For each document that is code: the mark of a generated file, the licence, and the number of characters that a
    reader of a page sees, None except for HTML."""
    marks = [mark.lower() for mark in config.generated_marks]
    generated, licences = [""] * len(texts), [""] * len(texts)
    seen: list[int | None] = [None] * len(texts)
    for row, language in enumerate(languages):
        if language is None:
            continue
        text: str = texts[row].as_py()
        head = "\n".join(text[:HEAD].splitlines()[: config.generated_lines]).lower()
        mark = next((mark for mark in marks if mark in head), "")
        generated[row] = generated_name(paths[row]) or mark
        licences[row] = licence_of(text)
        if language == "HTML":
            seen[row] = len(visible(text))
    return generated, licences, seen


def _share(part: Int64, whole: Int64) -> pa.Array:
    none = whole == 0
    return pa.array(part / np.where(none, 1, whole), mask=none)


@functools.cache
def _characters() -> UInt8:
    table = np.zeros(SIZE, np.uint8)
    for code in range(SIZE):
        character = chr(code)
        table[code] = (
            character.isalpha() * kernels.ALPHABETIC
            + character.isalnum() * kernels.NUMERIC
            + character.isspace() * kernels.SPACE
            + (character.isspace() and len(f"a{character}a".splitlines()) == 2) * kernels.BREAK
        )
    return table
