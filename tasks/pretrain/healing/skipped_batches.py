"""What a healed run leaves out and lowers: the course that its steps take, a pure function of the step's number.

With nothing left out, step k learns batch k. A batch that is left out belongs to no step: the later ones move up. The
schedule goes by the step, so that a run has its length whatever was left out. So a healed run is as repeatable and
resumable as any other: the same course from the first step on gives the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Course(BaseModel):
    """Batches left out, and steps from which the learning rate is lower. Batches and steps count from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skipped: tuple[tuple[int, int], ...] = Field((), description="first and last batch of each run that is left out")
    lowered: tuple[tuple[int, float], ...] = Field((), description="from which step on, and by which factor")

    @model_validator(mode="after")
    def _in_order(self) -> Course:
        if any(last < first for first, last in self.skipped):
            raise ValueError("a run of batches ends before it begins")
        if any(later <= last + 1 for (_, last), (later, _) in pairwise(self.skipped)):
            raise ValueError("runs of batches must be in order, with a gap between them")
        return self

    def batch(self, step: int) -> int:
        """The number of the batch that a step learns: the step-th of those that are not left out."""
        number = step
        for first, last in self.skipped:
            if number < first:
                break
            number += last - first + 1
        return number

    def rate_scale(self, step: int) -> float:
        """What the scheduled learning rate of a step is multiplied by."""
        scale = 1.0
        for first, factor in self.lowered:
            if step >= first:
                scale *= factor
        return scale

    def without(self, first: int, last: int) -> Course:
        """The course that also leaves out what steps `first` to `last` learn on this one; earlier steps stay alike."""
        left_out = {number for begin, end in self.skipped for number in range(begin, end + 1)}
        left_out |= {self.batch(step) for step in range(first, last + 1)}
        return self.model_copy(update={"skipped": _runs(left_out)})

    def slower(self, step: int, factor: float) -> Course:
        """The course with a learning rate lower by `factor` from `step` on."""
        return self.model_copy(update={"lowered": (*self.lowered, (step, factor))})

    def skipped_before(self, step: int) -> list[tuple[int, int]]:
        """The runs of batches that the steps up to `step` passed over."""
        return [run for run in self.skipped if run[0] < self.batch(step)]


def learned(
    report: Callable[[int], list[dict[str, Any]]], course: Course, steps: int, samples: Callable[[int], int]
) -> list[dict[str, Any]]:
    """A loader's report by source, which is of the first so many samples, without those that the course leaves out.
    `samples` tells how many the first so many batches hold."""
    rows = report(samples(course.batch(steps)))
    for first, last in course.skipped_before(steps):
        before, after = report(samples(first - 1)), report(samples(last))
        for row, begun, ended in zip(rows, before, after, strict=True):
            for counted in row.keys() & {"served", "padding"}:
                row[counted] -= ended[counted] - begun[counted]
            row["epochs"] = round(row["served"] / row["windows"], 4) if row["windows"] else 0.0
    return rows


def _runs(numbers: set[int]) -> tuple[tuple[int, int], ...]:
    """Numbers as runs without gaps: {3, 4, 9} is (3, 4), (9, 9)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
