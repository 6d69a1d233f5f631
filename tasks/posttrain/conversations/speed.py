"""Measures the speed of a training: tokens a second, and the share of padding in its batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from tasks.posttrain.conversations.layout import Layout, tokens_and_places

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class Speed(TrainerCallback):
    """Times the steps of one run, without validation and checkpoints. `lengths` and `supervised` are the tokens and
    supervised tokens of conversations in the order of training."""

    def __init__(self, layout: Layout, lengths: Sequence[int], supervised: Sequence[int]) -> None:
        self.layout, self.lengths, self.supervised = layout, lengths, supervised
        self.seconds = 0.0
        self._begun = self._ended = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Note the first step, which may follow a checkpoint."""
        self._begun = self._ended = state.global_step

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock: the step's micro-batches are loaded."""
        self._since = time.perf_counter()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        """Stop the clock: the step's loss is known, so the GPU has finished."""
        if "loss" in logs:
            self.seconds += time.perf_counter() - self._since
            self._ended = state.global_step

    def facts(self) -> dict[str, float]:
        """The facts for the manifest."""
        batches = self.layout.of_steps(self._begun, self._ended)
        tokens, places = tokens_and_places(batches, self.lengths)
        learned, _ = tokens_and_places(batches, self.supervised)
        seconds = max(self.seconds, 1e-9)
        return {
            "tokens": tokens,
            "rows": sum(map(len, batches)),
            "tokens_per_second": round(tokens / seconds, 1),
            "supervised_tokens_per_second": round(learned / seconds, 1),
            "padding_share": round(1 - tokens / max(places, 1), 6),
        }
