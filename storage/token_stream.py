"""Token shards as long streams of ids: a whole split, or each of its sources by itself, without a copy.

A stream is a list of stretches of memory-mapped shards, one after the other. That of a split has a stretch a shard;
that of a source has one wherever documents of the source stand together.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.token_sources import source_runs
from storage.tokens import TokenArray, TokenShard, open_tokens

Integers = npt.NDArray[np.int64]


class Stretches:
    """Stretches of mapped arrays as one stream: stretch i is `ids[shard[i]][offset[i]:offset[i] + length[i]]`.

    None may be empty. Three numbers a stretch are all that is kept in memory.
    """

    def __init__(self, ids: Sequence[TokenArray], shard: Integers, offset: Integers, length: Integers) -> None:
        self._maps = ids
        self._ids = [np.asarray(one) for one in ids]  # slicing a plain view is several times as fast as a memmap
        self._shard, self._offset = shard, offset
        self._starts = np.concatenate(([0], np.cumsum(length)))
        self.tokens = int(self._starts[-1])

    def read(self, start: int, count: int) -> Integers:
        """Tokens `start` to `start + count` of the stream, across stretches; fewer at its end."""
        out = np.empty(max(0, min(count, self.tokens - start)), np.int64)
        self.read_into(out, start)
        return out

    def read_into(self, out: Integers, start: int) -> None:
        """Fill `out` from token `start` on; the stream must reach that far."""
        stretch = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(out):
            skipped = start + done - int(self._starts[stretch])
            left = int(self._starts[stretch + 1] - self._starts[stretch]) - skipped
            count = min(left, len(out) - done)
            first = int(self._offset[stretch]) + skipped
            out[done : done + count] = self._ids[self._shard[stretch]][first : first + count]
            done, stretch = done + count, stretch + 1

    def document_lengths(self, paths: Sequence[Path]) -> Integers:
        """Tokens of each document of the stream, EOS included, in its order. `paths` are the shards that it was made
        from, in their order: their index is read anew, since a stream has no use for it."""
        parts = [np.empty(0, np.int64)]
        borders = np.searchsorted(self._shard, np.arange(len(paths) + 1))
        for path, (first, last) in zip(paths, itertools.pairwise(borders.tolist()), strict=True):
            if first == last:
                continue
            starts = open_tokens(path).starts.astype(np.int64)
            lengths = np.diff(self._starts[first : last + 1])
            stretch = np.searchsorted(self._offset[first:last], starts[:-1], side="right") - 1
            mine = (stretch >= 0) & (starts[:-1] < (self._offset[first:last] + lengths)[stretch])
            parts.append(np.diff(starts)[mine])
        return np.concatenate(parts)

    def expect_random_reads(self) -> None:
        """Have the kernel read the pages that are asked for and no others: a window in random order has no use for
        what follows it, and reading ahead would read most of a large shard many times."""
        for one in self._maps:
            if isinstance(one.base, mmap.mmap):
                one.base.madvise(mmap.MADV_RANDOM)


class TokenStream(Stretches):
    """The shards of a split, one after the other. Raises TokenizerMismatch for shards of another tokenizer."""

    def __init__(self, paths: Sequence[Path], *, tokenizer_digest: str) -> None:
        shards = _open(paths, tokenizer_digest)
        lengths = np.array([shard.header.tokens for shard in shards], np.int64)
        filled = np.flatnonzero(lengths)
        super().__init__([shard.ids for shard in shards], filled, np.zeros(len(filled), np.int64), lengths[filled])
        self.text_bytes = sum(shard.header.text_bytes for shard in shards)


def source_streams(paths: Sequence[Path], *, tokenizer_digest: str) -> dict[str, Stretches]:
    """Each source's documents as a stream of their own, in the order of shards and documents; sources sorted by name.

    Raises TokenizerMismatch for shards of another tokenizer, DamagedArtifact for shards without their sources.
    """
    shards = _open(paths, tokenizer_digest)
    found: dict[str, list[tuple[Integers, Integers, Integers]]] = {}
    for number, (path, shard) in enumerate(zip(paths, shards, strict=True)):
        names, sources, borders = source_runs(path, shard)
        lengths = np.diff(borders)
        for index, name in enumerate(names):
            mine = np.flatnonzero((sources == index) & (lengths > 0))
            found.setdefault(name, []).append((np.full(len(mine), number), borders[mine], lengths[mine]))
    ids = [shard.ids for shard in shards]
    return {
        name: Stretches(ids, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        for name, parts in sorted(found.items())
    }


def _open(paths: Sequence[Path], tokenizer_digest: str) -> list[TokenShard]:
    return [open_tokens(path, tokenizer_digest=tokenizer_digest) for path in paths]
