"""Clusters over verified edges, and who is kept: nothing here depends on the order of documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """What decides between duplicates: the longest is kept, then the most trusted source, then the smallest id."""

    row: int
    length: int
    source_rank: tuple[int, str]
    id: str

    @property
    def preference(self) -> tuple[int, tuple[int, str], str, int]:
        """Smaller is better."""
        return (-self.length, self.source_rank, self.id, self.row)


class UnionFind:
    """Connected components (Tarjan 1975), with path halving."""

    def __init__(self, size: int) -> None:
        self.parents = list(range(size))

    def root(self, item: int) -> int:
        """The representative of the item's component."""
        while self.parents[item] != item:
            self.parents[item] = self.parents[self.parents[item]]
            item = self.parents[item]
        return item

    def join(self, first: int, second: int) -> None:
        """Make one component of two."""
        self.parents[self.root(first)] = self.root(second)


def keepers(entries: list[Entry], edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """For every row that is to be removed, the row that is kept in its stead. Rows without an edge are not named."""
    by_row = {entry.row: entry for entry in entries}
    number = {row: place for place, row in enumerate(by_row)}
    components = UnionFind(len(number))
    touched: set[int] = set()
    for first, second in edges:
        components.join(number[first], number[second])
        touched |= {first, second}
    best: dict[int, Entry] = {}
    for row in touched:
        root = components.root(number[row])
        if root not in best or by_row[row].preference < best[root].preference:
            best[root] = by_row[row]
    found = {row: best[components.root(number[row])].row for row in touched}
    return {row: kept for row, kept in found.items() if row != kept}
