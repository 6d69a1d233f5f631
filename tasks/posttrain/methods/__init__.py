"""Post-training methods, one file each. To add one, write a file here, a row of METHODS and a line in the pipeline."""

from __future__ import annotations

from typing import Any

from tasks.posttrain.method import Method
from tasks.posttrain.methods.cpo import CPO
from tasks.posttrain.methods.distill import DISTILL
from tasks.posttrain.methods.dpo import DPO
from tasks.posttrain.methods.grpo import GRPO
from tasks.posttrain.methods.kto import KTO
from tasks.posttrain.methods.orpo import ORPO
from tasks.posttrain.methods.ppo import PPO
from tasks.posttrain.methods.reward import REWARD
from tasks.posttrain.methods.sft import SFT

METHODS: dict[str, Method[Any]] = {
    method.name: method for method in (DISTILL, SFT, ORPO, CPO, KTO, DPO, REWARD, PPO, GRPO)
}
