"""The rewards of a profile over a batch of answers: each kind by itself, and their weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from models.conversation import Messages
from storage.errors import ConfigError
from tasks.posttrain.rewards import verify
from tasks.posttrain.rewards.config import ExactReward, FormatReward, LengthReward, RegexReward, Reward

if TYPE_CHECKING:
    from tasks.posttrain.reward_model.model import Judge


class Answer(NamedTuple):
    """An answer to a prompt: its text without special tokens, its number of tokens, and the reference."""

    prompt: Messages
    text: str
    tokens: int
    reference: str


class Scorer:
    """The rewards of answers. Raises ConfigError for a reward that no answer could earn."""

    def __init__(self, rewards: Sequence[Reward], judge: Judge | None = None) -> None:
        self.rewards = rewards
        self.judge = judge

    def unweighted(self, reward: Reward, answers: Sequence[Answer]) -> list[float]:
        """One reward of each answer, before its weight."""
        if isinstance(reward, ExactReward):
            return [verify.exact(reward, answer.text, answer.reference) for answer in answers]
        if isinstance(reward, RegexReward):
            return [verify.regex(reward, answer.text, answer.reference) for answer in answers]
        if isinstance(reward, FormatReward):
            return [verify.format_(reward, answer.text) for answer in answers]
        if isinstance(reward, LengthReward):
            return [verify.length(reward, answer.tokens) for answer in answers]
        assert self.judge is not None, "the profile is checked for one"
        return self.judge.rewards(
            [[*answer.prompt, {"role": "assistant", "content": answer.text}] for answer in answers]
        )

    def sums(self, answers: Sequence[Answer]) -> list[float]:
        """The weighted sum of each answer."""
        by_reward = [[reward.weight * value for value in self.unweighted(reward, answers)] for reward in self.rewards]
        return [sum(values) for values in zip(*by_reward, strict=True)]

    def means(self, answers: Sequence[Answer]) -> dict[str, float]:
        """The mean reward of each kind, and that of the weighted sum as `reward`."""
        by_kind: dict[str, list[float]] = {reward.kind: self.unweighted(reward, answers) for reward in self.rewards}
        means = {kind: sum(values) / len(values) for kind, values in by_kind.items()}
        return {"reward": sum(reward.weight * means[reward.kind] for reward in self.rewards), **means}

    def check_references(self, references: Sequence[str], section: str) -> None:
        """Raises ConfigError for a pattern that matches none of the references, so that no answer would be right."""
        for number, reward in enumerate(self.rewards):
            if isinstance(reward, RegexReward):
                matches = sum(verify.has_reference(reward, reference) for reference in references)
                if not matches:
                    raise ConfigError(
                        f"{section}.rewards.{number}.pattern {reward.pattern!r} matches none of "
                        f"{len(references):,} references, so no answer would be right.",
                        "Correct the pattern: its groups in the reference are compared with those in the answer.",
                    )
