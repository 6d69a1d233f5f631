"""Detects divergence: a loss or gradient that is NaN or infinite, or a loss that rises and stays up.

A spike is a loss above the trailing mean by a number of trailing standard deviations. A deviation counts as at least
0.05 nats: the losses of a model that has memorised its data hardly vary, so that a harmless batch would lie many
deviations away. One odd batch is not a spike: SUSTAINED steps in a row must exceed the limit, and meanwhile they don't
enter the mean. At the start, and where the data changes (another mixture, longer rows), trailing losses predict
nothing, so detection begins after a full window of steps.

False positives of the default, 6 deviations over 50 steps, for losses around a level and over 100,000 drawn windows:
once in 1e15 steps with normal noise, once in 1e8 with the heavy tail of Student's t with 3 degrees of freedom. A
falling loss is safer still, since its trailing mean lies above it. In runs of small models, of 400 to 2,000 steps, no
single loss exceeded the mean by more than 4.8 deviations. A window of 10 steps is too short: once in 1e6.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from storage.errors import Divergence
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.healing.skipped_batches import BatchSchedule

SUSTAINED = 3  # steps in a row
SMALLEST_DEVIATION = 0.05  # nats a token
SHOWN = 8  # log rows in a diagnosis


class DivergenceMonitor:
    """Takes the log rows of a run one by one, from the first on, so that a resumed run is judged the same."""

    def __init__(self, config: PretrainConfig, batch_schedule: BatchSchedule) -> None:
        self.healing = config.healing
        self.changes = changes(config, batch_schedule)
        self.trailing: deque[float] = deque(maxlen=config.healing.spike_window)
        self.beyond: list[float] = []  # consecutive losses above the limit, fewer than SUSTAINED
        self.last: deque[Mapping[str, Any]] = deque(maxlen=SHOWN)

    @property
    def calm(self) -> bool:
        """Whether no spike is suspected. Only then is a checkpoint worth rolling back to."""
        return not self.beyond

    def see(self, row: Mapping[str, Any]) -> None:
        """Check the next row. Raises Divergence, with the rows around the spike among its facts."""
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
            self.trailing.extend((*self.beyond, loss))  # the losses above turned out to be harmless: they count too
            self.beyond.clear()
            return
        self.beyond.append(loss)
        if len(self.beyond) == SUSTAINED:
            first = row["step"] - SUSTAINED + 1
            shown = ", ".join(f"{value:.2f}" for value in self.beyond)
            raise self._diverged(f"Step {first}: the loss rose to {shown}, beyond {limit:.2f}.", first)

    def limit(self) -> float | None:
        """The limit of the next loss, None until the window is full."""
        if len(self.trailing) < self.healing.spike_window:
            return None
        mean = math.fsum(self.trailing) / len(self.trailing)
        variance = math.fsum((loss - mean) ** 2 for loss in self.trailing) / len(self.trailing)
        return mean + self.healing.spike_deviations * max(math.sqrt(variance), SMALLEST_DEVIATION)

    def _diverged(self, message: str, step: int) -> Divergence:
        return Divergence(
            message,
            "Lower pretrain.learning_rate (muon_learning_rate too, if set) or gradient_clip, or lengthen the warmup, "
            "and run again.",
            step=step,
            rows=[dict(row) for row in self.last],
        )


def changes(config: PretrainConfig, batch_schedule: BatchSchedule) -> set[int]:
    """The steps at which the loss may jump: the warmup ends, rows get longer, the mixture changes."""
    steps = {config.warmup_steps + 1}
    parts = [config.context_parts(step) for step in range(1, config.context_warmup_steps + 2)]
    steps |= {step for step, (before, now) in enumerate(pairwise(parts), 2) if before != now}
    for change in config.curriculum:
        # The mixture goes by the batch. Skipped batches move up, so that an earlier step trains on the first new one
        step = change.from_step
        while step > 1 and batch_schedule.batch(step - 1) >= change.from_step:
            step -= 1
        steps.add(step)
    return steps
