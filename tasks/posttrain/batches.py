"""Which rows a batch holds, in training and in validation, over any number of processes."""

from __future__ import annotations

import math
import random

from tasks.posttrain.config import PosttrainConfig

VALIDATIONS = 10  # in a run, more or less, where the profile does not say


def training_steps(config: PosttrainConfig, rows: int) -> int:
    """Optimizer steps in which the rows are seen `epochs` times, rounded up to whole batches."""
    return max(1, math.ceil(config.epochs * rows / config.global_batch))


def validation_interval(config: PosttrainConfig, rows: int) -> int:
    """Steps between validations."""
    return config.validation_every or max(1, round(training_steps(config, rows) / VALIDATIONS))


def training_order(config: PosttrainConfig, rows: int) -> list[int]:
    """The rows in the order of training, for so many steps: one shuffle after the other, without a break.

    So a batch that begins with the last rows of an epoch goes on with the first rows of the next, and the last batch
    of the run is filled up from one more shuffle: every batch is a whole one, and every row in it weighs the same.
    """
    samples = training_steps(config, rows) * config.global_batch
    order: list[int] = []
    for epoch in range(math.ceil(samples / rows)):
        shuffled = list(range(rows))
        random.Random(f"{config.seed} {epoch}").shuffle(shuffled)
        order += shuffled
    return order[:samples]


def held_out_batches(rows: int, most: int, process: int, processes: int) -> tuple[list[list[int]], int]:
    """Batches of up to `most` rows for one process, and how many of them, at the end, are the same for every process.

    All processes have equally many batches of equal sizes, as collective operations ask for. So the rows that can't be
    shared evenly, fewer than there are processes, are measured by each.
    """
    shared = rows - rows % processes
    mine, rest = range(process, shared, processes), range(shared, rows)
    batches = [[list(part[start : start + most]) for start in range(0, len(part), most)] for part in (mine, rest)]
    return batches[0] + batches[1], len(batches[1])
