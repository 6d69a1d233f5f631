"""Cutting documents into pieces of whole lines and counting letters by language, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Bool, Float64, Int64, UInt8
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


@njit(cache=True, nogil=True)
def share_letters(
    firsts: Int64,
    part_labels: Int64,
    letters: Int64,
    number: int,
    labels: Int64,
    own: Float64,
    rows: Int64,
    places: Int64,
    shares: Float64,
) -> int:
    """The share of each language in the letters of D documents, of `number` languages.

    `letters` and `part_labels` are those of pieces, `firsts` as in `cut`. Writes the share of document d's language
    `labels[d]` to `own[d]`, and each share that isn't zero to the other three arrays. Returns their number. Documents
    without letters are left out.
    """
    by_label = np.zeros(number, np.int64)
    count = 0
    for d in range(len(firsts)):
        last = firsts[d + 1] if d + 1 < len(firsts) else len(letters)
        total = 0
        for p in range(firsts[d], last):
            by_label[part_labels[p]] += letters[p]
            total += letters[p]
        if total > 0:
            own[d] = by_label[labels[d]] / total
        for p in range(firsts[d], last):
            label = part_labels[p]
            if by_label[label] > 0:
                rows[count], places[count], shares[count] = d, label, by_label[label] / total
                count += 1
                by_label[label] = 0
    return count
