"""A second opinion on languages, by lingua: n-grams of up to five characters and words that only one language has.

It errs on other texts than fastText does, so what both say is right more often than what either says.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pyarrow as pa

CODES = {"nb": "no"}  # Bokmål, which lid.176 calls Norwegian


def add_second(first: pa.RecordBatch, texts: pa.Array, characters: int) -> pa.RecordBatch:
    """The signals with `language_second` and `language_second_score`, from so many characters of each text."""
    detector, known = _detector()
    found: list[str | None] = []
    scores: list[float | None] = []
    for text, language in zip(texts.to_pylist(), first["language"].to_pylist(), strict=True):
        likeliest = detector.compute_language_confidence_values(text[:characters])[0] if language in known else None
        if likeliest is None or likeliest.value == 0:  # without any letter all languages are at 0
            found.append(None)
            scores.append(None)
        else:
            found.append(_code(likeliest.language))
            scores.append(likeliest.value)
    columns = dict(zip(first.schema.names, first.columns, strict=True))
    columns["language_second"] = pa.array(found, pa.string())
    columns["language_second_score"] = pa.array(scores, pa.float64())
    return pa.record_batch(columns)


def known_languages() -> frozenset[str]:
    """The codes of the languages that lingua knows, as lid.176 spells them."""
    return _detector()[1]


def _code(language: Any) -> str:
    code = language.iso_code_639_1.name.lower()
    return CODES.get(code, code)


@functools.cache
def _detector() -> tuple[Any, frozenset[str]]:
    """lingua's detector of all its languages, and their codes."""
    lingua = importlib.import_module("lingua")  # an extra
    return lingua.LanguageDetectorBuilder.from_all_languages().build(), frozenset(map(_code, lingua.Language.all()))
