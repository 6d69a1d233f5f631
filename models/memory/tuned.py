"""The memory of a step of post-training: a module of transformers under TRL's head, run on tensors without memory.

TRL's head (`trl.kernels.ChunkedLogProbFunction`) computes tiles of logits, and again in the backward pass. Importing
it takes seconds, so what it allocates is written here by number. A test compares it with TRL's.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from models.activations import Activations, Numbers
from models.memory.traced import TracedShape, filled, one_text_in_a_row, traced_step, without_memory
from models.presets import Recompute

TILE = 4096, 32_768  # tokens and ids of the vocabulary
# Float32 copies of a tile at the peak of each pass, and one more if logits are capped. A GPU's kernel makes none
FOLDED_FORWARD, FOLDED_BACKWARD, CAPPED = 3.25, 7.25, 1.0


# TRL's head, all logits of a policy, those of a student and its teacher, or a number for each text
Head = Literal["folded", "policy", "student", "score"]


@dataclass(frozen=True)
class TunedShape(TracedShape):
    """A shape whose steps are those of post-training, with rows of the whole context."""

    rows: int = 1  # of a pair: 2 for a preferred and a rejected answer
    measured: int = 0  # pairs in a forward pass of validation
    head: Head = "folded"

    @property
    def spread(self) -> float:
        """The process keeps what it freed. Most of it are tiles of logits, which fit where the last ones were."""
        return 1.22 if self.adapt is None else 1.4

    def _trace(self, form: Numbers, micro_batch: int, recompute: Recompute) -> Activations:
        traced = partial(self._traced, form, micro_batch, recompute)
        kept, loss, backward, measured = of_whole(self, traced) or traced(self._module())
        beyond = measured - kept - 4 * self.learned  # without gradients
        return Activations(kept, max(loss, beyond), backward)

    def _traced(self, form: Numbers, micro_batch: int, recompute: Recompute, module: Any) -> tuple[int, int, int, int]:
        """Bytes that the forward pass keeps, what the loss and the backward pass need beyond these, and the peak of a
        validation."""
        with without_memory() as made, one_text_in_a_row():
            model = filled(module)
            if recompute == "full":
                model.gradient_checkpointing_enable()
                model.enable_input_require_grads()
            step = traced_step(made, model, lambda: self._loss(model, micro_batch, form))
            held = made.peak = made.now
            if self.measured:
                with torch.no_grad():
                    self._loss(model.eval(), self.measured, form)
            return step.blocks, step.loss, step.backward, made.peak - held

    def _module(self) -> Any:
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32, trust_remote_code=False).train()
            if self.adapt is not None:
                model.requires_grad_(False)
                self.adapt(model)
        return model

    def _loss(self, model: Any, pairs: int, form: Numbers) -> Tensor:
        ids_BT = torch.zeros(self.rows * pairs, self.context, dtype=torch.int64)
        with torch.autocast("cpu", torch.bfloat16) if form.autocast else nullcontext():
            seen = model.base_model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), use_cache=False)
            hidden_NC = seen.last_hidden_state[:, :-1].flatten(0, 1)
            if self.head == "score":
                return hidden_NC.sum()
            if self.head != "folded":
                return _of_logits(model.get_output_embeddings()(hidden_NC), self.head)
            capped = getattr(self.config.get_text_config(), "final_logit_softcapping", None) is not None
            losses_N: Tensor = _Head.apply(hidden_NC, model.get_output_embeddings().weight, form, capped)  # type: ignore[no-untyped-call]
            return losses_N.sum()


def of_whole(shape: TunedShape, traced: Callable[[Any], tuple[int, ...]]) -> tuple[int, ...] | None:
    """The traced bytes of a deep model, from those of two shallow ones: each further layer, or group of layers of other
    kinds, adds as much as the last. None for a model whose layers differ otherwise, or are few."""
    depth, text = shape.config.num_hidden_layers, shape.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * depth
    group = next(size for size in range(1, depth + 1) if all(kinds[n] == kinds[n % size] for n in range(depth)))
    least = next(few for few in range(max(2, group), depth + 1) if (depth - few) % group == 0)
    if 2 * least + group >= depth or not _alike(shape._module(), group):
        return None
    few, more = (traced(_shallow(shape, layers)) for layers in (least, least + group))
    return tuple(one + (other - one) * (depth - least) // group for one, other in zip(few, more, strict=True))


def _shallow(shape: TunedShape, layers: int) -> Any:
    config = copy.deepcopy(shape.config)
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return replace(shape, config=config)._module()


def _alike(model: Any, group: int) -> bool:
    """Whether each layer has the parameters of the one a group before it, as far as numbers in names say."""
    layers: dict[int, list[Any]] = defaultdict(list)
    for name, value in model.named_parameters():
        if found := re.search(r"\.(\d+)\.", name):
            layers[int(found[1])].append((name[found.end() :], value.shape, value.requires_grad))
    return all(layers[number] == layers[number % group] for number in layers)


def _of_logits(logits_NV: Tensor, head: Head) -> Tensor:
    log_NV = logits_NV.float().log_softmax(-1)
    if head == "policy":
        return log_NV.gather(-1, torch.zeros(len(log_NV), 1, dtype=torch.int64)).sum()
    theirs_NV = torch.empty_like(logits_NV).float().log_softmax(-1)
    return (theirs_NV.exp() * (theirs_NV - log_NV)).sum()


class _Head(torch.autograd.Function):
    """Allocates what TRL's head does."""

    @staticmethod
    def forward(ctx: Any, hidden_NC: Tensor, weight_VC: Tensor, form: Numbers, capped: bool) -> Tensor:
        ctx.save_for_backward(hidden_NC, weight_VC)
        ctx.form, ctx.folded = form, FOLDED_BACKWARD + CAPPED * capped
        _tiles(hidden_NC, weight_VC, form, FOLDED_FORWARD)
        return hidden_NC.new_empty(len(hidden_NC), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden_NC, weight_VC = ctx.saved_tensors
        of_hidden_NC = torch.empty_like(hidden_NC, dtype=torch.float32)
        of_weight_VC = torch.empty_like(weight_VC) if ctx.needs_input_grad[1] else None
        _tiles(hidden_NC, weight_VC, ctx.form, ctx.folded)
        return of_hidden_NC.to(hidden_NC.dtype), of_weight_VC, None, None


def _tiles(hidden_NC: Tensor, weight_VC: Tensor, form: Numbers, folded: float) -> None:
    tokens, ids = min(len(hidden_NC), TILE[0]), min(len(weight_VC), TILE[1])
    if form.cuda:
        torch.empty(tokens, TILE[1], dtype=torch.bfloat16 if form.product == 2 else torch.float32)
        return
    torch.empty(int((form.product + 4 * folded) * tokens * ids), dtype=torch.uint8)  # pages that it writes
