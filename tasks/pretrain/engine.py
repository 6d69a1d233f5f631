"""DeepSpeed, tamed: processes, precision, ZeRO and the optimizer, with nothing compiled behind our back.

One process needs no network: torch.distributed is started on a store in memory. DeepSpeed would compile an operator
for shared memory (75 s of CPU) that only its inference uses, and its own Adam; both are declined. Gradients are
clipped here at stage 0 in float32, where DeepSpeed clips without telling the norm.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from models.transformer import IGNORED, Transformer, decay_groups
from storage.errors import ConfigError
from tasks.pretrain.spec import TrainSpec

MicroBatch = tuple[Tensor, Tensor, Tensor | None]  # ids, targets, positions

CPU_TOKENS, GPU_TOKENS = 4_096, 32_768  # of a forward pass, where the runtime gives no micro_batch


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean of each rank's `values`, the same on every rank."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
            values /= self.size
        return values

    def sum(self, values: Tensor) -> Tensor:
        """The sum of each rank's `values`, the same on every rank."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            torch.distributed.barrier()

    def leave(self) -> None:
        """Part from the others, all at once: a rank that exits first can take gloo's threads down with an abort."""
        self.wait()
        torch.distributed.destroy_process_group()


def join(spec: TrainSpec) -> World:
    """Join the other processes (a launcher's environment names them), or be alone. Before DeepSpeed is imported."""
    cuda = spec.runtime.device == "cuda" or (spec.runtime.device == "auto" and torch.cuda.is_available())
    if not cuda:
        os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(spec.runtime.threads)
    for name, alone in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, alone)
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    if size == 1:
        torch.distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    else:
        torch.distributed.init_process_group(backend)
    return World(rank, size, device)


def micro_batch(spec: TrainSpec, world: World) -> int:
    """Sequences of a forward pass on one rank: the runtime's, or the most that divides evenly and is not too much.

    Raises ConfigError when the global batch can't be shared out evenly.
    """
    config, asked = spec.config, spec.runtime.micro_batch
    share, left = divmod(config.global_batch, world.size)
    if left or (asked and share % asked):
        raise ConfigError(
            f"pretrain.global_batch is {config.global_batch}, which {world.size} processes can't share evenly "
            f"with a runtime.micro_batch of {asked or 'any size'}.",
            "Choose a global batch that is a multiple of processes × micro_batch.",
        )
    if asked:
        return asked
    most = (GPU_TOKENS if world.device.type == "cuda" else CPU_TOKENS) // spec.shape.context
    return next(size for size in range(max(1, min(most, share)), 0, -1) if share % size == 0)


def use_bfloat16(spec: TrainSpec, world: World) -> bool:
    """Whether weights and activations are bfloat16 (the optimizer keeps float32 masters)."""
    if spec.config.precision == "auto":
        return world.device.type == "cuda" and torch.cuda.is_bf16_supported()
    return spec.config.precision == "bfloat16"


class Engine:
    """One model in training: `step` takes the micro-batches of an optimizer step and returns loss and gradient norm."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        import deepspeed
        import deepspeed.ops

        # Only DeepSpeed's inference uses this operator; its dict of compatible operators is meant to be edited
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        config, shape = spec.config, spec.shape
        self.config, self.world = config, world
        self.micro_batch = micro_batch(spec, world)
        self.micro_steps = config.global_batch // (self.micro_batch * world.size)
        bfloat16 = use_bfloat16(spec, world)
        self.clips = config.zero_stage == 0 and not bfloat16
        torch.manual_seed(config.seed)
        model = Transformer(shape)
        model.recompute = spec.runtime.recompute
        optimizer = torch.optim.AdamW(
            decay_groups(model, config.weight_decay), lr=0.0, betas=(config.beta1, config.beta2), fused=True
        )
        settings: dict[str, Any] = {
            "train_batch_size": config.global_batch,
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.micro_steps,
            "gradient_clipping": 0.0 if self.clips else config.gradient_clip,
            "zero_optimization": {"stage": config.zero_stage},
            "bf16": {"enabled": bfloat16},
            "steps_per_print": None,
        }
        self.deepspeed, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    @property
    def model(self) -> Transformer:
        """The module in training; its weights are complete on each rank only outside ZeRO 3."""
        return self.deepspeed.module

    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        """One optimizer step over this rank's micro-batches of (B, T) ids, targets and, for documents apart, positions.

        Returns a loss whose mean over the ranks is the mean over the tokens of the step, and the global gradient norm
        before clipping, both still on the device.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate
        total = torch.zeros((), device=self.world.device)
        norm = torch.zeros(())
        weights = self._weights(batches)
        for number, batch in enumerate(batches, 1):
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

    def _weights(self, batches: list[MicroBatch]) -> Tensor | None:
        """What makes the mean over micro-batches a mean over tokens, where they don't all bear as many targets: else
        the sharing out among ranks and micro-batches would weigh the tokens."""
        if batches[0][2] is None:
            return None
        targets = torch.stack([(targets_BT != IGNORED).sum() for _, targets_BT, _ in batches]).float()
        return targets / self.world.mean(targets.mean())

    def whole_model(self, shape: Any) -> Transformer | None:
        """The weights in float32 on the CPU, gathered from all ranks; None on every rank but the first."""
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self.model.parameters()), enabled=self.config.zero_stage == 3):
            if not self.world.first:
                return None
            whole = Transformer(shape)
            whole.load_state_dict({name: value.float().cpu() for name, value in self.model.state_dict().items()})
            return whole.eval()
