"""TRL's GRPOTrainer, with watched rewards, and samples that a resumed run draws again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.utils import gather
from torch import Tensor
from trl import GRPOTrainer

from models.conversation import Messages, render
from tasks.posttrain.rewards.held_out import HeldOutRewards, Watched, seeded
from tasks.posttrain.rewards.score import Scorer, answer_to


class WatchedGrpo(HeldOutRewards, GRPOTrainer):
    """Runs in one process and samples a whole global batch of prompts at each step: on-policy, so no ratio is
    clipped."""

    section = "grpo"

    def __init__(self, watched: Watched, scorer: Scorer, **settings: Any) -> None:
        self.watched, self.scorer = watched, scorer
        super().__init__(reward_funcs=[_named(reward.title) for reward in scorer.rewards], **settings)

    def _tokenize_prompts(self, prompts: list[Messages]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Render prompts as all stages do: TRL would parse control tokens in a prompt's text."""
        ids = [render(self.processing_class, prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
        return ids, None, {}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, with a seed for each step: it samples at the first micro-batch of a step."""
        with seeded(self.args.seed, self.state.global_step):
            return super()._prepare_inputs(generation_batch)

    def _calculate_rewards(
        self,
        inputs: Sequence[dict[str, Any]],
        prompts: Sequence[Messages],
        completions: Sequence[Messages],
        completion_ids_list: Sequence[Sequence[int]],
    ) -> Tensor:
        """The rewards of all answers, NaN for one that an answer doesn't have: TRL leaves these out of its means. An
        answer without any has no part in the mean of its group, and the advantage 0."""
        texts = (completion[0]["content"] for completion in completions)
        rows = zip(inputs, texts, completion_ids_list, strict=True)
        scores = self.scorer.score([answer_to(row, text, len(ids)) for row, text, ids in rows])
        measures = self._metrics["train" if self.model.training else "eval"]
        for name, count in scores.counts().items():
            measures[name].append(count)
        columns = [[math.nan if value is None else value for value in part] for part in scores.parts.values()]
        values = torch.tensor(columns, dtype=torch.float32, device=self.accelerator.device)
        gathered: Tensor = gather(values.T.contiguous())
        return gathered

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, without the mean of a reward that no answer of the step has."""
        for measures in self._metrics.values():
            for name in [name for name, values in measures.items() if name.startswith("rewards/")]:
                if all(map(math.isnan, measures[name])):
                    del measures[name]
        super().log(logs, start_time)


def _named(title: str) -> Callable[..., list[float]]:
    """A function for TRL to name its measures after. `_calculate_rewards` takes its place."""

    def function(**_: Any) -> list[float]:
        raise NotImplementedError(title)

    function.__name__ = title
    return function
