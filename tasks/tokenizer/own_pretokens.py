"""The pre-tokens of a sample as the tokenizer of a base cuts it: by our kernels if they know its pattern, else by its
own normalizer and pre-tokenizer in `tokenizers`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.tokenizer.bpe.alphabet import unspell
from tasks.tokenizer.bpe.pretokens import Pretokens, merge_pretokens
from tasks.tokenizer.encoder.tables import read_settings
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.patterns import PatternName, pattern_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def splitting_of(folder: Path) -> PatternName | Path:
    """The pattern that cuts text as the tokenizer in a folder does, or the folder if the kernels don't know it."""
    settings = read_settings(folder)
    plain = not settings.get("normalizer") and all(token["special"] for token in settings["added_tokens"])
    pattern = pattern_of(settings) if plain else None
    return pattern or folder


def count_own_pretokens(folder: Path, columns: Iterable[pa.Array]) -> Pretokens:
    """Count the pre-tokens of columns of texts, as the tokenizer in a folder cuts documents: what its added tokens that
    aren't special match is no text."""
    tokenizer = load_for_documents(folder)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    around = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)")
    counts: Counter[str] = Counter()
    for column in columns:
        for text in column.to_pylist():
            for piece in around.split(text):
                counts.update(_words(tokenizer, piece))
    words = [unspell(word) or b"" for word in counts]
    sizes = np.array([len(word) for word in words], np.int64)
    ends = np.cumsum(sizes)
    data = np.frombuffer(b"".join(words), np.uint8)
    return merge_pretokens([Pretokens(data, ends, np.array(list(counts.values()), np.int64))])


def _words(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return (word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized))
