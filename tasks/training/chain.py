"""The links of the chain that post-training is, in their usual order. No torch, no method."""

from __future__ import annotations

from typing import Literal, get_args

LinkName = Literal["prune", "distill", "sft", "feedback", "orpo", "cpo", "kto", "dpo", "reward", "ppo", "grpo"]
LINKS: tuple[LinkName, ...] = get_args(LinkName)
BASE = "base"  # the model that the chain begins with
JUDGE = "reward"  # the link whose model stands beside the chain: later links learn from its rewards
FEEDBACK = "feedback"  # the link whose preferences do
BESIDE = (JUDGE, FEEDBACK)  # no model of the chain
