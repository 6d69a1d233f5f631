"""The documents of token shards: where each begins, its source, and the bytes of text of each token.

A shard knows its documents and their sources, but only the sum of their bytes. A document's bytes follow from its
tokens: a byte-level vocabulary spells each token in bytes, and with any other vocabulary the document is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from storage.shards.arrays import Int64
from storage.shards.token_sources import SUFFIX, source_runs
from storage.shards.tokens import TokenShard, open_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

UNNAMED = "all"  # the source of shards that don't name any


@dataclass(frozen=True)
class Documents:
    """The D documents of a stream of N tokens."""

    names: list[str]  # of the sources, sorted
    source: Int64  # (D) index into `names`
    starts: Int64  # (D + 1) in tokens
    token_bytes: NDArray[np.float32]  # (N) bytes of text of each token, 0 for the end of a document

    @property
    def bytes(self) -> NDArray[np.float64]:
        """(D) bytes of text of each document."""
        until = np.concatenate((np.zeros(1), np.cumsum(self.token_bytes, dtype=np.float64)))
        return np.diff(until[self.starts])

    def of(self, places: Int64) -> Int64:
        """The document of each token, by its place in the stream."""
        return np.searchsorted(self.starts, places, side="right") - 1


def read_documents(paths: Sequence[Path], tokenizer: PreTrainedTokenizerFast, digest: str) -> Documents:
    """The documents of token shards, in the order of the stream that the shards form.

    Raises TokenizerMismatch for shards of another tokenizer, DamagedArtifact for sources of another shard.
    """
    table = byte_table(tokenizer)
    shards = [(path, open_tokens(path, tokenizer_digest=digest)) for path in paths]
    runs = [_runs(path, shard) for path, shard in shards]
    names = sorted({name for found, _, _ in runs for name in found})
    sources, starts, sizes, begun = [], [np.zeros(1, np.int64)], [], 0
    for (_, shard), (found, source, borders) in zip(shards, runs, strict=True):
        first = shard.starts.astype(np.int64)
        number = np.array([names.index(name) for name in found], np.int64)[source]
        sources.append(number[np.searchsorted(borders, first[:-1], side="right") - 1])
        starts.append(begun + first[1:])
        sizes.append(_token_bytes(shard, first, table, tokenizer))
        begun += shard.header.tokens
    return Documents(names, np.concatenate(sources), np.concatenate(starts), np.concatenate(sizes))


def byte_table(tokenizer: PreTrainedTokenizerFast) -> NDArray[np.float32] | None:
    """The bytes of text of each id if the vocabulary is byte-level (Radford et al. 2019), else None.

    A byte-level token is spelled with one character per byte. An added token stands for its own text, a special one for
    none.
    """
    decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        return None
    vocabulary = tokenizer.get_vocab()
    table = np.zeros(max(vocabulary.values()) + 1, np.float32)
    for token, number in vocabulary.items():
        table[number] = len(token)
    for number, added in tokenizer.added_tokens_decoder.items():
        table[number] = 0 if added.special else len(str(added.content).encode())
    return table


def _token_bytes(
    shard: TokenShard, starts: Int64, table: NDArray[np.float32] | None, tokenizer: PreTrainedTokenizerFast
) -> NDArray[np.float32]:
    """The bytes of each token, scaled to the shard's stated total, as a tokenizer may have changed the text."""
    ids = np.asarray(shard.ids)
    if table is not None:
        sizes = table[ids]
    else:
        sizes = np.zeros(len(ids), np.float32)
        for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            text = tokenizer.backend_tokenizer.decode(ids[first : last - 1].tolist(), skip_special_tokens=False)
            sizes[first : last - 1] = len(text.encode(errors="replace")) / max(1, last - 1 - first)
    total = float(sizes.sum(dtype=np.float64))
    if total and total != shard.header.text_bytes:
        sizes = (sizes * (shard.header.text_bytes / total)).astype(np.float32)
    return sizes


def _runs(path: Path, shard: TokenShard) -> tuple[list[str], Int64, Int64]:
    if path.with_suffix(SUFFIX).is_file():
        return source_runs(path, shard)
    return [UNNAMED], np.zeros(1, np.int64), np.array([0, shard.header.tokens], np.int64)
