"""Token shards as long streams of ids: a whole split, or each of its sources by itself, without a copy.

A stream is a list of stretches of memory-mapped shards, one after the other. That of a split has a stretch a shard;
that of a source has one wherever documents of the source stand together.

A map holds a file descriptor and one of the kernel's areas of memory. A process may often have 1,024 of the former and
has 65,530 of the latter, and a corpus has a shard for every 4 MB of text. So shards are mapped when they are read, and
let go of again.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.arrays import Int64
from storage.token_sources import source_runs
from storage.tokens import TokenArray, TokenHeader, check_header, map_ids, open_tokens

MAPPED = 128  # shards of a stream at a time; to map one again costs less than to read a page of it from a disk


class Arrays(Protocol):
    """The ids of shards, by the number of the shard."""

    def __getitem__(self, number: int, /) -> TokenArray: ...


class MappedIds:
    """The ids of shards by number: those that were read last are mapped. For any number of streams and threads."""

    def __init__(self, paths: Sequence[Path], headers: Sequence[TokenHeader]) -> None:
        self._paths, self._headers = paths, headers
        self._mapped = _mapped(paths, headers, mmap.MADV_NORMAL)

    def __getitem__(self, number: int) -> TokenArray:
        return self._mapped(number)

    def expect_random_reads(self) -> None:
        """See Stretches."""
        self._mapped = _mapped(self._paths, self._headers, mmap.MADV_RANDOM)


def _mapped(paths: Sequence[Path], headers: Sequence[TokenHeader], advice: int) -> Callable[[int], TokenArray]:
    @functools.lru_cache(MAPPED)
    def ids(number: int) -> TokenArray:
        mapped = map_ids(paths[number], headers[number])
        if isinstance(mapped.base, mmap.mmap):
            mapped.base.madvise(advice)
        return mapped.view(np.ndarray)  # slicing a plain view is several times as fast as a memmap

    return ids


class Stretches:
    """Stretches of mapped arrays as one stream: stretch i is `ids[shard[i]][offset[i]:offset[i] + length[i]]`.

    None may be empty. Three numbers a stretch are all that is kept in memory.
    """

    def __init__(self, ids: Arrays, shard: Int64, offset: Int64, length: Int64) -> None:
        self._ids, self._shard, self._offset = ids, shard, offset
        self._starts = np.concatenate(([0], np.cumsum(length)))
        self.tokens = int(self._starts[-1])

    def read(self, start: int, count: int) -> Int64:
        """Tokens `start` to `start + count` of the stream, across stretches; fewer at its end."""
        out = np.empty(max(0, min(count, self.tokens - start)), np.int64)
        self.read_into(out, start)
        return out

    def read_into(self, out: Int64, start: int) -> None:
        """Fill `out` from token `start` on; the stream must reach that far."""
        stretch = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(out):
            skipped = start + done - int(self._starts[stretch])
            left = int(self._starts[stretch + 1] - self._starts[stretch]) - skipped
            count = min(left, len(out) - done)
            first = int(self._offset[stretch]) + skipped
            out[done : done + count] = self._ids[int(self._shard[stretch])][first : first + count]
            done, stretch = done + count, stretch + 1

    def document_lengths(self, paths: Sequence[Path]) -> Int64:
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
        if isinstance(self._ids, MappedIds):
            self._ids.expect_random_reads()


class TokenStream(Stretches):
    """The shards of a split, one after the other. Raises TokenizerMismatch for shards of another tokenizer."""

    def __init__(self, paths: Sequence[Path], *, tokenizer_digest: str) -> None:
        headers = [check_header(path, tokenizer_digest=tokenizer_digest) for path in paths]
        lengths = np.array([header.tokens for header in headers], np.int64)
        filled = np.flatnonzero(lengths)
        super().__init__(MappedIds(paths, headers), filled, np.zeros(len(filled), np.int64), lengths[filled])
        self.text_bytes = sum(header.text_bytes for header in headers)


def source_streams(paths: Sequence[Path], *, tokenizer_digest: str) -> dict[str, Stretches]:
    """Each source's documents as a stream of their own, in the order of shards and documents; sources sorted by name.

    Raises TokenizerMismatch for shards of another tokenizer, DamagedArtifact for shards without their sources.
    """
    headers: list[TokenHeader] = []
    found: dict[str, list[tuple[Int64, Int64, Int64]]] = {}
    for number, path in enumerate(paths):
        shard = open_tokens(path, tokenizer_digest=tokenizer_digest)
        headers.append(shard.header)
        names, sources, borders = source_runs(path, shard)
        lengths = np.diff(borders)
        for index, name in enumerate(names):
            mine = np.flatnonzero((sources == index) & (lengths > 0))
            found.setdefault(name, []).append((np.full(len(mine), number), borders[mine], lengths[mine]))
    ids = MappedIds(paths, headers)
    return {
        name: Stretches(ids, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        for name, parts in sorted(found.items())
    }
