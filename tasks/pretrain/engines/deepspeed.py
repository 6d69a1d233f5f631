"""DeepSpeed, tamed: ZeRO 0 to 3 with nothing compiled behind our back.

DeepSpeed would compile an operator for shared memory (75 s of CPU) that only its inference uses, and its own Adam; both
are declined. Gradients are clipped here at stage 0 in float32, where DeepSpeed clips without telling the norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.transformer import Transformer
from storage.errors import TrainingError
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.optimizers import new_optimizer, set_learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World


class DeepSpeedEngine(Engine):
    """ZeRO (Rajbhandari et al. 2020): stage 1 shards optimizer states over the processes, 2 gradients too, 3 weights
    too. In bfloat16 weights are, the optimizer keeps float32 masters."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        import deepspeed
        import deepspeed.ops

        super().__init__(spec, world)
        # Only DeepSpeed's inference uses this operator; its dict of compatible operators is meant to be edited
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        self.zero_stage = spec.runtime.zero_stage
        bfloat16 = self.dtype == torch.bfloat16
        self.clips = self.zero_stage == 0 and not bfloat16
        config, model = self.config, self.new_model()
        optimizer = new_optimizer(config, model)
        settings: dict[str, Any] = {
            "train_batch_size": config.global_batch,
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.micro_steps,
            "gradient_clipping": 0.0 if self.clips else config.gradient_clip,
            "zero_optimization": {"stage": self.zero_stage},
            "bf16": {"enabled": bfloat16},
            "steps_per_print": None,
        }
        self.deepspeed, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    @property
    def layout(self) -> Mapping[str, int | str]:
        """Sharded states belong to as many ranks as wrote them."""
        ranks = self.world.size if self.zero_stage else 0
        return {"states": "deepspeed", "zero_stage": self.zero_stage, "ranks": ranks}

    @property
    def model(self) -> Transformer:
        """The module in training; its weights are complete on each rank only outside ZeRO 3."""
        return self.deepspeed.module

    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        """As in the interface."""
        set_learning_rate(self.deepspeed.optimizer.param_groups, learning_rate)
        # The batch may warm up: how many micro-batches a step has is ours to say
        self.deepspeed.set_train_batch_size(len(batches) * self.micro_batch * self.data_ranks)
        total = torch.zeros((), device=self.world.device)
        norm = torch.zeros(())
        weights = self.weights(batches)
        for number, batch in enumerate(batches, 1):
            self.deepspeed.set_gradient_accumulation_boundary(number == len(batches))
            loss = self.deepspeed(*batch)
            if weights is not None:
                loss = loss * weights[number - 1]
            self.deepspeed.backward(loss)
            if self.clips and number == len(batches):
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
            self.deepspeed.step()
            total += loss.detach()
        if not self.clips:
            norm = torch.as_tensor(self.deepspeed.get_global_grad_norm())
        return total / len(batches), norm.detach()

    @torch.no_grad()
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """As in the interface; under ZeRO 3 a forward pass needs all ranks."""
        self.deepspeed.eval()
        measured: Tensor = self.deepspeed(ids_BT, targets_BT)
        self.deepspeed.train()
        return measured

    def save(self, folder: Path) -> None:
        """As DeepSpeed writes it, under the folder's name as tag."""
        self.deepspeed.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)

    def load(self, folder: Path) -> None:
        """As in the interface. Raises TrainingError where DeepSpeed only warns."""
        path, _ = self.deepspeed.load_checkpoint(str(folder.parent), tag=folder.name)
        if path is None:
            raise TrainingError(f"DeepSpeed found no checkpoint in {folder}.", f"Delete {folder.parent} to begin anew.")

    def whole_model(self) -> Transformer | None:
        """As in the interface."""
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self.model.parameters()), enabled=self.zero_stage == 3):
            if not self.world.first:
                return None
            whole = Transformer(self.spec.shape)
            whole.load_state_dict({name: value.float().cpu() for name, value in self.model.state_dict().items()})
            return whole.eval()
