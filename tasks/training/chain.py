"""The links of the chain of post-training, in their usual order. Imports no torch and no method."""

from __future__ import annotations

from typing import Literal, get_args

LinkName = Literal["prune", "distill", "sft", "feedback", "orpo", "cpo", "kto", "dpo", "reward", "ppo", "grpo", "merge"]
LINKS: tuple[LinkName, ...] = get_args(LinkName)
BASE = "base"  # the model that the chain begins with
JUDGE = "reward"  # the link whose model isn't part of the chain: later links learn from its rewards
FEEDBACK = "feedback"  # the link that makes preferences, from which later links learn
BESIDE = (JUDGE, FEEDBACK)  # links whose artifact isn't a model of the chain
