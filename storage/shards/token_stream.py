"""Token shards as long streams of ids, without copying: a whole split, or each of its sources separately.

A stream is a sequence of stretches of memory-mapped shards. A split's stream has one stretch per shard, a source's
stream one stretch per run of adjacent documents of that source.

A memory map takes a file descriptor, of which a process often has 1,024, and a kernel memory area, of which it has
65,530. A corpus has a shard per 4 MB of text. So shards are mapped when they are read, and unmapped again.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from storage.shards.arrays import Int64
from storage.shards.token_sources import source_runs
from storage.shards.tokens import TokenArray, TokenHeader, check_header, map_ids, open_tokens

MARK = 1 << 40  # above every id, and below the sign, which says something else
MAPPED = 128  # shards of a stream mapped at once: remapping one costs less than reading a page of it from disk


class Ranges(NamedTuple):
    """Disjoint, ascending, none empty: range i of a stream or a shard is its tokens `starts[i]` to `ends[i]`."""

    starts: Int64
    ends: Int64


class Arrays(Protocol):
    """The ids of shards, by shard number."""

    def __getitem__(self, number: int, /) -> TokenArray: ...


class MappedIds:
    """The ids of shards, by shard number. The most recently read ones are mapped. Safe for threads."""

    def __init__(self, paths: Sequence[Path], headers: Sequence[TokenHeader]) -> None:
        self._paths, self._headers = paths, headers
        self._mapped = _mapped(paths, headers, mmap.MADV_NORMAL)

    def __getitem__(self, number: int) -> TokenArray:
        return self._mapped(number)

    def expect_random_reads(self) -> None:
        """Turn off read-ahead: see Stretches."""
        self._mapped = _mapped(self._paths, self._headers, mmap.MADV_RANDOM)


def _mapped(paths: Sequence[Path], headers: Sequence[TokenHeader], advice: int) -> Callable[[int], TokenArray]:
    @functools.lru_cache(MAPPED)
    def ids(number: int) -> TokenArray:
        mapped = map_ids(paths[number], headers[number])
        if isinstance(mapped.base, mmap.mmap):
            mapped.base.madvise(advice)
        return mapped.view(np.ndarray)  # slicing a plain view is several times as fast as slicing a memmap

    return ids


class Stretches:
    """Stretches of mapped arrays as one stream: stretch i is `ids[shard[i]][offset[i]:offset[i] + length[i]]`.

    No stretch may be empty. Only three numbers per stretch are kept in memory.
    """

    def __init__(self, ids: Arrays, shard: Int64, offset: Int64, length: Int64) -> None:
        self._ids, self._shard, self._offset = ids, shard, offset
        self._starts = np.concatenate(([0], np.cumsum(length)))
        self.tokens = int(self._starts[-1])

    def read(self, start: int, count: int) -> Int64:
        """Tokens `start` to `start + count` of the stream, across stretches, or fewer at the end of the stream."""
        out = np.empty(max(0, min(count, self.tokens - start)), np.int64)
        self.read_into(out, start)
        return out

    def read_into(self, out: Int64, start: int) -> None:
        """Fill `out` with the tokens from `start` on. The stream must be long enough."""
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
        """The length in tokens of each document of the stream, EOS included, in order. `paths` are the stream's shards,
        in order. Their indexes are read again, as a stream does not keep them."""
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

    def ranges(self, by_shard: Mapping[int, Ranges]) -> Ranges:
        """Where the stream has these ranges of its shards, by shard number. Each lies in one document. Those of
        documents that aren't in the stream are left out."""
        found = [np.empty((2, 0), np.int64)]
        for shard, ranges in sorted(by_shard.items()):
            first, last = np.searchsorted(self._shard, (shard, shard + 1))
            stretch = first + np.searchsorted(self._offset[first:last], ranges.starts, side="right") - 1
            mine = stretch >= first
            skipped = ranges.starts[mine] - self._offset[stretch[mine]]
            inside = skipped < np.diff(self._starts)[stretch[mine]]
            starts = self._starts[stretch[mine]][inside] + skipped[inside]
            found.append(np.stack((starts, starts + (ranges.ends - ranges.starts)[mine][inside])))
        return Ranges(*np.concatenate(found, axis=1))

    def marked(self, ranges: Ranges) -> Stretches:
        """The same stream, with MARK added to the tokens of these ranges."""
        return _Marked(self, ranges)

    def expect_random_reads(self) -> None:
        """Turn off the kernel's read-ahead: windows in random order don't need the following pages, and most of a large
        shard would be read many times."""
        if isinstance(self._ids, MappedIds):
            self._ids.expect_random_reads()


class _Marked(Stretches):
    def __init__(self, stream: Stretches, ranges: Ranges) -> None:
        self.__dict__.update(stream.__dict__)
        self._marks = ranges

    def read_into(self, out: Int64, start: int) -> None:
        super().read_into(out, start)
        first, end = np.searchsorted(self._marks.ends, start, side="right"), start + len(out)
        last = np.searchsorted(self._marks.starts, end)
        for begin, stop in zip(self._marks.starts[first:last], self._marks.ends[first:last], strict=True):
            out[max(0, begin - start) : stop - start] += MARK


class TokenStream(Stretches):
    """The shards of a split, in sequence. Raises TokenizerMismatch for shards of another tokenizer."""

    def __init__(self, paths: Sequence[Path], *, tokenizer_digest: str) -> None:
        headers = [check_header(path, tokenizer_digest=tokenizer_digest) for path in paths]
        lengths = np.array([header.tokens for header in headers], np.int64)
        filled = np.flatnonzero(lengths)
        super().__init__(MappedIds(paths, headers), filled, np.zeros(len(filled), np.int64), lengths[filled])
        self.text_bytes = sum(header.text_bytes for header in headers)


def source_streams(paths: Sequence[Path], *, tokenizer_digest: str) -> dict[str, Stretches]:
    """A stream for each source, sorted by name, with its documents in the order of shards and documents.

    Raises TokenizerMismatch for shards of another tokenizer, DamagedArtifact for shards without a file of sources.
    """
    headers: list[TokenHeader] = []
    stretches: dict[str, list[tuple[Int64, Int64, Int64]]] = {}
    for number, path in enumerate(paths):
        shard = open_tokens(path, tokenizer_digest=tokenizer_digest)
        headers.append(shard.header)
        names, sources, borders = source_runs(path, shard)
        lengths = np.diff(borders)
        for index, name in enumerate(names):
            mine = np.flatnonzero((sources == index) & (lengths > 0))
            stretches.setdefault(name, []).append((np.full(len(mine), number), borders[mine], lengths[mine]))
    ids = MappedIds(paths, headers)
    return {
        name: Stretches(ids, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        for name, parts in sorted(stretches.items())
    }
