"""The rows of each batch, in training and in validation, over any number of processes."""

from __future__ import annotations

import math
import random

from tasks.posttrain.config import PosttrainConfig

VALIDATIONS = 10  # of a run, about, unless the profile sets validation_every


def training_steps(config: PosttrainConfig, rows: int) -> int:
    """Optimizer steps to see the rows `epochs` times, rounded up to whole batches."""
    return max(1, math.ceil(config.epochs * rows / config.global_batch))


def validation_interval(config: PosttrainConfig, rows: int) -> int:
    """Steps between validations."""
    return config.validation_every or max(1, round(training_steps(config, rows) / VALIDATIONS))


def training_order(config: PosttrainConfig, rows: int) -> list[int]:
    """The rows in the order of training, for all steps: one shuffle after another, without a break.

    A batch that begins with the last rows of an epoch continues with the first rows of the next, and one more shuffle
    fills up the last batch of the run. So every batch is whole, and every row in it has the same weight.
    """
    samples = training_steps(config, rows) * config.global_batch
    order: list[int] = []
    for epoch in range(math.ceil(samples / rows)):
        shuffled = list(range(rows))
        random.Random(f"{config.seed} {epoch}").shuffle(shuffled)
        order += shuffled
    return order[:samples]


def held_out_batches(rows: int, most: int, process: int, processes: int) -> tuple[list[list[int]], int]:
    """Batches of up to `most` rows for one process, and how many of the last ones are the same on every process.

    Collective operations need the same number of batches, of the same sizes, on all processes. So every process
    measures the rows that can't be shared evenly, which are fewer than the processes.
    """
    shared = rows - rows % processes
    mine, rest = range(process, shared, processes), range(shared, rows)
    batches = [[list(part[start : start + most]) for start in range(0, len(part), most)] for part in (mine, rest)]
    return batches[0] + batches[1], len(batches[1])
