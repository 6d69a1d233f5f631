"""Finds the longest pieces of generated texts that occur anywhere in the training tokens.

All generated texts become one suffix automaton (Blumer et al. 1985), whose size is proportional to theirs. The training
tokens are read through it once, from first to last: at each token the automaton knows the longest piece of generated
text that ends there (the matching statistics of Chang & Lawler 1994), and each of its states keeps the longest one
seen. So memory doesn't grow with the training text, no n-gram length is chosen in advance, and nothing depends on
hashes that may collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.shards.arrays import Int32, UInt64
from storage.shards.tokens import check_header, map_ids
from tasks.evaluate.safety.training_text.kernels import fill_table, read_through

PORTION = 1 << 22  # tokens read at a time, between which a signal can stop the process


@dataclass(frozen=True)
class Automaton:
    """S states, where `link` is a state's suffix link and `length` its longest text. Transitions are in a hash table.
    `ends[n]` are the states after each token of text n."""

    link: Int32
    length: Int32
    keys: UInt64
    targets: Int32
    ends: list[list[int]]

    def nothing_found(self) -> Int32:
        """(S) zeros: the longest match that ended in each state, before any token is read."""
        return np.zeros(len(self.link), np.int32)

    def longest(self, found: Int32) -> list[int]:
        """The length in tokens of the longest piece found of each text."""
        reach = found.copy()
        for state in np.argsort(self.length, kind="stable")[::-1].tolist():  # longest first: a state before its link
            parent = self.link[state]
            if parent > 0 and reach[state] > 0:
                reach[parent] = self.length[parent]
        return [max((self._ending_in(state, reach) for state in states), default=0) for states in self.ends]

    def _ending_in(self, state: int, reach: Int32) -> int:
        while state > 0 and not reach[state]:
            state = int(self.link[state])
        return int(reach[state]) if state > 0 else 0


def build(texts: Sequence[Sequence[int]]) -> Automaton:
    """The suffix automaton of texts of token ids, without pieces across two texts. Time is linear in their tokens."""
    edges: list[dict[int, int]] = [{}]
    link, length = [-1], [0]
    last = 0
    ends: list[list[int]] = []
    for number, text in enumerate(texts):
        states = []
        # A text ends with a token outside any vocabulary and unique to it, so that no piece spans two texts
        for token in (*text, -1 - number):
            last = _extend(edges, link, length, last, token)
            states.append(last)
        ends.append(states[:-1])
    items = [(state, token, to) for state, out in enumerate(edges) for token, to in out.items() if token >= 0]
    states_, tokens, to = np.array(items, np.int64).reshape(-1, 3).T
    size = 1 << max(4, (2 * len(items)).bit_length())
    keys, targets = np.full(size, np.uint64(2**64 - 1)), np.zeros(size, np.int32)
    fill_table(
        keys, targets, states_.astype(np.uint64) << np.uint64(32) | tokens.astype(np.uint64), to.astype(np.int32)
    )
    return Automaton(np.array(link, np.int32), np.array(length, np.int32), keys, targets, ends)


def _extend(edges: list[dict[int, int]], link: list[int], length: list[int], last: int, token: int) -> int:
    """Append a token (Blumer's online step), and return the new last state."""
    new = len(edges)
    edges.append({})
    length.append(length[last] + 1)
    link.append(0)
    state = last
    while state != -1 and token not in edges[state]:
        edges[state][token] = new
        state = link[state]
    if state == -1:
        return new
    known = edges[state][token]
    if length[state] + 1 == length[known]:
        link[new] = known
        return new
    # `known` also stands for longer texts, which don't end here: a clone takes over the shorter ones
    clone = len(edges)
    edges.append(dict(edges[known]))
    length.append(length[state] + 1)
    link.append(link[known])
    while state != -1 and edges[state].get(token) == known:
        edges[state][token] = clone
        state = link[state]
    link[known] = link[new] = clone
    return new


def find_in(automaton: Automaton, ids: NDArray[np.unsignedinteger], found: Int32) -> None:
    """Read a stream of tokens, and raise `found` to the longest matches in it."""
    state, length = 0, 0
    for start in range(0, len(ids), PORTION):
        state, length = read_through(
            automaton.link,
            automaton.length,
            automaton.keys,
            automaton.targets,
            np.ascontiguousarray(ids[start : start + PORTION]),
            found,
            state,
            length,
        )


def find_in_shard(automaton: Automaton, digest: str, path: Path, folder: Path) -> dict[str, int]:
    """A job of `map_shards`: write found.npy, the longest match in each state, and count the tokens."""
    header = check_header(path, tokenizer_digest=digest)
    found = automaton.nothing_found()
    find_in(automaton, map_ids(path, header), found)
    np.save(folder / "found.npy", found, allow_pickle=False)
    return {"tokens": header.tokens}


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens that two texts share from their beginning."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))


def common_piece(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens of the longest piece in both texts, by the usual table of two rows."""
    best, above = 0, [0] * (len(second) + 1)
    for one in first:
        row = [0] * (len(second) + 1)
        for place, other in enumerate(second, 1):
            if one == other:
                row[place] = above[place - 1] + 1
        best, above = max(best, *row), row
    return best


def join(found: Sequence[Path]) -> Int32:
    """The longest matches over several shards."""
    total: Int32 = np.load(found[0], allow_pickle=False)
    for path in found[1:]:
        np.maximum(total, np.load(path, allow_pickle=False), out=total)
    return total
