"""PPO as a transformers Trainer: each rollout is learned from in several steps, each over all of it.

The critic is part of the policy's module during training, so that optimizer and checkpoints contain both, and is
removed at the end. A checkpoint within a rollout also contains the rollout, since the policy that sampled it is gone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Trainer

from tasks.posttrain.engines import put, whole
from tasks.posttrain.ppo import equations
from tasks.posttrain.ppo.policy import detach
from tasks.posttrain.ppo.rollout import Rollout, Sampler
from tasks.posttrain.rewards.held_out import HeldOutRewards
from tasks.posttrain.rollouts.mismatch import MEAN, check_mismatch

COUNTED = ("/asked", "/failed", "/none")  # once a rollout, so that sums over steps are right
ROLLOUT, STATE, CRITIC = "rollout.safetensors", "ppo.json", "critic.safetensors"  # in a checkpoint


class PpoTrainer(HeldOutRewards, Trainer):
    """`train_dataset` has the prompts of all rollouts, in order. Every process has whole rollouts, and learns from its
    share of each."""

    section = "ppo"
    loss_is_scaled_for_ga = True  # a micro-batch's loss is already its share of the mean over the rollout

    def __init__(self, sampler: Sampler, *, model: Any, **settings: Any) -> None:
        self.sampler, self.watched, self.scorer = sampler, sampler.config, sampler.scorer
        self.eos_token_ids = list(sampler.ends)
        self.coefficient = sampler.config.beta
        self._rollout: Rollout = {}
        self._of_rollout: dict[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self._micro_batch = 0
        super().__init__(model=model, data_collator=lambda rows: {"rows": torch.tensor(len(rows))}, **settings)

    def train(self, *args: Any, **settings: Any) -> Any:
        """Train as the trainer does, then remove the critic."""
        result = super().train(*args, **settings)
        detach(self.accelerator.unwrap_model(self.model_wrapped))
        return result

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A micro-batch of the step's rollout, which is sampled at its first micro-batch. The data loader's rows are
        ignored: they only make the trainer count."""
        shares, number = self.args.gradient_accumulation_steps, self._micro_batch
        self._micro_batch = (number + 1) % shares
        if number == 0 and self.state.global_step % self.sampler.config.passes == 0:
            self._sample(self.state.global_step // self.sampler.config.passes)
        place, ways = self.args.process_index * shares + number, self.args.world_size * shares
        return {name: values.chunk(ways)[place] for name, values in self._rollout.items()}

    def _sample(self, number: int) -> None:
        batch = self.sampler.config.global_batch
        rows = list(self.train_dataset.select(range(number * batch, (number + 1) * batch)))
        policy = self.accelerator.unwrap_model(self.model)
        policy.eval()
        name = f"{self.args.seed} {self.state.global_step}"
        self._rollout, self._of_rollout = self.sampler.sample(policy, rows, self.coefficient, name)
        policy.train()
        config = self.sampler.config
        if config.rollout.corrected:
            check_mismatch(self._of_rollout[MEAN], config.rollout, self.state.global_step + 1, self.section)
        self._of_rollout["coefficient"] = self.coefficient
        if config.target_kl is not None:
            kl = self._of_rollout["kl_of_answer"]
            self.coefficient = equations.adapt_beta(self.coefficient, kl, config.target_kl, batch, config.horizon)

    def compute_loss(self, model: Any, inputs: Rollout, *_: Any, **__: Any) -> Tensor:
        """The clipped policy loss plus the weighted clipped value loss (Schulman et al. 2017, equation 9, without
        entropy), each a mean over the tokens of all answers of the rollout. Another engine's answers have weights in
        the former."""
        config, mask_BT = self.sampler.config, inputs["answer_mask"]
        tokens = self._rollout["answer_mask"].sum()
        log_policy_BT, values_BT = model(ids=inputs["ids"], mask=inputs["mask"], answer=mask_BT.shape[1])
        values_BT = values_BT - self.sampler.mean
        policy_BT = equations.policy_losses(log_policy_BT, inputs["log_old"], inputs["advantages"], config.clip)
        policy_BT = policy_BT * inputs.get("weights", 1.0)
        value_BT = equations.value_losses(values_BT, inputs["values"], inputs["returns"], config.value_clip)
        policy_loss, value_loss = ((losses_BT * mask_BT).sum() / tokens for losses_BT in (policy_BT, value_BT))
        beyond_BT = ((log_policy_BT - inputs["log_old"]).exp() - 1).abs() > config.clip
        self._sums["policy_loss"] += float(policy_loss.detach())
        self._sums["value_loss"] += float(value_loss.detach())
        self._sums["clipped"] += float((beyond_BT * mask_BT).sum() / tokens)
        # Engines take the mean over the processes, each of which has the sum over its share
        return (policy_loss + config.value_weight * value_loss) * self.args.world_size

    def facts(self) -> dict[str, Any]:
        """What rewards and rollouts took."""
        return {**self.scorer.facts(), **self.sampler.cost.facts()}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the trainer does, with the measures of the rollout and of the step."""
        if "loss" in logs:
            sums = self.accelerator.reduce(torch.tensor([*self._sums.values()], device=self.args.device), "sum")
            logs |= {**self._of_rollout, **dict(zip(self._sums, sums.tolist(), strict=True))}
            if (self.state.global_step - 1) % self.sampler.config.passes:
                logs = {name: value for name, value in logs.items() if not name.endswith(COUNTED)}
            self._sums.clear()
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        critic = self._trained_of_critic()
        states = {name: whole(value).detach().cpu().contiguous() for name, value in critic.items()}
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            (folder / STATE).write_text(json.dumps({"coefficient": self.coefficient, "of_rollout": self._of_rollout}))
            save_file({name: values.contiguous() for name, values in self._rollout.items()}, folder / ROLLOUT)
            if states:
                save_file(states, folder / CRITIC)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            state = json.loads((Path(checkpoint) / STATE).read_text())
            self.coefficient, self._of_rollout = state["coefficient"], state["of_rollout"]
            rollout = load_file(Path(checkpoint) / ROLLOUT)
            self._rollout = {name: values.to(self.args.device) for name, values in rollout.items()}
            if critic := self._trained_of_critic():
                states = load_file(Path(checkpoint) / CRITIC)
                for name, parameter in critic.items():
                    put(parameter, states[name])

    def _trained_of_critic(self) -> dict[str, Any]:
        """What is trained of the critic, by name, if the checkpoints of an adapter leave it out."""
        model = self.accelerator.unwrap_model(self.model)
        trained = {name: value for name, value in model.critic.named_parameters() if value.requires_grad}
        return trained if hasattr(model, "peft_config") else {}
