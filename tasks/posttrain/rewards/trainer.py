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
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model, split_tensor_dict

from models.conversation import Messages, answer_text, render
from models.runtimes.greedy import greedy_after
from tasks.posttrain.engines import callable_beside, whole_weights
from tasks.posttrain.rewards.config import OVERLONG, OverlongConfig
from tasks.posttrain.rewards.environments.play import Episode, Player, check_broken, measures_of
from tasks.posttrain.rewards.held_out import HeldOutRewards, Reply, Watched, seeded
from tasks.posttrain.rewards.ranks import gathered, on_first, share_of
from tasks.posttrain.rewards.score import Answer, Failed, Scorer, answer_to
from tasks.posttrain.rollouts.config import GrpoRolloutConfig
from tasks.posttrain.rollouts.engine import Engine, Sample
from tasks.posttrain.rollouts.mismatch import KL, MEAN, Cost, check_mismatch, kl_of
from tasks.posttrain.rollouts.sampling import seed_of
from tasks.training.checkpoint_marker import refusal

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
    """The answers to one prompt. `rewards` has a row for each answer and a column for each reward. An engine other than
    the trainer has its own `log_probabilities` of each answer's tokens. With an environment, an answer is a
    conversation after its prompt, and `own` is 1 for each token that the model drew."""

    row: Mapping[str, Any]
    prompt_ids: list[int]
    ids: list[list[int]]
    answers: list[Messages]
    rewards: Tensor
    log_probabilities: list[list[float]] | None = None
    own: list[list[int]] | None = None


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

    @property
    def rollout(self) -> GrpoRolloutConfig:
        """What samples the answers."""


class WatchedGrpo(HeldOutRewards, GRPOTrainer):
    """Samples a whole global batch of prompts at once, for one step or for several. A checkpoint between these also
    contains the answers, since the policy that sampled them is gone.

    Each process samples and learns from its share of the prompts. All know all groups and their rewards, so that they
    agree on what is refilled and on what losses are divided by. `reference` loads the model that the divergence is
    measured from, unless an adapter is trained: then it is the model without that. Without an `engine` TRL runs vLLM.
    """

    section = "grpo"

    def __init__(
        self,
        config: Learned,
        scorer: Scorer,
        reference: Callable[[], Any],
        engine: Engine | None = None,
        player: Player | None = None,
        *,
        args: GRPOConfig,
        **settings: Any,
    ) -> None:
        self.config, self.watched, self.scorer, self.engine, self.player = config, config, scorer, engine, player
        self._of_step = -1  # the step whose weights the engine has
        self._cost = Cost(config.rollout.engine)
        self._episodes: list[Episode] = []  # of this batch, those of replaced groups too
        self._rows = settings["train_dataset"]  # all, where train_dataset will be those of the run in their order
        self._groups: list[Group] = []
        self._of_rollout: dict[str, float] = {}
        self._tokens: list[float] = []  # in the loss of each micro-batch of this step
        self._counts: Counter[str] = Counter()  # of answers that a reward was asked about, in this batch
        names = [*(reward.title for reward in scorer.rewards), *([OVERLONG] if config.overlong else [])]
        beta, args.beta = args.beta, 0.0  # else TRL loads a reference, whole, on every process
        super().__init__(reward_funcs=[_named(name) for name in names], args=args, **settings)
        self.beta = args.beta = beta
        self.use_vllm = config.rollout.corrected  # from here on TRL only asks whether to correct
        if beta and "peft_config" not in settings:
            self.ref_model = callable_beside(self, reference().eval().requires_grad_(False))
            disable_dropout_in_model(self.ref_model)
            add_fused_lm_head(self.ref_model, temperature=self.temperature)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, with a seed for each step, as it shuffles at the first micro-batch of a batch. The measures of answers
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
        self._episodes.clear()
        self._groups = self._sample(gathered(inputs[:: self.num_generations]), "")
        refilled = self._refill()
        mine = self._mine
        output: dict[str, Any] = super()._generate_and_score_completions(
            [dict(group.row) for group in mine for _ in group.ids]
        )
        given = torch.cat([~group.rewards.isnan().all(1) for group in mine])
        if self.mask_truncated_completions:  # TRL also keeps those whose last token happens to be the padding's
            ended = [ids[-1] in self.eos_token_ids for group in mine for ids in group.ids]
            given &= torch.tensor(ended, device=given.device)
        output["completion_mask"] = output["completion_mask"] * given.unsqueeze(1)
        learned = own_tokens(output)
        in_loss = torch.stack([learned.sum(), learned.any(1).sum()])
        output["num_items_in_batch"], output["answers_in_loss"] = self.accelerator.reduce(in_loss, "sum")
        if self.config.loss == "rloo":
            scored = torch.stack([(~group.rewards.isnan().all(1)).sum() for group in mine])
            others = scored / (scored - 1).clamp(min=1)
            output["advantages"] = output["advantages"] * others.repeat_interleave(self.num_generations)
        lengths = [sum(own) for group in self._groups for own in group.own or [[1] * len(ids) for ids in group.ids]]
        cut = [ids[-1] not in self.eos_token_ids for group in self._groups for ids in group.ids]
        metrics = self._metrics["train"]
        metrics["completions/mean_length"] = [sum(lengths) / len(lengths)]
        metrics["completions/clipped_ratio"] = [sum(cut) / len(cut)]
        if self.config.refills:
            metrics["groups_refilled"] = [float(refilled)]
        if self.use_vllm:
            kl = kl_of(output["old_per_token_logps"], output["sampling_per_token_logps"], learned)
            metrics[KL] = [float(self.accelerator.reduce(kl, "mean"))]
            check_mismatch(metrics[MEAN][-1], self.config.rollout, self.state.global_step + 1, self.section)
        played = measures_of(self._episodes) if self._episodes else {}
        metrics |= {name: [float(count)] for name, count in {**self._counts, **played}.items()}
        self._of_rollout = {name: values[-1] for name, values in metrics.items() if not math.isnan(values[-1])}
        return output

    @property
    def _mine(self) -> list[Group]:
        """The groups that this process learns from."""
        return self._groups[share_of(len(self._groups))]

    def _sample(self, rows: Sequence[Mapping[str, Any]], name: str) -> list[Group]:
        """A group of answers to each row's prompt, with their rewards. Answers differ by step, by `name` and by place,
        and each process samples some of them."""
        size = self.num_generations
        repeated = [row for row in rows for _ in range(size)]
        names = [f"{self.args.seed} {self.state.global_step} {name} {place}" for place in range(len(repeated))]
        here = share_of(len(repeated))
        with torch.no_grad(), whole_weights(self.model):  # once, as conversations differ in their turns
            drawn_here = self._drawn_replies(repeated[here], names[here])
        replies = gathered(drawn_here)
        rewards, counts = on_first(lambda: self._rewards_of([reply.answer for reply in replies]))
        self._counts.update(counts)
        rewards = rewards.to(self.accelerator.device)
        episodes: list[Episode] = [reply.episode for reply in replies]
        if self.player is not None:
            check_broken(episodes, self.player.max_failed_share, self.section)
            self._episodes += episodes
            rewards[[bool(each.failed) for each in episodes]] = math.nan
        groups = []
        for start, row in zip(range(0, len(repeated), size), rows, strict=True):
            part = slice(start, start + size)
            of = episodes[part]
            ids, own = [each.ids for each in of], [each.own for each in of] if self.player is not None else None
            drawn = [each.log_probabilities or [] for each in of] if self.use_vllm else None
            messages: list[Messages] = [each.messages for each in of]
            groups.append(Group(row, of[0].prompt_ids, ids, messages, rewards[part], drawn, own))
        return groups

    def _drawn_replies(self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Reply]:
        """An answer to each row's prompt, or a conversation, by this process. Its random numbers are those of its
        name."""
        if self.player is not None:
            return self._replied(
                rows,
                self.player.play(
                    rows,
                    lambda going: self._drawn(
                        [*going.values()], [f"{names[place]} {len(ids)}" for place, ids in going.items()]
                    ),
                ),
            )
        prompts = [self._rendered(row) for row in rows]
        replies = []
        for row, prompt, drawn in zip(rows, prompts, self._drawn(prompts, names), strict=True):
            text = answer_text(self.processing_class, drawn.ids, self.eos_token_ids)
            messages = [{"role": "assistant", "content": text}]
            episode = Episode(prompt, drawn.ids, log_probabilities=drawn.log_probabilities, messages=[*messages])
            replies.append(Reply(drawn.ids, answer_to(row, text, len(drawn.ids)), episode))
        return replies

    def _drawn(self, prompts: Sequence[list[int]], names: Sequence[str]) -> list[Sample]:
        """An answer to each prompt, by the engine of the profile."""
        return self._cost.counted(lambda: self._sampled(prompts, names))

    def _sampled(self, prompts: Sequence[list[int]], names: Sequence[str]) -> list[Sample]:
        if self.engine is None:
            drawn = self._generate_single_turn(list(prompts), None, {}, 1)
            return [Sample(*each) for each in zip(*drawn, strict=True)]
        model = self.accelerator.unwrap_model(self.model)
        was_training = model.training
        model.eval()
        if self._of_step != self.state.global_step:
            self.engine.update(model)
            self._of_step = self.state.global_step
        samples = self.engine.sample(prompts, list(map(seed_of, names)), self.watched.max_new_tokens)
        model.train(was_training)
        return samples

    def _replied(self, rows: Sequence[Mapping[str, Any]], episodes: Sequence[Episode]) -> list[Reply]:
        replies = []
        for row, each in zip(rows, episodes, strict=True):
            text = answer_text(self.processing_class, each.answer, self.eos_token_ids)
            earned = Failed(each.failed) if each.failed else each.earned
            replies.append(Reply(each.ids, answer_to(row, text, sum(each.own), earned), each))
        return replies

    def _replies(self, rows: Sequence[dict[str, Any]]) -> list[Reply]:
        if self.player is None:
            return super()._replies(rows)
        model, most, ends = self.accelerator.unwrap_model(self.model), self.watched.max_new_tokens, self.eos_token_ids

        def best(going: Mapping[int, list[int]]) -> list[Sample]:
            found = greedy_after(model, self.processing_class, [*going.values()], ends, most)
            return [Sample(ids, None) for ids in found]

        return self._replied(rows, self.player.play(rows, best))

    def _measured(self, replies: Sequence[Reply]) -> dict[str, float]:
        if self.player is None:
            return {}
        check_broken([reply.episode for reply in replies], self.player.max_failed_share, self.section)
        return measures_of([reply.episode for reply in replies])

    def facts(self) -> dict[str, Any]:
        """What rewards and rollouts took."""
        return {**self.scorer.facts(), **self._cost.facts()}

    def _rendered(self, row: Mapping[str, Any]) -> list[int]:
        ids: list[int] = render(self.processing_class, row["prompt"], add_generation_prompt=True)["input_ids"]
        return ids

    def _rewards_of(self, answers: Sequence[Answer]) -> tuple[Tensor, dict[str, float]]:
        """The rewards of answers, and counts of these. A reward that an answer doesn't have is NaN: TRL leaves these
        out of its means. An answer without any has no part in the mean of its group, nor in the loss."""
        scores = self.scorer.score(answers)
        parts = [*scores.parts.values()]
        if self.config.overlong is not None:
            penalties = [penalty(self.config.overlong, self.watched.max_new_tokens, each.tokens) for each in answers]
            known = [total is not None for total in scores.sums]
            parts.append([one if kept else None for one, kept in zip(penalties, known, strict=True)])
        columns = [[math.nan if value is None else value for value in part] for part in parts]
        return torch.tensor(columns, dtype=torch.float32).T.contiguous(), scores.counts()

    def _refill(self) -> int:
        """Replace groups whose answers all earn the same, as often as the config says. Returns how many were."""
        further, refilled = self._further_rows(), 0
        for attempt in range(self.config.refills):
            alike = [place for place, group in enumerate(self._groups) if self._is_alike(group)]
            rows = list(islice(further, len(alike)))
            if not rows:
                break
            for place, group in zip(alike, self._sample(rows, f"refill {attempt}"), strict=False):
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
        """What was sampled of this process's prompts, as TRL's returns it."""
        prompt_ids = [group.prompt_ids for group in self._mine for _ in group.ids]
        ids = [answer for group in self._mine for answer in group.ids]
        answers = [answer for group in self._mine for answer in group.answers]
        drawn = [each for group in self._mine for each in group.log_probabilities or ()] or None
        own = [each for group in self._mine for each in group.own or ()] or None
        return prompt_ids, ids, own, answers, drawn, {}, None, []

    def _calculate_rewards(self, *_: Any) -> Tensor:
        """What was rewarded, on all processes, as TRL's returns it."""
        return torch.cat([group.rewards for group in self._groups])

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """TRL's, divided by what it sums over."""
        loss: Tensor = super()._compute_loss(model, inputs)
        self._tokens.append(float(own_tokens(inputs).sum()))
        mean, answers = LOSSES[self.config.loss].mean, inputs["answers_in_loss"].clamp(min=1)
        if mean == "tokens":
            return loss
        divided_by = self.args.generation_batch_size if mean == "answers" else inputs["num_items_in_batch"].clamp(min=1)
        return loss * (divided_by / answers)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, with means over the tokens of a step, where TRL's are over micro-batches, and without the
        mean of a reward that no answer of the step has."""
        metrics = self._metrics["train"]
        if self._tokens:
            self._tokens = self.accelerator.reduce(torch.tensor(self._tokens, device=self.args.device), "sum").tolist()
        tokens = max(1.0, sum(self._tokens))
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
            tensors = {
                f"{self.args.process_index}.{name}": _joined([batch[name] for batch in self._buffered_inputs])
                for name in self._buffered_inputs[0]
            }
            parts = gathered([*tensors.items()])
            if self.is_world_process_zero():
                (folder / STATE).write_text(json.dumps(self._of_rollout))
                save_file(dict(parts), folder / ROLLOUT)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        micro_steps = self.args.gradient_accumulation_steps
        self._step = self.state.global_step * micro_steps
        if self.state.global_step % self.config.updates:
            self._of_rollout = json.loads((Path(checkpoint) / STATE).read_text())
            tensors = load_file(Path(checkpoint) / ROLLOUT)
            if (processes := len({name.partition(".")[0] for name in tensors})) != self.args.world_size:
                raise refusal(Path(checkpoint), f"runtime.training.processes {processes}, within a batch of answers")
            own = f"{self.args.process_index}."
            mine = {
                name.removeprefix(own): value.to(self.args.device)
                for name, value in tensors.items()
                if name.startswith(own)
            }
            rows_first = dict(sorted(mine.items(), key=lambda item: -item[1].ndim))  # TRL counts those of the first
            self._buffered_inputs = split_tensor_dict(rows_first, micro_steps)  # as many as fit into memory now


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """A tensor of all micro-batches, or the number that they share."""
    return torch.cat([*parts]).cpu() if parts[0].ndim else parts[0].cpu().clone()


def own_tokens(batch: Mapping[str, Any]) -> Tensor:
    """The tokens that are learned from: those of answers, without those of an environment."""
    mask: Tensor = batch["completion_mask"]
    return mask if batch.get("tool_mask") is None else mask * batch["tool_mask"]


def _named(title: str) -> Callable[..., list[float]]:
    """A function for TRL to name its measures after. `_calculate_rewards` takes its place."""

    def function(**_: Any) -> list[float]:
        raise NotImplementedError(title)

    function.__name__ = title
    return function


def penalty(overlong: OverlongConfig, most: int, tokens: int) -> float:
    """0 up to `start` tokens, −1 at `most`, and linear between (Yu et al. 2025, equation 13)."""
    return min(0.0, (overlong.start - tokens) / (most - overlong.start))
