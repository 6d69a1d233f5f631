"""Seeded samples, and watched rewards on held-out prompts, for all trainers that sample answers.

Random numbers depend on the run's seed and the step, never on the state that a process happens to be in. So a run that
was killed draws the same ones again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import Trainer

from models.conversation import answer_text, render
from models.runtimes.greedy import greedy
from tasks.posttrain.engines import whole_weights
from tasks.posttrain.rewards.ranks import gathered, on_first, share_of
from tasks.posttrain.rewards.score import Answer, Scorer, answer_to
from tasks.posttrain.rewards.watch import check_failures, check_held_out, check_kl


@contextmanager
def seeded(seed: int, step: int) -> Iterator[None]:
    """Makes torch's random numbers in the block depend only on the seed and the step. Those outside are unaffected."""
    digest = hashlib.sha256(f"answers {seed} {step}".encode()).digest()
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(digest[:8]) >> 1)
        yield


class Watched(Protocol):
    """The settings that the watch needs of a method's config."""

    @property
    def max_new_tokens(self) -> int:
        """Maximum tokens of an answer, which is cut there."""

    @property
    def max_kl(self) -> float | None:
        """The KL budget in nats a token, or None for no limit."""

    @property
    def max_drop(self) -> float | None:
        """The largest fall of the held-out reward below its best, or None for no limit."""


class Reply(NamedTuple):
    """The ids that follow a prompt, what is rewarded of them, and the conversation that they are, if an environment
    replied too."""

    ids: list[int]
    answer: Answer
    episode: Any = None


class HeldOutRewards(Trainer):
    """Mixed into a trainer, before it: evaluates by the mean reward of greedy answers to all held-out prompts, which
    are always the same. Raises RewardHacking as watch.py says."""

    section: str  # of the profile, for errors
    watched: Watched
    scorer: Scorer
    eos_token_ids: list[int]

    def train(self, *args: Any, **settings: Any) -> Any:
        """Train as the trainer does. Afterwards its rows are batches, with the reference as the answer."""
        result = super().train(*args, **settings)
        self.data_collator = self._collate
        return result

    def _collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        (row,) = rows
        messages = [*row["prompt"], {"role": "assistant", "content": row["reference"]}]
        ids = torch.tensor([render(self.processing_class, messages)["input_ids"]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Answer the held-out prompts, reward the answers, call the callbacks, and check the held-out reward."""
        rows: list[dict[str, Any]] = list(self.eval_dataset)
        with whole_weights(self.model):
            replies = gathered(self._replies(rows[share_of(len(rows))]))
        ids, given = [reply.ids for reply in replies], [reply.answer for reply in replies]
        further = self._measured(replies)
        scores = on_first(lambda: self.scorer.score(given))
        means, counts = scores.means(), {f"eval_{name}": count for name, count in scores.counts().items()}
        metrics = {"eval_reward": means.pop("reward"), **counts}
        metrics |= {f"eval_rewards/{kind}/mean": value for kind, value in means.items()}
        metrics |= {f"eval_{name}": value for name, value in further.items()}
        metrics["eval_completions/mean_length"] = sum(answer.tokens for answer in given) / len(ids)
        cut = sum(tokens[-1] not in self.eos_token_ids for tokens in ids)
        metrics["eval_completions/clipped_ratio"] = cut / len(ids)
        self.state.log_history.append({"step": self.state.global_step, "eval_reward": metrics["eval_reward"], **counts})
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        check_failures(self.state.log_history, self.scorer.rewards, self.section)
        check_held_out(self.state.log_history, self.watched.max_drop, self.section)
        return metrics

    def _replies(self, rows: Sequence[dict[str, Any]]) -> list[Reply]:
        """Greedy answers to rows, by this process."""
        tokenizer, model = self.processing_class, self.accelerator.unwrap_model(self.model)
        prompts = [row["prompt"] for row in rows]
        ids = greedy(model, tokenizer, prompts, self.eos_token_ids, self.watched.max_new_tokens)
        texts = [answer_text(tokenizer, answer, self.eos_token_ids) for answer in ids]
        return [
            Reply(answer, answer_to(row, text, len(answer))) for row, text, answer in zip(rows, texts, ids, strict=True)
        ]

    def _measured(self, replies: Sequence[Reply]) -> dict[str, float]:
        """Further measures of the replies of all processes: a hook."""
        return {}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the trainer does, then check what is known only now: failed rewards and the KL divergence."""
        super().log(logs, start_time)
        check_failures(self.state.log_history, self.scorer.rewards, self.section)
        check_kl(self.state.log_history, self.watched.max_kl, self.section)
