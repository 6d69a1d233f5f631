"""The links of the chain of post-training, in their usual order. Imports no torch and no method."""

from __future__ import annotations

from typing import Literal, get_args

LinkName = Literal[
    "prune", "distill", "sft", "best_of_n", "feedback", "orpo", "cpo", "kto", "dpo", "reward", "ppo", "grpo", "merge"
]
LINKS: tuple[LinkName, ...] = get_args(LinkName)
BASE = "base"  # the model that the chain begins with
JUDGE = "reward"  # the link whose model isn't part of the chain: later links learn from its rewards
FEEDBACK = "feedback"  # the link that makes preferences, from which later links learn
BEST_OF_N = "best_of_n"  # the link that makes instructions and preferences of the best of several answers
BESIDE = (JUDGE, FEEDBACK, BEST_OF_N)  # links whose artifact isn't a model of the chain
MAKES: dict[Literal["feedback", "best_of_n"], tuple[str, ...]] = {  # the roles of rows for later links
    "feedback": ("preferences",),
    "best_of_n": ("instructions", "preferences"),
}
