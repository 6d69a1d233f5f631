"""Words and sentences as spaCy's blank tokenizer for a language cuts them, which is datatrove's default.

It holds Python's lock, and its time grows with the square of a run without white space: here a run of more than 1,000
characters is one word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import ConfigError
from storage.shards.arrays import Int64, UInt8
from tasks.text.packages import package_version
from tasks.text.torchless import without_torch

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

PACKAGE = "spacy"
LONG = re.compile(r"\S{1001,}")


class Tokens(NamedTuple):
    """The words of D texts: word w is `data[starts[w]:ends[w]]`, those of text d are `firsts[d]:firsts[d + 1]`."""

    starts: Int64
    ends: Int64
    firsts: Int64


def spacy_version(language: str) -> str:
    """The version of spaCy. Raises ConfigError if it lacks a tokenizer for the language."""
    _tokenizer(language)
    return package_version(PACKAGE)


def tokenize(language: str, data: UInt8, offsets: Int64) -> Tokens:
    """The words of texts in UTF-8, text d at `offsets[d]:offsets[d + 1]`."""
    nlp = _tokenizer(language)
    starts, ends, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [0]
    with nlp.memory_zone():
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            part = data[begin:end]
            tokens = _doc(nlp, part.tobytes().decode()).to_array(["IDX", "LENGTH", "IS_SPACE"]).astype(np.int64)
            words = tokens[tokens[:, 2] == 0]
            places = np.append(np.flatnonzero((part & 0xC0) != 0x80), end - begin) + begin  # of characters, in bytes
            starts.append(places[words[:, 0]])
            ends.append(places[words[:, 0] + words[:, 1]])
            counts.append(len(words))
    return Tokens(np.concatenate(starts), np.concatenate(ends), np.cumsum(counts))


def count_sentences(language: str, lines: Sequence[str]) -> int:
    """Count the sentences of lines, at least one in each, by spaCy's rule: they end with terminal punctuation."""
    nlp = _tokenizer(language)
    sentencizer = nlp.get_pipe("sentencizer")
    with nlp.memory_zone():
        return sum(max(1, len(list(sentencizer(_doc(nlp, line)).sents))) for line in lines)


def _doc(nlp: Language, text: str) -> Doc:
    return nlp.tokenizer(LONG.sub(lambda run: "x" * len(run[0]), text))


@functools.cache
def _tokenizer(language: str) -> Language:
    with without_torch():
        import spacy

        try:
            nlp = spacy.blank(language)
        except ImportError as error:
            raise ConfigError(
                f"filter.form.spacy: spaCy lacks a tokenizer for {language} here.",
                "Choose a language that needs no other package, or leave it out: then each letter of a script without "
                "spaces is a word.",
            ) from error
        nlp.add_pipe("sentencizer")
    return nlp
