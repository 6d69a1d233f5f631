"""The interface of an engine that samples answers, and both ways of transformers. TRL's trainer runs vLLM itself."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from storage.errors import TrainingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOGETHER = 64  # answers. llama.cpp holds at most 256 sequences
PAGE = 32  # tokens of the cache that prompts share as a whole


class Sample(NamedTuple):
    """An answer's ids, with the token that ends it, if reached, and the log-probability of each when it was drawn,
    unless that is the trainer's."""

    ids: list[int]
    log_probabilities: list[float] | None


class Engine(Protocol):
    """Samples answers by the trainer's probabilities, or by its own, which are close to them."""

    def update(self, model: Any) -> None:
        """Take the weights of a model of transformers, whose adapter counts, if it has one."""

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> list[Sample]:
        """An answer of at most `most` tokens to each prompt, drawn by the seed beside it."""


class TransformersEngine:
    """The trained model itself, by `generate`. `learned` answers are in a forward pass of the training."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, ends: Sequence[int], temperature: float, learned: int
    ) -> None:
        self.tokenizer, self.ends, self.temperature, self.learned = tokenizer, ends, temperature, learned
        self._model: Any = None

    def update(self, model: Any) -> None:
        """Take the model, not a copy."""
        self._model = model

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> list[Sample]:
        """As the interface says. Raises OutOfMemory if one answer doesn't fit."""
        from tasks.posttrain.rollouts.sampling import sample

        given = self._model, self.tokenizer, prompts, seeds, self.ends, most
        return [Sample(ids, None) for ids in sample(*given, temperature=self.temperature, learned=self.learned)]


class ContinuousEngine:
    """The trained model itself, by continuous batching: an answer that ends makes room for the next, and prompts are
    read once where they are equal. A call's samples depend on its first seed and all its prompts."""

    def __init__(self, ends: Sequence[int], pad: int, temperature: float) -> None:
        self.ends, self.pad, self.temperature = list(ends), pad, temperature
        self._model: Any = None
        gc.freeze()  # transformers collects garbage at the end of each call, which takes a second over all imports

    def update(self, model: Any) -> None:
        """Take the model, not a copy."""
        self._model = model

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int) -> list[Sample]:
        """As the interface says. Raises TrainingError if transformers loses an answer, the reason of which it logs."""
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        longest = max(map(len, prompts), default=0) + most
        drawn = GenerationConfig(
            max_new_tokens=most,
            do_sample=True,
            temperature=self.temperature,
            top_k=0,
            top_p=1.0,
            eos_token_id=self.ends,
            pad_token_id=self.pad,
        )
        # Sizes are set, as transformers would take them from the memory that is free
        batching = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=TOGETHER * (longest // PAGE + 2),
            max_batch_tokens=max(512, TOGETHER),
            max_requests_per_batch=TOGETHER,
            return_logprobs=True,
            seed=next(iter(seeds), 0) % 2**31,
        )
        outputs = self._model.generate_batch(
            list(map(list, prompts)), generation_config=drawn, continuous_batching_config=batching
        )
        if len(outputs) < len(prompts) or any(output.error for output in outputs.values()):
            raise TrainingError(
                f"Continuous batching gave {len(outputs)} of {len(prompts)} answers. Its reason is in the log.",
                "Choose another rollout.engine.",
            )
        return [Sample(list(output.generated_tokens), list(output.logprobs)) for output in outputs.values()]
