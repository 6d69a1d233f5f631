"""PPO as a transformers Trainer: each rollout is learned from in several steps, each over all of it.

The critic is part of the policy's module during training, so that optimizer and checkpoints contain both, and is
removed at the end. A checkpoint within a rollout also contains the rollout, since the policy that sampled it is gone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Trainer

from tasks.posttrain.ppo import equations
from tasks.posttrain.ppo.rollout import Rollout, Sampler, log_probabilities, values_of
from tasks.posttrain.rewards.held_out import HeldOutRewards, seeded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COUNTED = ("/asked", "/failed", "/none")  # once a rollout, so that sums over steps are right
ROLLOUT, STATE = "rollout.safetensors", "ppo.json"  # in a checkpoint


class PpoTrainer(HeldOutRewards, Trainer):
    """One process. `train_dataset` has the prompts of all rollouts, in order."""

    section = "ppo"
    loss_is_scaled_for_ga = True  # a micro-batch's loss is already its share of the mean over the rollout

    def __init__(self, sampler: Sampler, critic: PreTrainedModel, *, model: PreTrainedModel, **settings: Any) -> None:
        self.sampler, self.watched, self.scorer = sampler, sampler.config, sampler.scorer
        self.eos_token_ids = list(sampler.ends)
        self.coefficient = sampler.config.beta
        self._rollout: Rollout = {}
        self._of_rollout: dict[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self._micro_batch = 0
        model.critic = critic
        super().__init__(model=model, data_collator=lambda rows: {"rows": torch.tensor(len(rows))}, **settings)

    def train(self, *args: Any, **settings: Any) -> Any:
        """Train as the trainer does, then remove the critic."""
        result = super().train(*args, **settings)
        del self.accelerator.unwrap_model(self.model_wrapped).critic
        return result

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A micro-batch of the step's rollout, which is sampled at its first micro-batch. The data loader's rows are
        ignored: they only make the trainer count."""
        share, self._micro_batch = self._micro_batch, self._micro_batch + 1
        share %= self.args.gradient_accumulation_steps
        if share == 0 and self.state.global_step % self.sampler.config.passes == 0:
            self._sample(self.state.global_step // self.sampler.config.passes)
        return {
            name: values.chunk(self.args.gradient_accumulation_steps)[share] for name, values in self._rollout.items()
        }

    def _sample(self, number: int) -> None:
        batch = self.sampler.config.global_batch
        rows = list(self.train_dataset.select(range(number * batch, (number + 1) * batch)))
        policy = self.accelerator.unwrap_model(self.model)
        policy.eval()
        with seeded(self.args.seed, self.state.global_step):
            self._rollout, self._of_rollout = self.sampler.sample(policy, rows, self.coefficient)
        policy.train()
        self._of_rollout["coefficient"] = self.coefficient
        config = self.sampler.config
        if config.target_kl is not None:
            kl = self._of_rollout["kl_of_answer"]
            self.coefficient = equations.adapt_beta(self.coefficient, kl, config.target_kl, batch, config.horizon)

    def compute_loss(self, model: Any, inputs: Rollout, *_: Any, **__: Any) -> Tensor:
        """The clipped policy loss plus the weighted clipped value loss (Schulman et al. 2017, equation 9, without
        entropy), each a mean over the tokens of all answers of the rollout."""
        config, mask_BT = self.sampler.config, inputs["answer_mask"]
        width, tokens = mask_BT.shape[1], self._rollout["answer_mask"].sum()
        log_policy_BT = log_probabilities(model, inputs["ids"], inputs["mask"], width, config.temperature)
        values_BT = values_of(model.critic, inputs["ids"], inputs["mask"], width) - self.sampler.mean
        policy_BT = equations.policy_losses(log_policy_BT, inputs["log_old"], inputs["advantages"], config.clip)
        value_BT = equations.value_losses(values_BT, inputs["values"], inputs["returns"], config.value_clip)
        policy_loss, value_loss = ((losses_BT * mask_BT).sum() / tokens for losses_BT in (policy_BT, value_BT))
        beyond_BT = ((log_policy_BT - inputs["log_old"]).exp() - 1).abs() > config.clip
        self._sums["policy_loss"] += float(policy_loss.detach())
        self._sums["value_loss"] += float(value_loss.detach())
        self._sums["clipped"] += float((beyond_BT * mask_BT).sum() / tokens)
        return policy_loss + config.value_weight * value_loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the trainer does, with the measures of the rollout and of the step."""
        if "loss" in logs:
            logs |= {**self._of_rollout, **self._sums}
            if (self.state.global_step - 1) % self.sampler.config.passes:
                logs = {name: value for name, value in logs.items() if not name.endswith(COUNTED)}
            self._sums.clear()
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        (folder / STATE).write_text(json.dumps({"coefficient": self.coefficient, "of_rollout": self._of_rollout}))
        save_file({name: values.contiguous() for name, values in self._rollout.items()}, folder / ROLLOUT)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            state = json.loads((Path(checkpoint) / STATE).read_text())
            self.coefficient, self._of_rollout = state["coefficient"], state["of_rollout"]
            self._rollout = load_file(Path(checkpoint) / ROLLOUT, device=str(self.args.device))
