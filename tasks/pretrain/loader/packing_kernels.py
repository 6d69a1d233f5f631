"""The hot loops of best-fit packing, compiled by numba: documents cut into pieces, pieces sorted, fitted and arranged.

Of windows with equally much room one is as good as another, so they are kept in a list for each room, and a tree over
the rooms tells which lists have one: a piece is placed in O(log context), whatever the number of windows. All is
integers in one thread: the same lengths, the same plan.
"""

from __future__ import annotations

import numpy as np
from numba import njit

SHORTEST = 2  # tokens of a document or piece: one alone has nothing to predict


@njit(cache=True, nogil=True)
def survey(lengths, context):
    """Pieces that the documents make; documents that are cut here, that windows of the stream cut, that are too short.

    A document lies whole in a window of context + 1 tokens, the last of them a target only.
    """
    pieces, cut, cut_by_stream, too_short = 0, 0, 0, 0
    end = 0
    total = lengths.sum()
    streamed = max(0, total - 1) // context * context + 1  # tokens in windows of the stream, which leave out a rest
    for document in range(len(lengths)):
        length = lengths[document]
        begin = end
        end += length
        if length < SHORTEST:
            too_short += 1
            continue
        parts = -(-(length - 1) // context)
        pieces += parts
        cut += parts > 1
        within = begin // context * context + context + 1
        cut_by_stream += begin < streamed and end > min(within, streamed)
    return pieces, cut, cut_by_stream, too_short


@njit(cache=True, nogil=True)
def cut(lengths, context, starts, sizes, goes_on):
    """Each document's pieces in the order of the stream: a window's worth each, and what is left.

    A piece that goes on from another begins with the last token of that, which was a target only: so no prediction is
    lost.
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
    """The pieces by size, equal ones as they come: a counting sort."""
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
    """The least room that is no less than `size` and that a window has, or -1."""
    leaves = len(has) // 2
    node = leaves + size
    while not has[node]:
        while node & 1:  # to the right of a right child, or of the root, there is nothing below its parent
            node >>= 1
        if node == 0:
            return -1
        node += 1
    while node < leaves:
        node *= 2
        if not has[node]:
            node += 1
    return node - leaves


@njit(cache=True, nogil=True)
def tell(has, room, there):
    """Note whether any window has this room."""
    node = len(has) // 2 + room
    has[node] = there
    while node > 1:
        node >>= 1
        either = has[2 * node] or has[2 * node + 1]
        if has[node] == either:
            break
        has[node] = either


@njit(cache=True, nogil=True)
def best_fit(sizes, order, capacity, window_of):
    """Give each piece, in `order`, the window that it leaves the least room in, a new one where it fits in none.

    Of several it is the one that came to have that room last. Returns the number of windows.
    """
    leaves = 1
    while leaves <= capacity:
        leaves *= 2
    has = np.zeros(2 * leaves, np.bool_)
    newest = np.full(capacity + 1, -1, np.int32)  # by room: the window that came to have it last
    older = np.empty(len(sizes), np.int32)  # by window: the one before it
    windows = 0
    for place in range(len(order)):
        piece = order[place]
        size = sizes[piece]
        room = least_room(has, size)
        if room < 0:
            room = capacity
            window = windows
            windows += 1
        else:
            window = newest[room]
            newest[room] = older[window]
            if newest[room] < 0:
                tell(has, room, False)
        window_of[piece] = window
        room -= size
        if room >= SHORTEST:
            if newest[room] < 0:
                tell(has, room, True)
            older[window] = newest[room]
            newest[room] = window
    return windows


@njit(cache=True, nogil=True)
def arrange(starts, sizes, goes_on, window_of, firsts, arranged_starts, arranged_sizes, arranged_goes_on):
    """Pieces by window, within a window as the stream has them; `firsts[w]` is the first of window w."""
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
    for window in range(len(firsts) - 1, 0, -1):
        firsts[window] = firsts[window - 1]
    firsts[0] = 0
