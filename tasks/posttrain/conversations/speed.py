"""How fast a training went: tokens a second, and how many places of its batches were padding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from tasks.posttrain.conversations.layout import Layout, tokens_and_places

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class Speed(TrainerCallback):
    """Measures the steps of one run, without validation and checkpoints. `lengths` and `supervised` are the tokens of
    conversations in the order of training."""

    def __init__(self, layout: Layout, lengths: Sequence[int], supervised: Sequence[int]) -> None:
        self.layout, self.lengths, self.supervised = layout, lengths, supervised
        self.seconds = 0.0
        self._begun = self._ended = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The first step may be one after a checkpoint."""
        self._begun = self._ended = state.global_step

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A step's micro-batches are there."""
        self._since = time.perf_counter()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        """A step's loss is known, for which a GPU has been waited for."""
        if "loss" in logs:
            self.seconds += time.perf_counter() - self._since
            self._ended = state.global_step

    def facts(self) -> dict[str, float]:
        """What there is to say in the manifest."""
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
