"""DeepSpeed's ZeRO 0 to 3, without just-in-time compilation.

DeepSpeed would compile a shared-memory operator (75 s of CPU) that only its inference uses, and its own Adam. Both are
turned off, the latter also for offloaded optimizer states. At stage 0 gradients are clipped here, since DeepSpeed would
not report their norm.

Gradients are summed in float32, over micro-batches and over ranks, as in the other engines. At stage 0 DeepSpeed can't
do so with weights in bfloat16, so weights stay in float32 under autocast.
"""

from __future__ import annotations

import importlib
import math
import shutil
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.foreign import ForeignDecoder
from models.memory import REDUCE_BUCKET
from models.presets import ModelShape
from models.transformer import Decoder
from storage.errors import TrainingError
from tasks.pretrain.config import AVERAGES
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.engines.initialise import allocate, empty_decoder, initial_weights, whole_sizes
from tasks.pretrain.engines.native import compile_blocks
from tasks.pretrain.engines.universal import Topology, convert, load_whole
from tasks.pretrain.recipe.optimizers import new_optimizer, set_learning_rate
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tasks.training.deepspeed_patches import Partition, decline_shared_memory_operator, float32_sums, sum_in_float32
from tasks.training.states_only import states_only


class DeepSpeedEngine(Engine):
    """ZeRO (Rajbhandari et al. 2020): stage 1 shards optimizer states over the processes, 2 gradients too, 3 weights
    too. From stage 1 on, 16-bit precisions store 16-bit weights, with float32 masters in the optimizer. float16 has
    dynamic loss scaling."""

    def __init__(self, spec: TrainSpec, world: World) -> None:
        super().__init__(spec, world)
        import deepspeed

        decline_shared_memory_operator()
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        self.zero_stage = spec.runtime.pretrain.zero_stage
        self.weight_dtype = self.dtype if self.zero_stage else torch.float32
        model = self._empty_model()
        self.sizes = dict(whole_sizes(self.spec.shape))
        self._initialise(model)
        if spec.runtime.pretrain.compiles:
            compile_blocks(model, spec.runtime.pretrain.compile)
        optimizer = new_optimizer(self.config, model, self.sizes)
        self.topology = Topology(
            self.zero_stage, world.size if self.zero_stage else 0, str(self.weight_dtype), _names(model, optimizer)
        )
        if self.dtype != self.weight_dtype:  # inside the model: DeepSpeed turns off autocast around it
            model.forward = torch.autocast(world.device.type, self.dtype)(model.forward)
        self.deepspeed, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=self._settings())
        if self.zero_stage == 1:
            sum_in_float32(self.deepspeed.optimizer)

    def _empty_model(self) -> Decoder:
        """The model without initial weights. At stage 3 each parameter of our own is sharded as soon as its layer is
        built, so that no rank ever holds the whole model. Those of transformers' modules are sharded as they are read:
        built like ours, their buffers would be rounded with the weights."""
        import deepspeed

        if self.zero_stage == 3 and isinstance(self.spec.shape, ModelShape):
            # Any operator may import it lazily, which fails inside Init, as that replaces Tensor.__new__
            importlib.import_module("torch._dynamo")
            with deepspeed.zero.Init(config_dict_or_path=self._settings()):
                return self.new_model()
        with torch.device("meta"):
            model = self.new_model()
        return allocate(model, self.world.device if self.zero_stage < 3 else torch.device("cpu"))

    def _initialise(self, model: Decoder) -> None:
        parameters = dict(model.named_parameters())
        if self.zero_stage == 3 and isinstance(model, ForeignDecoder):
            partition = Partition()
            initial_weights(
                self.spec, lambda name, drawn: partition.add(parameters[name], drawn.to(self.weight_dtype, copy=True))
            )
            for buffer in model.buffers():
                buffer.data = buffer.data.to(self.world.device)
            return

        def keep(name: str, drawn: Tensor) -> None:
            with self._whole(parameters[name], changed=True):
                parameters[name].copy_(drawn)  # of a sharded one, rank 0's values are broadcast on exit

        initial_weights(self.spec, keep)

    def _whole(self, parameter: nn.Parameter, *, changed: bool = False) -> AbstractContextManager[object]:
        """A context in which `parameter` is whole on every rank. With `changed`, what rank 0 writes is kept."""
        import deepspeed

        if self.zero_stage < 3:
            return nullcontext()
        gathered: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=0 if changed else None
        )
        return gathered

    def _settings(self) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": self.zero_stage, "reduce_bucket_size": REDUCE_BUCKET}
        if self.spec.runtime.pretrain.offload == "optimizer":
            zero["offload_optimizer"] = {"device": "cpu"}
        return {
            "train_batch_size": self.config.global_batch,
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.micro_steps,
            "gradient_clipping": self.config.gradient_clip if self.zero_stage else 0.0,
            "zero_optimization": zero,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": self.weight_dtype == torch.bfloat16},
            "fp16": {"enabled": self.weight_dtype == torch.float16},
            **float32_sums(self.zero_stage),
            "steps_per_print": None,
        }

    @property
    def layout(self) -> Mapping[str, int | str]:
        """The same for any number of processes and any stage: loading converts states."""
        return {"states": "deepspeed"}

    @property
    def model(self) -> Decoder:  # type: ignore[override]
        """The module in training. Under ZeRO 3 no rank has all of its weights."""
        return self.deepspeed.module

    def step(self, batches: list[MicroBatch], learning_rate: float) -> tuple[Tensor, Tensor]:
        set_learning_rate(self.deepspeed.optimizer.param_groups, learning_rate)
        # The number of micro-batches varies during batch warmup
        self.deepspeed.set_train_batch_size(len(batches) * self.micro_batch * self.data_ranks)
        total = torch.zeros((), device=self.world.device)
        norm = torch.zeros(())
        weights = self.weights(batches)
        for number, batch in enumerate(batches, 1):
            # DeepSpeed's own count, modulo their number, is off once batch warmup has changed that number
            self.deepspeed.set_gradient_accumulation_boundary(number == len(batches))
            loss = self.deepspeed(*batch)
            if weights is not None:
                loss = loss * weights[number - 1]
            self.deepspeed.backward(loss)
            if self.zero_stage == 0 and number == len(batches):
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip)
            self.deepspeed.step()
            total += loss.detach()
        if self.zero_stage:
            # While the loss scale is too large
            skipped = self.dtype == torch.float16 and self.deepspeed.optimizer.overflow
            norm = torch.as_tensor(math.inf if skipped else self.deepspeed.get_global_grad_norm())
        return total / len(batches), norm.detach()

    @torch.no_grad()
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        self.deepspeed.eval()
        measured: Tensor = self.deepspeed(ids_BT, targets_BT)
        self.deepspeed.train()
        return measured

    def save(self, folder: Path) -> None:
        """Write DeepSpeed's format, with the folder's name as its tag."""
        self.deepspeed.save_checkpoint(
            str(folder.parent), tag=folder.name, save_latest=False, exclude_frozen_parameters=not self.config.trains_all
        )
        if self.world.first:
            self.topology.write(folder)

    def load(self, folder: Path) -> None:
        """Load states, converting those of another topology. Raises TrainingError if DeepSpeed finds none."""
        saved = Topology.read(folder)
        if saved == self.topology:
            self._load(folder)
        else:
            self._load_converted(folder, saved)

    def _load_converted(self, folder: Path, saved: Topology) -> None:
        optimizer = self.deepspeed.optimizer
        together = self.spec.scratch / "universal" / folder.name
        if self.world.first:
            sizes = {name: self.sizes[name] for group in self.topology.groups for name in group}
            convert(folder, together, saved, optimizer.param_groups, sizes)
        self.world.wait()
        if self.zero_stage == 0:
            load_whole(together, self.model, optimizer, self.topology)
        else:
            before = [dict(group) for group in optimizer.param_groups]
            self.deepspeed._config.load_universal_checkpoint = True  # for this load only
            self._load(together)
            self.deepspeed._config.load_universal_checkpoint = False
            if self.zero_stage == 3:
                self._load_averages(together)
            # At stage 3 DeepSpeed gives every group the settings of the first, weight decay included, and all states
            # one step counter, which every parameter would then advance
            for group, kept in zip(optimizer.param_groups, before, strict=True):
                group |= {key: value for key, value in kept.items() if key != "params"}
            for state in optimizer.optimizer.state.values():
                state["step"] = state["step"].clone()
        self.world.wait()
        if self.world.first:
            shutil.rmtree(together.parent)

    def _load_averages(self, folder: Path) -> None:
        """At stage 3 DeepSpeed loads none but Adam's states from a converted checkpoint."""
        optimizer = self.deepspeed.optimizer
        for master, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
            for name in AVERAGES:
                folders = [folder / "zero" / optimizer.param_names[parameter] for parameter in parameters]
                if (folders[0] / f"{name}.pt").exists():
                    with states_only(deepspeed=True):
                        parts = [
                            optimizer.load_hp_checkpoint_state(str(place), name, param=parameter)
                            for place, parameter in zip(folders, parameters, strict=True)
                        ]
                    self.states[master][name] = torch.cat(parts).to(master.device)

    def _load(self, folder: Path) -> None:
        with states_only(deepspeed=True):
            path, _ = self.deepspeed.load_checkpoint(
                str(folder.parent), tag=folder.name, load_module_strict=self.config.trains_all
            )
        if path is None:
            raise TrainingError(
                f"DeepSpeed found no checkpoint in {folder}.", f"Delete {folder.parent} to start from scratch."
            )

    def masters(self) -> list[Tensor]:
        optimizer = self.deepspeed.optimizer
        if self.zero_stage == 3:
            return list(optimizer.fp32_partitioned_groups_flat)
        if self.zero_stage:
            return list(optimizer.single_partition_of_fp32_groups)
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    @property
    def states(self) -> MutableMapping[Tensor, dict[str, Any]]:
        optimizer = self.deepspeed.optimizer
        states: MutableMapping[Tensor, dict[str, Any]] = (optimizer.optimizer if self.zero_stage else optimizer).state
        return states

    def masters_changed(self) -> None:
        """Copy them to the weights that the model computes with, as DeepSpeed does after a step."""
        optimizer = self.deepspeed.optimizer
        if self.zero_stage == 3:
            optimizer._partition_all_parameters()
            for number in range(len(optimizer.fp32_partitioned_groups_flat)):
                optimizer._reassign_or_swap_out_partitioned_parameters(number)
            if small := optimizer.persistent_parameters:
                small[0].all_gather(small)
        elif self.zero_stage:
            optimizer.update_lp_params()

    def free_states(self) -> None:
        """Nothing: they are parts of DeepSpeed's flat buffers."""

    @torch.no_grad()
    def whole_model(self) -> Decoder | None:
        """Gather a parameter at a time."""
        whole = empty_decoder(self.spec, torch.device("cpu")) if self.world.first else None
        places = dict(whole.named_parameters()) if whole is not None else {}
        for name, parameter in self.model.named_parameters():
            with self._whole(parameter):
                if whole is not None:
                    places[name].copy_(parameter)
        return whole.eval() if whole is not None else None


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[tuple[str, ...], ...]:
    by_parameter = {parameter: name for name, parameter in model.named_parameters()}
    return tuple(tuple(by_parameter[held] for held in group["params"]) for group in optimizer.param_groups)
