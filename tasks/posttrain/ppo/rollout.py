"""Answers of the policy, with all inputs of PPO's losses as they were at the time of sampling.

Shapes: B prompts with one answer each, P tokens of the longest prompt (padded on the left), T of the longest answer
(padded on the right), L = P + T, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather
from torch import Tensor
from trl.trainer.utils import use_adapter

from models.conversation import Messages, answer_text, render
from models.runtimes.greedy import pad_left
from models.tokenizer import padding_id
from tasks.posttrain.engines import whole_weights
from tasks.posttrain.ppo import equations
from tasks.posttrain.ppo.policy import alone, log_probabilities
from tasks.posttrain.rewards.ranks import gathered, on_first, share_of
from tasks.posttrain.rewards.score import Scorer, answer_to
from tasks.posttrain.rollouts.engine import Engine, Sample
from tasks.posttrain.rollouts.mismatch import Cost, mismatch_of, weights_of
from tasks.posttrain.rollouts.sampling import seed_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from tasks.posttrain.ppo.config import PpoConfig

Rollout = dict[str, Tensor]  # all with B rows, so that micro-batches are slices


@dataclass(frozen=True)
class Sampler:
    """Samples answers and rewards them. The critic starts as the reward model, so `mean` is subtracted from its values
    as from rewards. Without a `reference`, that is the policy without its adapter. `learned` answers are in a forward
    pass of the training, and so in one here. `cost` is what the `engine` takes."""

    config: PpoConfig
    scorer: Scorer
    engine: Engine
    reference: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerFast
    ends: Sequence[int]
    mean: float
    learned: int
    cost: Cost

    @torch.no_grad()
    def sample(
        self, policy: Any, rows: Sequence[dict[str, Any]], coefficient: float, name: str
    ) -> tuple[Rollout, dict[str, float]]:
        """One answer to each row's prompt, and the measures of these answers, the same on every process. Each samples
        and measures its share of them. Rollouts of other names are independent."""
        ids_BL, mask_BL, samples = self._answers(policy, [row["prompt"] for row in rows], name)
        answers = [each.ids for each in samples]
        width = max(map(len, answers))
        mask_BT = mask_BL[:, -width:].float()
        log_old_BT, log_reference_BT, values_BT = self._measured(policy, ids_BL, mask_BL, width)
        texts = [answer_text(self.tokenizer, ids, self.ends) for ids in answers]
        given = [answer_to(row, text, len(ids)) for row, text, ids in zip(rows, texts, answers, strict=True)]
        scores = on_first(lambda: self.scorer.score(given))
        sums = scores.sums
        score_B = torch.tensor([0.0 if each is None else each for each in sums], device=mask_BT.device)
        rewarded_B = torch.tensor([each is not None for each in sums], device=mask_BT.device)
        of_engine, mismatch = self._corrected(samples, log_old_BT, mask_BT)
        kl_BT = equations.kl_of_tokens(log_old_BT, log_reference_BT, self.config.kl) * mask_BT
        rewards_BT = equations.rewards_of_tokens(score_B, kl_BT, coefficient, mask_BT)
        advantages_BT, returns_BT = equations.advantages_and_returns(
            rewards_BT, values_BT, mask_BT, discount=self.config.discount, decay=self.config.decay
        )
        mask_BT = mask_BT * rewarded_B[:, None]  # an answer without a reward is not learned from
        rollout = {
            "ids": ids_BL,
            "mask": mask_BL,
            "answer_mask": mask_BT,
            "log_old": log_old_BT,
            "values": values_BT,
            "advantages": equations.whiten(advantages_BT, mask_BT),
            "returns": returns_BT,
            **of_engine,
        }
        watched_BT = equations.kl_of_tokens(log_old_BT, log_reference_BT, "k3")
        measured = {
            "reward": float(score_B[rewarded_B].mean()),
            "reward_std": float(score_B[rewarded_B].std(correction=0)),
            "kl": float(equations.masked_mean(watched_BT, mask_BT)),
            "kl_of_answer": float(kl_BT.sum(1)[rewarded_B].mean()),
            "answer_tokens": float(mask_BT.sum(1)[rewarded_B].mean()),
            **scores.counts(),
            **mismatch,
        }
        if len(self.scorer.rewards) > 1:
            means = scores.means()
            measured |= {f"rewards/{one.title}/mean": means[one.title] for one in scores.rewards if one.title in means}
        return rollout, measured

    def _answers(self, policy: Any, prompts: Sequence[Messages], name: str) -> tuple[Tensor, Tensor, list[Sample]]:
        """Prompts with answers, the mask of both, and the answers, each with the token that ends it."""
        pad, here = padding_id(self.tokenizer), share_of(len(prompts))
        rendered = [render(self.tokenizer, prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
        ids_BP, mask_BP = (each.to(policy.device) for each in pad_left(rendered, pad))
        seeds = [seed_of(f"{name} {place}") for place in range(len(prompts))][here]

        def mine() -> list[Sample]:
            with alone(policy):
                self.engine.update(policy)
            return self.engine.sample(rendered[here], seeds, self.config.max_new_tokens)

        with whole_weights(policy):
            samples = gathered(self.cost.counted(mine))
        answers = [each.ids for each in samples]
        width = max(map(len, answers))
        answer_BT = torch.tensor([[*row, *[pad] * (width - len(row))] for row in answers], device=policy.device)
        mask_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in answers], device=policy.device)
        return torch.cat([ids_BP, answer_BT], 1), torch.cat([mask_BP, mask_BT], 1), samples

    def _corrected(
        self, samples: Sequence[Sample], log_old_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Rollout, dict[str, float]]:
        """The weights of the losses of an engine's answers, if it has probabilities of its own, and how far these are
        from the policy's."""
        if not self.config.rollout.corrected:
            return {}, {}
        engine_BT = torch.zeros_like(log_old_BT)
        for row, (_, drawn) in zip(engine_BT, samples, strict=True):
            assert drawn is not None
            row[: len(drawn)] = torch.tensor(drawn)
        weights_BT = weights_of(log_old_BT, engine_BT, mask_BT, self.config.rollout)
        return {"weights": weights_BT}, mismatch_of(log_old_BT, engine_BT, mask_BT, weights_BT)

    def _measured(self, policy: Any, ids_BL: Tensor, mask_BL: Tensor, width: int) -> list[Tensor]:
        """For each token of the answers its log-probability under the policy and the reference, and the value before
        it."""
        here, parts = share_of(len(ids_BL)), []
        for ids, mask in zip(ids_BL[here].split(self.learned), mask_BL[here].split(self.learned), strict=True):
            log_BT, values_BT = policy(ids=ids, mask=mask, answer=width)
            if self.reference is None:
                with use_adapter(policy, adapter_name=None):
                    (log_reference_BT,) = policy(ids=ids, mask=mask, answer=width, values=False)
            else:
                log_reference_BT = log_probabilities(self.reference, ids, mask, width, self.config.temperature)
            parts.append((log_BT, log_reference_BT, values_BT - self.mean))
        return [gather(torch.cat(each).contiguous()) for each in zip(*parts, strict=True)]
