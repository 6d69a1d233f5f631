"""Best-fit-decreasing packing, compiled by numba: documents cut into pieces, pieces sorted, packed and arranged.

The method is that of Ding et al. 2024, "Fewer Truncations Improve Language Modeling": best fit decreasing with a
segment tree over the remaining room. Windows with equal room are interchangeable, so each amount of room has a list of
windows, and a tree over the lists shows which are not empty: a piece is placed in O(log context), whatever the number
of windows. Everything is integer arithmetic in one thread: equal lengths give equal plans.
"""

from __future__ import annotations

import numpy as np
from numba import njit

SHORTEST = 2  # fewest tokens of a document or piece: a single token leaves nothing to predict


@njit(cache=True, nogil=True)
def survey(lengths, context):
    """The numbers of pieces, of documents that packing cuts, of documents that consecutive windows of the stream would
    cut, and of documents that are too short.

    A window has context + 1 tokens, the last of which is only a target, so the windows of a stream overlap by one.
    """
    pieces, cut, cut_by_stream, too_short = 0, 0, 0, 0
    end = 0
    total = lengths.sum()
    streamed = max(0, total - 1) // context * context + 1  # tokens in full windows of the stream, which drops the rest
    for document in range(len(lengths)):
        length = lengths[document]
        begin = end
        end += length
        if length < SHORTEST:
            too_short += 1
            continue
        parts = -(-(length - 1) // context)  # each piece predicts up to `context` of the length - 1 targets
        pieces += parts
        cut += parts > 1
        window_end = begin // context * context + context + 1  # of the stream's window that the document starts in
        cut_by_stream += begin < streamed and end > min(window_end, streamed)
    return pieces, cut, cut_by_stream, too_short


@njit(cache=True, nogil=True)
def cut(lengths, context, starts, sizes, goes_on):
    """Cut each document into pieces, in the order of the stream: full windows, then the rest.

    A piece that continues another (`goes_on`) starts with that one's last token, which was only a target, so every
    token but the document's first is predicted exactly once.
    """
    piece = 0
    begin = 0
    for document in range(len(lengths)):
        length = lengths[document]
        if length >= SHORTEST:
            for offset in range(0, length - 1, context):
                starts[piece] = begin + offset
                sizes[piece] = min(context + 1, length - offset)
                goes_on[piece] = offset > 0
                piece += 1
        begin += length


@njit(cache=True, nogil=True)
def longest_first(sizes, capacity, order):
    """Order the pieces by decreasing size, equal ones as is: a stable counting sort (Knuth 1998, section 5.2)."""
    # Count under key capacity - size + 1, so that the prefix sums are where each key's pieces start
    places = np.zeros(capacity + 2, np.int64)
    for piece in range(len(sizes)):
        places[capacity - sizes[piece] + 1] += 1
    for size in range(capacity + 1):
        places[size + 1] += places[size]
    for piece in range(len(sizes)):
        shorter = capacity - sizes[piece]
        order[places[shorter]] = piece
        places[shorter] += 1


@njit(cache=True, nogil=True)
def least_room(has, size):
    """The smallest room of at least `size` that some window has, or -1: a successor search in the tree.

    `has` is a complete binary tree in an array: node 1 is the root, 2n and 2n + 1 are the children of n, the leaves are
    the rooms, and a node is true if any leaf below it is.
    """
    leaves = len(has) // 2
    node = leaves + size
    # Up: the next subtree to the right that is not empty
    while not has[node]:
        while node & 1:  # nothing is to the right of a right child, or the root, under the same parent
            node >>= 1
        if node == 0:
            return -1
        node += 1
    # Down: its leftmost leaf that is true
    while node < leaves:
        node *= 2
        if not has[node]:
            node += 1
    return node - leaves


@njit(cache=True, nogil=True)
def mark(has, room, any_window):
    """Set whether any window has this room, and update the nodes above until one does not change."""
    node = len(has) // 2 + room
    has[node] = any_window
    while node > 1:
        node >>= 1
        either = has[2 * node] or has[2 * node + 1]
        if has[node] == either:
            break
        has[node] = either


@njit(cache=True, nogil=True)
def best_fit(sizes, order, capacity, window_of):
    """Assign each piece, in `order`, to the window with the least room that it fits into, or to a new one.

    Of several windows with that room, the one that reached it last is taken. Returns the number of windows.
    """
    leaves = 1
    while leaves <= capacity:
        leaves *= 2
    has = np.zeros(2 * leaves, np.bool_)
    # Linked lists, used as stacks, of the windows with each room. The tree says which are not empty
    newest = np.full(capacity + 1, -1, np.int32)  # by room: the window that reached it last
    older = np.empty(len(sizes), np.int32)  # by window: the next one with the same room
    windows = 0
    for place in range(len(order)):
        piece = order[place]
        size = sizes[piece]
        room = least_room(has, size)
        if room < 0:  # it fits nowhere
            room = capacity
            window = windows
            windows += 1
        else:  # pop a window with that room
            window = newest[room]
            newest[room] = older[window]
            if newest[room] < 0:
                mark(has, room, False)
        window_of[piece] = window
        room -= size
        if room >= SHORTEST:  # push it onto the list of its remaining room, unless that is too small for any piece
            if newest[room] < 0:
                mark(has, room, True)
            older[window] = newest[room]
            newest[room] = window
    return windows


@njit(cache=True, nogil=True)
def arrange(starts, sizes, goes_on, window_of, firsts, arranged_starts, arranged_sizes, arranged_goes_on):
    """Arrange pieces by window, in the order of the stream within a window. `firsts[w]` is the first of window w.

    A counting sort by window. `firsts` must be zero, and has one element more than the number of windows.
    """
    for piece in range(len(window_of)):
        firsts[window_of[piece] + 1] += 1
    for window in range(len(firsts) - 1):
        firsts[window + 1] += firsts[window]
    for piece in range(len(window_of)):
        window = window_of[piece]
        place = firsts[window]
        firsts[window] += 1
        arranged_starts[place] = starts[piece]
        arranged_sizes[place] = sizes[piece]
        arranged_goes_on[place] = goes_on[piece]
    # Each entry has moved to where the next window starts: shift them back by one
    for window in range(len(firsts) - 1, 0, -1):
        firsts[window] = firsts[window - 1]
    firsts[0] = 0
