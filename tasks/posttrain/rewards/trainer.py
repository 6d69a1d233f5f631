"""TRL's GRPOTrainer, with watched rewards, losses that divide by what is in them, and answers that a resumed run draws
again.

TRL 1.16 leaves answers that were cut out of the sum of a loss. Its losses `grpo` and `dr_grpo` still divide by all
answers. Here a loss is divided by the answers, or the tokens, that it sums over.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from trl import GRPOTrainer

from models.conversation import Messages, answer_text, render
from tasks.posttrain.rewards.config import OVERLONG, OverlongConfig
from tasks.posttrain.rewards.held_out import HeldOutRewards, Watched, seeded
from tasks.posttrain.rewards.score import Scorer, answer_to

# Measures that TRL takes per token of a micro-batch, if each token has a ratio
OF_TOKENS = ("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "cispo_clip_ratio")
ROLLOUT, STATE = "rollout.safetensors", "grpo.json"  # in a checkpoint within a batch


class Loss(NamedTuple):
    """A loss as TRL computes it.

    `of_trl` and `ratio` are its names for the mean over tokens and for what has one ratio. `clipped_around` is what a
    ratio's upper bound is counted from: TRL counts it from 1, except for cispo. `mean` is what we divide by: tokens,
    answers, or tokens of TRL turned into answers.
    """

    of_trl: str
    mean: str
    ratio: str = "token"
    clipped_around: float = 0.0


LOSSES = {
    "dapo": Loss("dapo", "tokens"),
    "grpo": Loss("grpo", "answers"),
    "dr_grpo": Loss("dr_grpo", "answers"),
    "gspo": Loss("grpo", "answers", ratio="sequence"),
    "rloo": Loss("dapo", "tokens as answers"),
    "cispo": Loss("cispo", "tokens", clipped_around=1.0),
}


class Group(NamedTuple):
    """The answers to one prompt. `rewards` has a row for each answer and a column for each reward."""

    row: Mapping[str, Any]
    prompt_ids: list[int]
    ids: list[list[int]]
    answers: list[Messages]
    rewards: Tensor


class Learned(Watched, Protocol):
    """The settings that the trainer needs of the method's config."""

    @property
    def loss(self) -> str:
        """One of LOSSES."""

    @property
    def updates(self) -> int:
        """Steps that learn from a batch of answers."""

    @property
    def overlong(self) -> OverlongConfig | None:
        """The penalty of long answers."""

    @property
    def refills(self) -> int:
        """How often groups that are alike may be replaced."""


class WatchedGrpo(HeldOutRewards, GRPOTrainer):
    """Runs in one process and samples a whole global batch of prompts at once, for one step or for several. A
    checkpoint between these also contains the answers, since the policy that sampled them is gone."""

    section = "grpo"

    def __init__(self, config: Learned, scorer: Scorer, **settings: Any) -> None:
        self.config, self.watched, self.scorer = config, config, scorer
        self._rows = settings["train_dataset"]  # all, where train_dataset will be those of the run in their order
        self._groups: list[Group] = []
        self._of_rollout: dict[str, float] = {}
        self._tokens: list[float] = []  # in the loss of each micro-batch of this step
        self._counts: Counter[str] = Counter()  # of answers that a reward was asked about, in this batch
        names = [*(reward.title for reward in scorer.rewards), *([OVERLONG] if config.overlong else [])]
        super().__init__(reward_funcs=[_named(name) for name in names], **settings)

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

    def _tokenize_prompts(self, prompts: list[Messages]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Render prompts as all stages do: TRL would parse control tokens in a prompt's text."""
        ids = [render(self.processing_class, prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
        return ids, None, {}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, with a seed for each step: it samples at the first micro-batch of a batch. The measures of the answers
        are those of each step that learns from them."""
        with seeded(self.args.seed, self.state.global_step):
            inputs = super()._prepare_inputs(generation_batch)
        for name, value in self._of_rollout.items():
            self._metrics["train"].setdefault(name, [value])
        return inputs

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's, over groups that were sampled, rewarded and refilled before. Each row of `inputs` is there once for
        each answer."""
        self._counts.clear()
        self._groups = self._sample(inputs[:: self.num_generations])
        refilled = self._refill()
        output: dict[str, Any] = super()._generate_and_score_completions(
            [dict(group.row) for group in self._groups for _ in group.ids]
        )
        given = torch.cat([~group.rewards.isnan().all(1) for group in self._groups])
        output["completion_mask"] = output["completion_mask"] * given.unsqueeze(1)
        output["num_items_in_batch"] = output["completion_mask"].sum()
        output["answers_in_loss"] = output["completion_mask"].any(1).sum()
        if self.config.loss == "rloo":
            scored = torch.stack([(~group.rewards.isnan().all(1)).sum() for group in self._groups])
            others = scored / (scored - 1).clamp(min=1)
            output["advantages"] = output["advantages"] * others.repeat_interleave(self.num_generations)
        lengths = [len(ids) for group in self._groups for ids in group.ids]
        cut = [ids[-1] not in self.eos_token_ids for group in self._groups for ids in group.ids]
        metrics = self._metrics["train"]
        metrics["completions/mean_length"] = [sum(lengths) / len(lengths)]
        metrics["completions/clipped_ratio"] = [sum(cut) / len(cut)]
        if self.config.refills:
            metrics["groups_refilled"] = [float(refilled)]
        metrics |= {name: [float(count)] for name, count in self._counts.items()}
        self._of_rollout = {name: values[-1] for name, values in metrics.items() if not math.isnan(values[-1])}
        return output

    def _sample(self, rows: Sequence[Mapping[str, Any]]) -> list[Group]:
        """A group of answers to each row's prompt, with their rewards."""
        size = self.num_generations
        repeated = [row for row in rows for _ in range(size)]
        prompts = [row["prompt"] for row in repeated]
        prompt_ids, ids, *_ = super()._generate(prompts)
        texts = [answer_text(self.processing_class, answer, self.eos_token_ids) for answer in ids]
        answers: list[Messages] = [[{"role": "assistant", "content": text}] for text in texts]
        rewards = self._rewards_of(repeated, texts, ids)
        parts = [slice(start, start + size) for start in range(0, len(repeated), size)]
        return [
            Group(row, prompt_ids[part.start], ids[part], answers[part], rewards[part])
            for row, part in zip(rows, parts, strict=True)
        ]

    def _rewards_of(
        self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], ids: Sequence[Sequence[int]]
    ) -> Tensor:
        """The rewards of answers, NaN for one that an answer doesn't have: TRL leaves these out of its means. An answer
        without any has no part in the mean of its group, nor in the loss."""
        scores = self.scorer.score([answer_to(*each) for each in zip(rows, texts, map(len, ids), strict=True)])
        self._counts.update(scores.counts())
        parts = [*scores.parts.values()]
        if self.config.overlong is not None:
            penalties = [penalty(self.config.overlong, self.watched.max_new_tokens, len(answer)) for answer in ids]
            known = [total is not None for total in scores.sums]
            parts.append([one if kept else None for one, kept in zip(penalties, known, strict=True)])
        columns = [[math.nan if value is None else value for value in part] for part in parts]
        return torch.tensor(columns, dtype=torch.float32, device=self.accelerator.device).T.contiguous()

    def _refill(self) -> int:
        """Replace groups whose answers all earn the same, as often as the config says. Returns how many were."""
        further, refilled = self._further_rows(), 0
        for _ in range(self.config.refills):
            alike = [place for place, group in enumerate(self._groups) if self._is_alike(group)]
            rows = list(islice(further, len(alike)))
            if not rows:
                break
            for place, group in zip(alike, self._sample(rows), strict=False):
                self._groups[place] = group
            refilled += len(rows)
        return refilled

    def _is_alike(self, group: Group) -> bool:
        scored = group.rewards[~group.rewards.isnan().all(1)]
        totals = (scored * self.reward_weights.to(scored.device)).nansum(1)
        return len(totals) < 2 or bool(torch.isclose(totals.std(), totals.new_zeros(())))

    def _further_rows(self) -> Iterator[Mapping[str, Any]]:
        """Rows with prompts that this step hasn't used. They depend on the seed and the step only."""
        rows, used = self._rows, {json.dumps(group.row["prompt"]) for group in self._groups}
        draws = random.Random(f"further {self.args.seed} {self.state.global_step}")
        for number in draws.sample(range(len(rows)), len(rows)):
            prompt = json.dumps(rows[number]["prompt"])
            if prompt not in used:
                used.add(prompt)
                yield rows[number]

    def _generate(self, prompts: list[Messages]) -> tuple[Any, ...]:
        """What was sampled, as TRL's returns it."""
        prompt_ids = [group.prompt_ids for group in self._groups for _ in group.ids]
        ids = [answer for group in self._groups for answer in group.ids]
        answers = [answer for group in self._groups for answer in group.answers]
        return prompt_ids, ids, None, answers, None, {}, None, []

    def _calculate_rewards(self, *_: Any) -> Tensor:
        """What was rewarded, as TRL's returns it."""
        return torch.cat([group.rewards for group in self._groups])

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """TRL's, divided by what it sums over."""
        loss: Tensor = super()._compute_loss(model, inputs)
        self._tokens.append(float(inputs["completion_mask"].sum()))
        mean, answers = LOSSES[self.config.loss].mean, inputs["answers_in_loss"].clamp(min=1)
        if mean == "tokens":
            return loss
        divided_by = self.args.generation_batch_size if mean == "answers" else inputs["num_items_in_batch"].clamp(min=1)
        return loss * (divided_by / answers)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, with means over the tokens of a step, where TRL's are over micro-batches, and without the
        mean of a reward that no answer of the step has."""
        metrics, tokens = self._metrics["train"], max(1.0, sum(self._tokens))
        for name in OF_TOKENS if LOSSES[self.config.loss].ratio == "token" else OF_TOKENS[:2]:
            if len(values := metrics.get(name, [])) == len(self._tokens) > 1:
                pairs = zip(values, self._tokens, strict=True)
                metrics[name] = [sum(value * weight for value, weight in pairs) / tokens]
        self._tokens = []
        for name in [name for name, values in metrics.items() if all(map(math.isnan, values))]:
            del metrics[name]
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.state.global_step % self.config.updates:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            (folder / STATE).write_text(json.dumps(self._of_rollout))
            tensors = {
                f"{number}.{name}": value.contiguous().clone()
                for number, batch in enumerate(self._buffered_inputs)
                for name, value in batch.items()
            }
            save_file(tensors, folder / ROLLOUT)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        micro_steps = self.args.gradient_accumulation_steps
        self._step = self.state.global_step * micro_steps
        if self.state.global_step % self.config.updates:
            self._of_rollout = json.loads((Path(checkpoint) / STATE).read_text())
            tensors = load_file(Path(checkpoint) / ROLLOUT, device=str(self.args.device))
            buffer: list[dict[str, Tensor]] = [{} for _ in range(micro_steps)]
            for name, value in tensors.items():
                number, _, key = name.partition(".")
                buffer[int(number)][key] = value
            self._buffered_inputs = buffer


def _named(title: str) -> Callable[..., list[float]]:
    """A function for TRL to name its measures after. `_calculate_rewards` takes its place."""

    def function(**_: Any) -> list[float]:
        raise NotImplementedError(title)

    function.__name__ = title
    return function


def penalty(overlong: OverlongConfig, most: int, tokens: int) -> float:
    """0 up to `start` tokens, −1 at `most`, and linear between (Yu et al. 2025, equation 13)."""
    return min(0.0, (overlong.start - tokens) / (most - overlong.start))
