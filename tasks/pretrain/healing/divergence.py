"""When a run has left its course: a loss or gradient that is no number, or a loss that rose and stays up.

A spike is judged against the trailing losses: their mean, plus so many of their standard deviations, of which none
counts for less than 0.05 nats (a model that knows its data by heart has losses that hardly vary, and a harmless batch
would be many of their deviations away). One odd batch is no spike: as many steps in a row as SUSTAINED must lie
beyond, and while they are counted they don't enter the mean. Early on, and where the data changes (another mixture,
longer rows), the trailing losses say nothing of the next one: judgement begins when a window of steps has passed since.

How often is that wrong? With the default of 6 deviations over 50 steps (for losses around a level, over 100,000 drawn
windows): once in 1e15 steps with normal noise, once in 1e8 with the heavy tail of Student's t with 3 degrees of
freedom. A falling loss is safer still, since its trailing mean lies above it. In runs of small models, of 400 to 2,000
steps, no single loss lay more than 4.8 deviations above. A window of 10 steps is not enough: once in 1e6.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from storage.errors import Divergence
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.healing.skipped_batches import Course

SUSTAINED = 3  # steps in a row
SMALLEST_DEVIATION = 0.05  # nats a token
SHOWN = 8  # rows that a diagnosis quotes


class Watch:
    """Sees the rows of a run one by one, from its first on; the same rows give the same judgement, resumed or not."""

    def __init__(self, config: PretrainConfig, course: Course) -> None:
        self.healing = config.healing
        self.changes = changes(config, course)
        self.trailing: deque[float] = deque(maxlen=config.healing.spike_window)
        self.beyond: list[float] = []  # losses in a row that lie beyond, not yet enough of them
        self.last: deque[Mapping[str, Any]] = deque(maxlen=SHOWN)

    @property
    def calm(self) -> bool:
        """Whether nothing is suspected now: only then is a checkpoint a good place to go back to."""
        return not self.beyond

    def see(self, row: Mapping[str, Any]) -> None:
        """Judge the next row. Raises Divergence, with the rows before and after the rise as its facts."""
        self.last.append(row)
        for name, value in row.items():
            if not math.isfinite(value):
                raise self._diverged(f"Step {row['step']}: {name} is {value}.", row["step"])
        if not self.healing.enabled:
            return
        if row["step"] in self.changes:
            self.trailing.clear()
            self.beyond.clear()
        loss, limit = row["loss"], self.limit()
        if limit is None or loss <= limit:
            self.trailing.extend((*self.beyond, loss))
            self.beyond.clear()
            return
        self.beyond.append(loss)
        if len(self.beyond) == SUSTAINED:
            first = row["step"] - SUSTAINED + 1
            shown = ", ".join(f"{value:.2f}" for value in self.beyond)
            raise self._diverged(f"Step {first}: the loss rose to {shown}, beyond {limit:.2f}.", first)

    def limit(self) -> float | None:
        """The loss that the next one may not exceed; None while there is nothing to judge by."""
        if len(self.trailing) < self.healing.spike_window:
            return None
        mean = math.fsum(self.trailing) / len(self.trailing)
        variance = math.fsum((loss - mean) ** 2 for loss in self.trailing) / len(self.trailing)
        return mean + self.healing.spike_deviations * max(math.sqrt(variance), SMALLEST_DEVIATION)

    def _diverged(self, message: str, step: int) -> Divergence:
        return Divergence(
            message,
            "Lower pretrain.learning_rate or gradient_clip, or lengthen the warmup, and run again.",
            step=step,
            rows=[dict(row) for row in self.last],
        )


def changes(config: PretrainConfig, course: Course) -> set[int]:
    """Steps whose losses the ones before don't foretell: the warmup ends, rows get longer, the mixture changes."""
    found = {config.warmup_steps + 1}
    parts = [config.context_parts(step) for step in range(1, config.context_warmup_steps + 2)]
    found |= {step for step, (before, now) in enumerate(pairwise(parts), 2) if before != now}
    for change in config.curriculum:
        step = change.from_step
        while step > 1 and course.batch(step - 1) >= change.from_step:
            step -= 1
        found.add(step)
    return found
