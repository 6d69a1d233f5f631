"""Packs many sequences into one row, without padding, with their common beginnings computed once.

The choices of a question share its text, and all questions of a task their examples. A row is the trie of its sequences
in depth-first order: each token attends only to its ancestors, at its position in its own sequence, so every sequence
is computed as if it were the only one. The order is lexicographic, which groups sequences that begin alike.

Shapes: T tokens of a row (nodes of the trie).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RELATED = 1 / 4


@dataclass(frozen=True)
class Row:
    """A trie: the ids of its nodes, their depths, the end of each node's subtree, and the path of each sequence."""

    ids: list[int]
    depths: list[int]
    ends: list[int]
    paths: dict[int, list[int]]  # sequence → its nodes, in order

    def mask(self) -> npt.NDArray[np.bool_]:
        """(T, T): whether the token of a row of the mask attends to that of a column. In depth-first order, a node is
        in the subtree of another if it lies between that node and the end of its subtree."""
        place_T = np.arange(len(self.ids))
        ends_T = np.array(self.ends)
        seen: npt.NDArray[np.bool_] = (place_T[None, :] <= place_T[:, None]) & (place_T[:, None] < ends_T[None, :])
        return seen


def rows_of(sequences: Sequence[Sequence[int]], most: int, unrelated: int | None = None) -> Iterator[Row]:
    """Rows of at most `most` tokens, or of a single longer sequence. No sequence may be empty.

    Every token of a row is compared with every other, so a row grows beyond `unrelated` tokens only by sequences that
    share at least a quarter of their tokens with it.
    """
    order = sorted(range(len(sequences)), key=lambda number: list(sequences[number]))
    packed = _Trie()
    for number in order:
        sequence = sequences[number]
        shared = packed.shared(sequence)
        room = min(unrelated, most) if unrelated is not None and shared < len(sequence) * RELATED else most
        if packed.ids and len(packed.ids) + len(sequence) - shared > room:
            yield packed.row()
            packed = _Trie()
        packed.add(number, sequence)
    if packed.ids:
        yield packed.row()


class _Trie:
    """A growing row. Sequences come in lexicographic order, so only the last one's nodes can be shared."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.depths: list[int] = []
        self.ends: list[int] = []
        self.paths: dict[int, list[int]] = {}
        self.last: list[int] = []  # nodes of the last sequence

    def shared(self, sequence: Sequence[int]) -> int:
        """The number of tokens that the sequence shares with the beginning of the last one."""
        number = 0
        for node, id in zip(self.last, sequence, strict=False):
            if self.ids[node] != id:
                break
            number += 1
        return number

    def add(self, number: int, sequence: Sequence[int]) -> None:
        """Add a sequence."""
        kept = self.shared(sequence)
        self._close(kept)
        path = self.last[:kept]
        for depth in range(kept, len(sequence)):
            path.append(len(self.ids))
            self.ids.append(sequence[depth])
            self.depths.append(depth)
            self.ends.append(-1)
        self.last = self.paths[number] = path

    def row(self) -> Row:
        """The finished row."""
        self._close(0)
        return Row(self.ids, self.depths, self.ends, self.paths)

    def _close(self, kept: int) -> None:
        """End the subtrees of the last sequence's nodes beyond the first `kept`."""
        for node in self.last[kept:]:
            if self.ends[node] < 0:
                self.ends[node] = len(self.ids)
