"""The thread that computes: answers join and leave a batch between two of its steps.

Prompts are read one after another, a part between two steps, so that a long one delays the answers beside it by little.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING

import torch

from tasks.serve.engines.protocol import EngineRefusal
from tasks.serve.engines.transformers.answer import Answer
from tasks.serve.engines.transformers.batch import Batch, can_join

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

PART = 256  # tokens of a prompt that are read at a time


class Worker(threading.Thread):
    """Answers what it takes, at most `slots` at a time, or one at a time if the model's cache can't be joined."""

    def __init__(self, model: PreTrainedModel, slots: int) -> None:
        super().__init__(name="answers", daemon=True)
        self._batch = Batch(model)
        self._joins = can_join(model.config)
        self._slots = slots if self._joins else 1
        self._asked = threading.Condition()
        self._waiting = deque[Answer]()
        self._read: DynamicCache | None = None  # what was read of the first that waits
        self._going: list[Answer] = []  # the rows of the batch

    @property
    def load(self) -> int:
        """The number of answers that wait or go on."""
        return len(self._waiting) + len(self._going)

    def take(self, answer: Answer) -> None:
        """Answer in turn. Raises EngineRefusal for log-probabilities of a prompt that must be read whole, if it is
        long: all its logits would be there at once."""
        if answer.reports_prompt and not self._joins and len(answer.prompt) > PART:
            raise EngineRefusal(f"This model reads a prompt whole, and gives prompt_logprobs of {PART} tokens at most.")
        with self._asked:
            self._waiting.append(answer)
            self._asked.notify()

    def run(self) -> None:
        try:
            with torch.inference_mode():
                while True:
                    with self._asked:
                        self._asked.wait_for(lambda: self.load)
                    self._drop()
                    self._read_on()
                    self._step()
        finally:
            traceback.print_exc()
            os._exit(1)

    def _drop(self) -> None:
        """Leave what nobody waits for."""
        self._keep([not answer.is_closed for answer in self._going])
        with self._asked:
            if self._waiting and self._waiting[0].is_closed:
                self._read = None
            open_ones = [answer for answer in self._waiting if not answer.is_closed]
            self._waiting.clear()
            self._waiting.extend(open_ones)

    def _read_on(self) -> None:
        """Read a part of the first prompt that waits. Once it is read, its answer joins the batch."""
        if not self._waiting or len(self._going) == self._slots:
            return
        answer = self._waiting[0]
        done = 0 if self._read is None else self._batch.length(self._read)
        part = answer.prompt[done : done + PART] if self._joins else answer.prompt
        logits_KV, self._read = self._batch.read(part, self._read, len(part) if answer.reports_prompt else 1)
        if answer.reports_prompt:
            answer.report(done, logits_KV)
        if done + len(part) < len(answer.prompt):
            return
        cache, self._read = self._read, None
        if answer.goes_on(logits_KV[-1]):
            self._batch.join(cache, len(answer.prompt))
            self._going.append(answer)
        with self._asked:
            self._waiting.popleft()

    def _step(self) -> None:
        """A token for each answer of the batch."""
        if self._going:
            logits_BV = self._batch.step([answer.last for answer in self._going])
            self._keep([answer.goes_on(row_V) for answer, row_V in zip(self._going, logits_BV, strict=True)])

    def _keep(self, kept: list[bool]) -> None:
        if not all(kept):
            self._batch.keep(kept)
            self._going = [answer for answer, stays in zip(self._going, kept, strict=True) if stays]
