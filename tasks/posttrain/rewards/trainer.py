"""TRL's GRPOTrainer, with watched rewards, and samples that a resumed run draws again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trl import GRPOTrainer

from models.conversation import Messages, render
from tasks.posttrain.rewards.config import Reward
from tasks.posttrain.rewards.held_out import HeldOutRewards, Watched, seeded
from tasks.posttrain.rewards.score import Answer, Scorer


class WatchedGrpo(HeldOutRewards, GRPOTrainer):
    """Runs in one process and samples a whole global batch of prompts at each step: on-policy, so no ratio is
    clipped."""

    section = "grpo"

    def __init__(self, watched: Watched, scorer: Scorer, **settings: Any) -> None:
        self.watched, self.scorer = watched, scorer
        super().__init__(reward_funcs=[_reward_function(scorer, reward) for reward in scorer.rewards], **settings)

    def _tokenize_prompts(self, prompts: list[Messages]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Render prompts as all stages do: TRL would parse control tokens in a prompt's text."""
        ids = [render(self.processing_class, prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
        return ids, None, {}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, with a seed for each step: it samples at the first micro-batch of a step."""
        with seeded(self.args.seed, self.state.global_step):
            return super()._prepare_inputs(generation_batch)


def _reward_function(scorer: Scorer, reward: Reward) -> Callable[..., list[float]]:
    def function(
        prompts: Sequence[Messages],
        completions: Sequence[Messages],
        completion_ids: Sequence[Sequence[int]],
        reference: Sequence[str],
        **_: Any,
    ) -> list[float]:
        answers = [
            Answer(prompt, completion[0]["content"], len(ids), expected)
            for prompt, completion, ids, expected in zip(prompts, completions, completion_ids, reference, strict=True)
        ]
        return scorer.unweighted(reward, answers)

    function.__name__ = reward.kind  # TRL names its measures after it
    return function
