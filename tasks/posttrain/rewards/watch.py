"""Ends a run whose policy games its rewards, and says how.

Such a policy moves far from its reference, or earns more on training prompts and less on held-out ones. The history is
the trainer's, which checkpoints contain, so a resumed run is watched like one that was never killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from storage.errors import ConfigError, RewardHacking, SourceError
from tasks.posttrain.rewards.config import Reward
from tasks.training.adapters.config import AnyAdapter, LoraConfig

RECENT = 10  # steps over which training rewards are averaged
ENOUGH = 100  # answers over which a share of failures is judged, at least


class Watched(Protocol):
    """A config with a watch over the held-out reward."""

    @property
    def max_drop(self) -> float | None:
        """The fall beyond which the run ends, or None for none."""

    @property
    def validation_share(self) -> float:
        """The share of prompts that are held out."""


def check_watch(config: Watched) -> None:
    """Raises ValueError for a watch over held-out prompts in a profile that holds out none."""
    if config.max_drop is not None and not config.validation_share:
        raise ValueError("max_drop needs held-out prompts: raise validation_share, or set max_drop to null")


def check_dropout(adapter: AnyAdapter | None) -> None:
    """Raises ValueError for an adapter with dropout."""
    if isinstance(adapter, LoraConfig) and adapter.dropout:
        raise ValueError("adapter.dropout would differ between sampling and learning: set it to 0")


def check_watched(config: Watched, train: int, held_out: int, section: str) -> None:
    """Raises ConfigError if the prompts are so few that none is held out."""
    if config.max_drop is not None and not held_out:
        raise ConfigError(
            f"{section}.max_drop watches the reward of held-out prompts, but none of {train:,} is held out.",
            f"Raise {section}.validation_share, add prompts, or set {section}.max_drop to null.",
        )


def check_kl(history: Sequence[Mapping[str, Any]], max_kl: float | None, section: str) -> None:
    """Raises RewardHacking if the KL divergence of the last step is over the budget. `history` has a row with `step`,
    `kl` and `reward` for each step, and one with `step` and `eval_reward` for each validation."""
    steps = [row for row in history if "kl" in row]
    if max_kl is None or not steps or steps[-1]["kl"] <= max_kl:
        return
    last = steps[-1]
    raise RewardHacking(
        f"Step {last['step']}: the KL divergence from the reference is {last['kl']:.3f} nats a token, more than "
        f"{section}.max_kl, {max_kl:g}. {_courses(history)}",
        f"Raise {section}.beta or lower {section}.learning_rate. If answers are still good, raise {section}.max_kl.",
    )


def check_held_out(history: Sequence[Mapping[str, Any]], max_drop: float | None, section: str) -> None:
    """Raises RewardHacking if the held-out reward fell by more than `max_drop` below its best."""
    validated = [row for row in history if "eval_reward" in row]
    if max_drop is None or not validated:
        return
    best, last = max(validated, key=lambda row: row["eval_reward"]), validated[-1]
    if best["eval_reward"] - last["eval_reward"] <= max_drop:
        return
    before, now = (_training_reward(history, row["step"]) for row in (best, last))
    gamed = before is not None and now is not None and now > before
    reason = (
        "while that of training rose: the policy learns what its training prompts reward, and nothing else"
        if gamed
        else "and that of training fell with it: the policy is coming apart"
    )
    raise RewardHacking(
        f"Step {last['step']}: the held-out reward is {last['eval_reward']:.3f}, {section}.max_drop or more below the "
        f"{best['eval_reward']:.3f} of step {best['step']}, {reason}. {_courses(history)}",
        f"Add prompts or choose others, or lower {section}.epochs, so that the run ends earlier."
        if gamed
        else f"Lower {section}.learning_rate, or raise {section}.beta.",
    )


def check_failures(history: Sequence[Mapping[str, Any]], rewards: Sequence[Reward], section: str) -> None:
    """Raises SourceError if a reward failed for more than its share of all answers so far. `history` has the numbers of
    answers asked about and failed, for each step and validation."""
    for reward in rewards:
        most = getattr(reward, "max_failed_share", None)
        if most is None:
            continue
        asked, failed = (
            int(sum(row.get(f"{at}rewards/{reward.title}/{what}", 0) for row in history for at in ("", "eval_")))
            for what in ("asked", "failed")
        )
        if failed > most * max(asked, ENOUGH):
            raise SourceError(
                f"The reward {reward.title} failed for {failed:,} of {asked:,} answers, more than {most:g}, its "
                "max_failed_share.",
                f"Correct it, or raise max_failed_share in {section}.rewards. The log has the first failures.",
            )


def _courses(history: Sequence[Mapping[str, Any]]) -> str:
    """Both rewards, from first to last, in a sentence."""
    trained = [row["step"] for row in history if "reward" in row]
    held_out = [row["eval_reward"] for row in history if "eval_reward" in row]
    courses = []
    if trained:
        first = _training_reward(history, trained[0] + RECENT - 1)
        courses.append(f"training reward from {first:.3f} to {_training_reward(history, trained[-1]):.3f}")
    if held_out:
        courses.append(f"held-out reward from {held_out[0]:.3f} to {held_out[-1]:.3f}")
    return f"So far: {', '.join(courses)}." if courses else ""


def _training_reward(history: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """The mean training reward of the RECENT steps up to `step`, or None before the first."""
    rewards = [row["reward"] for row in history if "reward" in row and row["step"] <= step][-RECENT:]
    return sum(rewards) / len(rewards) if rewards else None
