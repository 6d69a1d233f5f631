"""Cutting documents into pieces of whole lines and counting their letters, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Bool, Int64, UInt8
from tasks.text.kernels import decode

NEWLINE = np.uint8(ord("\n"))


@njit(cache=True, nogil=True)
def cut(
    data: UInt8, offsets: Int64, least: int, alphabetic: Bool, begins: Int64, ends: Int64, letters: Int64, firsts: Int64
) -> int:
    """Cut D documents `data[offsets[d]:offsets[d + 1]]` at line ends into pieces of at least `least` bytes.

    Writes begin and end of each piece, its number of letters, and in `firsts[d]` the number of a document's first
    piece. A document has at least one piece. A short rest at its end joins the piece before. Returns the number of
    pieces, at most `len(data) // least + D`.
    """
    count = 0
    beyond = len(alphabetic)
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        firsts[d] = count
        begin = i
        inside = 0  # letters of this piece
        while i < stop:
            b = data[i]
            if b < 128:
                inside += alphabetic[b]
                i += 1
                # A piece ends with the first line end that makes it long enough
                if b == NEWLINE and i - begin >= least:
                    begins[count], ends[count], letters[count] = begin, i, inside
                    count += 1
                    begin, inside = i, 0
            else:
                c, used = decode(data, i, stop)
                inside += c < beyond and alphabetic[c]
                i += used
        # The rest of the document
        if stop - begin >= least or count == firsts[d]:
            begins[count], ends[count], letters[count] = begin, stop, inside
            count += 1
        else:
            ends[count - 1] = stop
            letters[count - 1] += inside
    return count
