"""The policy with its critic as one module, and as one forward pass: engines know no other way to call a model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


def attach(policy: Any, critic: PreTrainedModel, temperature: float, adapter: LoraConfig | None) -> None:
    """Make the critic a part of the policy. With an adapter, the critic gets one like the policy's, beside its frozen
    weights, and its head is trained.

    Called with `answer`, the number of last tokens, the policy returns their log-probabilities and the values before
    them, without the critic's if `values` is false. Called as before, it returns what it did.
    """
    if adapter is not None:
        import peft

        peft.inject_adapter_in_model(adapter, critic)
        critic.score.requires_grad_(True)
    policy.critic, forward = critic, policy.forward

    @functools.wraps(forward)
    def forward_both(*args: Any, answer: int | None = None, values: bool = True, **given: Any) -> Any:
        if answer is None:
            return forward(*args, **given)
        log_BT = log_probabilities(forward, **given, width=answer, temperature=temperature)
        return (log_BT, values_of(critic, **given, width=answer)) if values else (log_BT,)

    policy.forward = forward_both


def detach(policy: Any) -> None:
    """Remove the critic."""
    del policy.critic, policy.forward


@contextmanager
def alone(policy: Any) -> Iterator[Any]:
    """The policy without the critic in the block, for what takes its weights."""
    critic, forward = policy.critic, policy.forward
    detach(policy)
    try:
        yield policy
    finally:
        policy.critic, policy.forward = critic, forward


def log_probabilities(model: Any, ids: Tensor, mask: Tensor, width: int, temperature: float) -> Tensor:
    """The log-probability of each of the last `width` tokens, given those before it."""
    output = model(input_ids=ids, attention_mask=mask, position_ids=positions(mask), use_cache=False)
    logits_BTV = output.logits[:, -width - 1 : -1].float() / temperature
    return logits_BTV.log_softmax(-1).gather(-1, ids[:, -width:, None])[..., 0]


def values_of(critic: PreTrainedModel, ids: Tensor, mask: Tensor, width: int) -> Tensor:
    """The critic's value before each of the last `width` tokens."""
    states_BLD = critic.base_model(
        input_ids=ids, attention_mask=mask, position_ids=positions(mask), use_cache=False
    ).last_hidden_state
    values_BT: Tensor = critic.score(states_BLD[:, -width - 1 : -1])[..., 0].float()
    return values_BT


def positions(mask_BL: Tensor) -> Tensor:
    """Positions that start at 0 with the prompt, not with the padding before it."""
    return (mask_BL.cumsum(1) - 1).clamp(min=0)
