"""Which rows a batch holds, in training and in validation, over any number of processes."""

from __future__ import annotations


def held_out_batches(rows: int, most: int, process: int, processes: int) -> tuple[list[list[int]], int]:
    """Batches of up to `most` rows for one process, and how many of them, at the end, are the same for every process.

    All processes have equally many batches of equal sizes, as collective operations ask for. So the rows that can't be
    shared evenly, fewer than there are processes, are measured by each.
    """
    shared = rows - rows % processes
    mine, rest = range(process, shared, processes), range(shared, rows)
    batches = [[list(part[start : start + most]) for start in range(0, len(part), most)] for part in (mine, rest)]
    return batches[0] + batches[1], len(batches[1])
