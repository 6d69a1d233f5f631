"""Held-out rewards along a training by rewards, and the watch over them, for every trainer that samples answers."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import Trainer

from models.conversation import answer_text
from models.runtimes.greedy import greedy
from tasks.posttrain.rewards.score import Answer, Scorer
from tasks.posttrain.rewards.watch import check_held_out, check_kl


class Watched(Protocol):
    """The settings that the watch needs of a method's config."""

    @property
    def max_new_tokens(self) -> int:
        """Tokens of an answer, after which it is cut."""

    @property
    def max_kl(self) -> float | None:
        """The KL budget, in nats a token."""

    @property
    def max_drop(self) -> float | None:
        """The largest fall of the held-out reward below its best."""


class HeldOutRewards(Trainer):
    """Mixed into a trainer, before it: evaluation is the mean reward of greedy answers to all held-out prompts, always
    the same prompts. Raises RewardHacking as watch.py says."""

    section: str  # of the profile
    watched: Watched
    scorer: Scorer
    eos_token_ids: list[int]

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Answer, reward, tell the callbacks, and watch."""
        rows: list[dict[str, Any]] = list(self.eval_dataset)
        tokenizer, model = self.processing_class, self.accelerator.unwrap_model(self.model)
        prompts = [row["prompt"] for row in rows]
        ids = greedy(model, tokenizer, prompts, self.eos_token_ids, self.watched.max_new_tokens)
        texts = [answer_text(tokenizer, answer, self.eos_token_ids) for answer in ids]
        answers = [
            Answer(row["prompt"], text, len(tokens), row["reference"])
            for row, text, tokens in zip(rows, texts, ids, strict=True)
        ]
        means = self.scorer.means(answers)
        metrics = {"eval_reward": means.pop("reward")}
        metrics |= {f"eval_rewards/{kind}/mean": value for kind, value in means.items()}
        metrics["eval_completions/mean_length"] = sum(map(len, ids)) / len(ids)
        self.state.log_history.append({"step": self.state.global_step, "eval_reward": metrics["eval_reward"]})
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        check_held_out(self.state.log_history, self.watched.max_drop, self.section)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The trainer's, after which the KL divergence of the step is known."""
        super().log(logs, start_time)
        check_kl(self.state.log_history, self.watched.max_kl, self.section)
