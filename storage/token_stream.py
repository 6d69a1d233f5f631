"""The shards of a split, one after the other, as one long stream of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.tokens import TokenArray, open_tokens


class TokenStream:
    """Token shards as one memory-mapped stream. Raises TokenizerMismatch for shards of another tokenizer."""

    def __init__(self, paths: Sequence[Path], *, tokenizer_digest: str) -> None:
        shards = [open_tokens(path, tokenizer_digest=tokenizer_digest) for path in paths]
        self._ids: list[TokenArray] = [shard.ids for shard in shards if shard.header.tokens]
        self._starts = np.cumsum([0, *(len(ids) for ids in self._ids)])
        self.tokens = int(self._starts[-1])
        self.text_bytes = sum(shard.header.text_bytes for shard in shards)

    def read(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Tokens `start` to `start + count` of the stream, across shards; fewer at its end."""
        pieces = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while count > 0 and shard < len(self._ids):
            offset = start - int(self._starts[shard])
            piece = self._ids[shard][offset : offset + count]
            pieces.append(piece)
            start, count, shard = start + len(piece), count - len(piece), shard + 1
        return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)
