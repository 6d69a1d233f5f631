"""Answers of the policy, with all inputs of PPO's losses as they were at the time of sampling.

Shapes: B prompts with one answer each, P tokens of the longest prompt (padded on the left), T of the longest answer
(padded on the right), L = P + T, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.conversation import Messages, answer_text, render
from models.runtimes.greedy import cut, pad_left
from models.tokenizer import padding_id
from tasks.posttrain.ppo import equations
from tasks.posttrain.rewards.score import Scorer, answer_to

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from tasks.posttrain.ppo.config import PpoConfig

Rollout = dict[str, Tensor]  # all with B rows, so that micro-batches are slices


@dataclass(frozen=True)
class Sampler:
    """Samples answers and rewards them. The critic starts as the reward model, so `mean` is subtracted from its values
    as from rewards."""

    config: PpoConfig
    scorer: Scorer
    reference: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    ends: Sequence[int]
    mean: float

    @torch.no_grad()
    def sample(
        self, policy: PreTrainedModel, rows: Sequence[dict[str, Any]], coefficient: float
    ) -> tuple[Rollout, dict[str, float]]:
        """One answer to each row's prompt, and the measures of these answers."""
        ids_BL, mask_BL, answers = self._answers(policy, [row["prompt"] for row in rows])
        width = max(map(len, answers))
        mask_BT = mask_BL[:, -width:].float()
        log_old_BT = log_probabilities(policy, ids_BL, mask_BL, width, self.config.temperature)
        log_reference_BT = log_probabilities(self.reference, ids_BL, mask_BL, width, self.config.temperature)
        values_BT = values_of(policy.critic, ids_BL, mask_BL, width) - self.mean
        texts = [answer_text(self.tokenizer, ids, self.ends) for ids in answers]
        scores = self.scorer.score(
            [answer_to(row, text, len(ids)) for row, text, ids in zip(rows, texts, answers, strict=True)]
        )
        sums = scores.sums
        score_B = torch.tensor([0.0 if each is None else each for each in sums], device=mask_BT.device)
        rewarded_B = torch.tensor([each is not None for each in sums], device=mask_BT.device)
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
        }
        watched_BT = equations.kl_of_tokens(log_old_BT, log_reference_BT, "k3")
        measured = {
            "reward": float(score_B[rewarded_B].mean()),
            "reward_std": float(score_B[rewarded_B].std(correction=0)),
            "kl": float(equations.masked_mean(watched_BT, mask_BT)),
            "kl_of_answer": float(kl_BT.sum(1)[rewarded_B].mean()),
            "answer_tokens": float(mask_BT.sum(1)[rewarded_B].mean()),
            **scores.counts(),
        }
        if len(self.scorer.rewards) > 1:
            means = scores.means()
            measured |= {f"rewards/{one.title}/mean": means[one.title] for one in scores.rewards if one.title in means}
        return rollout, measured

    def _answers(self, policy: PreTrainedModel, prompts: Sequence[Messages]) -> tuple[Tensor, Tensor, list[list[int]]]:
        """Prompts with answers, the mask of both, and the answers, each with the token that ends it."""
        pad = padding_id(self.tokenizer)
        rendered = [render(self.tokenizer, prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
        ids_BP, mask_BP = (each.to(policy.device) for each in pad_left(rendered, pad))
        ids_BL: Any = policy.generate(
            input_ids=ids_BP,
            attention_mask=mask_BP,
            do_sample=True,
            temperature=self.config.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.config.max_new_tokens,
            pad_token_id=pad,
            eos_token_id=list(self.ends),
        )
        answers = [cut(row, self.ends) for row in ids_BL[:, ids_BP.shape[1] :].tolist()]
        width = max(map(len, answers))
        answer_BT = torch.tensor([[*row, *[pad] * (width - len(row))] for row in answers], device=policy.device)
        mask_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in answers], device=policy.device)
        return torch.cat([ids_BP, answer_BT], 1), torch.cat([mask_BP, mask_BT], 1), answers


def log_probabilities(
    model: PreTrainedModel, ids_BL: Tensor, mask_BL: Tensor, width: int, temperature: float
) -> Tensor:
    """The log-probability of each of the last `width` tokens, given those before it."""
    output = model(input_ids=ids_BL, attention_mask=mask_BL, position_ids=positions(mask_BL), use_cache=False)
    logits_BTV = output.logits[:, -width - 1 : -1].float() / temperature
    return logits_BTV.log_softmax(-1).gather(-1, ids_BL[:, -width:, None])[..., 0]


def values_of(critic: PreTrainedModel, ids_BL: Tensor, mask_BL: Tensor, width: int) -> Tensor:
    """The critic's value before each of the last `width` tokens."""
    states_BLD = critic.base_model(
        input_ids=ids_BL, attention_mask=mask_BL, position_ids=positions(mask_BL), use_cache=False
    ).last_hidden_state
    values_BT: Tensor = critic.score(states_BLD[:, -width - 1 : -1])[..., 0].float()
    return values_BT


def positions(mask_BL: Tensor) -> Tensor:
    """Positions that start at 0 with the prompt, not with the padding before it."""
    return (mask_BL.cumsum(1) - 1).clamp(min=0)
