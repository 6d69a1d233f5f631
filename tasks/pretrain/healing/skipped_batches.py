"""The batch that each step trains on after a recovery: a pure function of the step's number.

With nothing skipped, step k trains on batch k. A skipped batch is never trained on, and later ones move up. The
learning-rate schedule goes by the step, so that a run keeps its length whatever was skipped. So a recovered run is as
repeatable and resumable as any other: the same batch schedule from the first step on gives the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class BatchSchedule(BaseModel):
    """Skipped batches, and steps from which the learning rate is lowered. Batches and steps count from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skipped: tuple[tuple[int, int], ...] = Field((), description="first and last batch of each skipped range")
    lowered: tuple[tuple[int, float], ...] = Field(
        (), description="steps from which the learning rate is multiplied by a factor"
    )

    @model_validator(mode="after")
    def _in_order(self) -> BatchSchedule:
        if any(last < first for first, last in self.skipped):
            raise ValueError("a range of batches ends before it begins")
        if any(later <= last + 1 for (_, last), (later, _) in pairwise(self.skipped)):
            raise ValueError("ranges of batches must be in order, with a gap between them")
        return self

    def batch(self, step: int) -> int:
        """The number of the batch that a step trains on: the step-th of those not skipped."""
        number = step
        for first, last in self.skipped:
            if number < first:
                break
            number += last - first + 1
        return number

    def rate_scale(self, step: int) -> float:
        """Factor on the scheduled learning rate of a step."""
        scale = 1.0
        for first, factor in self.lowered:
            if step >= first:
                scale *= factor
        return scale

    def without(self, first: int, last: int) -> BatchSchedule:
        """A schedule that also skips the batches of steps `first` to `last`. Earlier steps stay the same."""
        left_out = {number for begin, end in self.skipped for number in range(begin, end + 1)}
        left_out |= {self.batch(step) for step in range(first, last + 1)}
        return self.model_copy(update={"skipped": _runs(left_out)})

    def slower(self, step: int, factor: float) -> BatchSchedule:
        """A schedule with the learning rate multiplied by `factor` from `step` on."""
        return self.model_copy(update={"lowered": (*self.lowered, (step, factor))})

    def skipped_before(self, step: int) -> list[tuple[int, int]]:
        """The skipped ranges that lie before the batch of `step`."""
        return [run for run in self.skipped if run[0] < self.batch(step)]


def report_of_steps(
    report: Callable[[int], list[dict[str, Any]]],
    batch_schedule: BatchSchedule,
    steps: int,
    samples: Callable[[int], int],
) -> list[dict[str, Any]]:
    """A loader's report by source for `steps` steps, without skipped samples. `report` takes a number of samples, and
    `samples` gives the number of samples in the first N batches."""
    rows = report(samples(batch_schedule.batch(steps)))
    for first, last in batch_schedule.skipped_before(steps):
        before, after = report(samples(first - 1)), report(samples(last))
        for row, begun, ended in zip(rows, before, after, strict=True):
            for counted in row.keys() & {"served", "padding"}:
                row[counted] -= ended[counted] - begun[counted]
            row["epochs"] = round(row["served"] / row["windows"], 4) if row["windows"] else 0.0
    return rows


def _runs(numbers: set[int]) -> tuple[tuple[int, int], ...]:
    """Numbers as ranges without gaps: {3, 4, 9} is (3, 4), (9, 9)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
