"""The rewards of a profile over a batch of answers: each by itself, and their weighted sum.

A reward may have nothing to say of an answer (None), whose sum then has the others only. It may also fail: an answer
for which a reward failed gets none at all, because a sum that lacks a part can't be compared with whole ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from models.conversation import Messages
from storage.errors import ConfigError, EmptyOutput
from tasks.posttrain.rewards import verify
from tasks.posttrain.rewards.config import (
    EnvironmentReward,
    ExactReward,
    FormatReward,
    LengthReward,
    ModelReward,
    RegexReward,
    Reward,
)

if TYPE_CHECKING:
    from tasks.posttrain.reward_model.model import Judge

FEWEST = 2  # rewarded answers of a batch: one can't be compared


class Answer(NamedTuple):
    """An answer to a prompt: its text without special tokens, its number of tokens, the reference, the fields of its
    row, and what an environment gave for the conversation that it ends."""

    prompt: Messages
    text: str
    tokens: int
    reference: str
    fields: Mapping[str, Any] = {}
    earned: Value = None


class Failed(NamedTuple):
    """Why a reward failed for an answer."""

    why: str


Value = float | None | Failed
Rewarder = Callable[[Sequence[Answer]], Sequence[Value]]


def answer_to(row: Mapping[str, Any], text: str, tokens: int, earned: Value = None) -> Answer:
    """An answer to the prompt of a rendered row."""
    return Answer(row["prompt"], text, tokens, row["reference"], json.loads(row.get("fields", "{}")), earned)


@dataclass(frozen=True)
class Scores:
    """The rewards of a batch, by name: None where an answer has none. `failed` counts failures by name, `broken` the
    answers with one."""

    rewards: Sequence[Reward]
    parts: Mapping[str, Sequence[float | None]]
    failed: Mapping[str, int]
    broken: int

    @property
    def sums(self) -> list[float | None]:
        """The weighted sum of each answer, None for one without any reward."""
        weights = [reward.weight for reward in self.rewards]
        return [_sum(weights, values) for values in zip(*self.parts.values(), strict=True)]

    def counts(self) -> dict[str, float]:
        """How many answers were asked about, failed, and got no reward though nothing failed, for rewards that may."""
        measures: dict[str, float] = {}
        for reward in self.rewards:
            if reward.partial:
                values, prefix = self.parts[reward.title], f"rewards/{reward.title}"
                measures[f"{prefix}/asked"] = len(values)
                measures[f"{prefix}/failed"] = self.failed[reward.title]
                measures[f"{prefix}/none"] = values.count(None) - self.broken
        return measures

    def means(self) -> dict[str, float]:
        """The mean of each reward over the answers that have it, and that of the weighted sum as `reward`."""
        rewarded = sum(value is not None for value in self.sums)
        means: dict[str, float] = {}
        total = 0.0
        for reward in self.rewards:
            given = [value for value in self.parts[reward.title] if value is not None]
            total += reward.weight * (sum(given) / rewarded)
            if given:
                means[reward.title] = sum(given) / len(given)
        return {"reward": total, **means}


def _sum(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    given = [weight * value for weight, value in zip(weights, values, strict=True) if value is not None]
    return sum(given) if given else None


@dataclass
class Scorer:
    """The rewards of answers. `others` computes rewards that need a process, a sandbox or an endpoint, by name.
    `on_failure` gets the name of a reward, an answer and why the reward failed for it."""

    rewards: Sequence[Reward]
    judge: Judge | None = None
    others: Mapping[str, Rewarder] = field(default_factory=dict)
    on_failure: Callable[[str, Answer, str], None] = lambda name, answer, why: None
    facts: Callable[[], dict[str, float]] = dict

    def score(self, answers: Sequence[Answer]) -> Scores:
        """All rewards of answers. Raises EmptyOutput if fewer than two of several answers have one."""
        found = {reward.title: self.unweighted(reward, answers) for reward in self.rewards}
        broken = {place for values in found.values() for place, one in enumerate(values) if isinstance(one, Failed)}
        parts = {
            title: [None if place in broken or isinstance(one, Failed) else one for place, one in enumerate(values)]
            for title, values in found.items()
        }
        failures = [
            (title, answer, one.why)
            for title, values in found.items()
            for answer, one in zip(answers, values, strict=True)
            if isinstance(one, Failed)
        ]
        for failure in failures:
            self.on_failure(*failure)
        failed = Counter(title for title, _, _ in failures)
        scores = Scores(self.rewards, parts, failed, len(broken))
        rewarded = sum(value is not None for value in scores.sums)
        if rewarded < min(FEWEST, len(answers)):
            why = f" {failures[0][0]} failed first: {failures[0][2]}." if failures else ""
            raise EmptyOutput(
                f"{rewarded:,} of {len(answers):,} answers of a step have a reward, and {FEWEST} must.{why}",
                "Correct the rewards that fail or return None, or take more prompts at a time (global_batch of a "
                "training).",
            )
        return scores

    def unweighted(self, reward: Reward, answers: Sequence[Answer]) -> Sequence[Value]:
        """One reward of each answer, before its weight."""
        if isinstance(reward, ExactReward):
            return [verify.exact(reward, answer.text, answer.reference) for answer in answers]
        if isinstance(reward, RegexReward):
            return [verify.regex(reward, answer.text, answer.reference) for answer in answers]
        if isinstance(reward, FormatReward):
            return [verify.format_(reward, answer.text) for answer in answers]
        if isinstance(reward, LengthReward):
            return [verify.length(reward, answer.tokens) for answer in answers]
        if isinstance(reward, EnvironmentReward):
            return [answer.earned for answer in answers]
        if not isinstance(reward, ModelReward):
            return self.others[reward.title](answers)
        assert self.judge is not None, "the profile is checked for one"
        return self.judge.rewards(
            [[*answer.prompt, {"role": "assistant", "content": answer.text}] for answer in answers]
        )

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
