"""The memory of a step, traced without memory: what real tensors take, and what the arithmetic says of our decoder."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from models.activations import Numbers
from models.config import ModelConfig
from models.foreign import ForeignDecoder
from models.memory import Setup, most_memory, resident, training_memory
from models.memory.traced import TracedShape, traced_step, without_memory
from models.presets import Recompute, UntracedError, count_parameters, derive
from models.transformer import Transformer
from tests.models.live import LiveStorages

FLOAT32 = Numbers(4, 4, cuda=False)
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 700,
    "max_position_embeddings": 64,
}
SCALED = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Biases; a cap and windows; norms of heads and of outputs; parallel layers; norms after layers; scaled positions
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": {"head_dim": 16, "sliding_window": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 16},
    "phi": {},
    "olmo2": {},
    "llama": {"rope_scaling": SCALED},
}


def shape_of_family(family: str) -> TracedShape:
    from transformers import AutoConfig

    return TracedShape.of(AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]}))


SOME = [pytest.param(name, marks=() if name in ("qwen2", "gemma2") else pytest.mark.soak) for name in FAMILIES]


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_traced_step_takes_what_real_tensors_take(family: str, recompute: Recompute) -> None:
    shape = shape_of_family(family)
    told = shape.step(FLOAT32, 2, recompute)
    model = ForeignDecoder(shape.config, shape).train()
    model.recompute = recompute
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids_BT = torch.randint(0, shape.vocab_size, (2, shape.context))
    model(ids_BT, ids_BT).backward()  # caches
    gc.collect()
    with LiveStorages() as live:
        loss = model(ids_BT, ids_BT)
        kept, forward = live.size, live.peak
        loss.backward()
    assert told.blocks == pytest.approx(kept, rel=0.02)
    assert told.blocks + told.loss == pytest.approx(forward, rel=0.02)
    assert told.peak == pytest.approx(live.peak, rel=0.02)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_arithmetic_and_trace_of_our_decoder_agree(recompute: Recompute) -> None:
    shape = derive(ModelConfig(depth=3, width=64, heads=4, kv_heads=2, context=64), 700)
    with without_memory() as made:
        model = Transformer(shape)
        model.recompute = recompute
        ids_BT = torch.zeros(2, shape.context, dtype=torch.int64)
        traced = traced_step(made, model, lambda: model(ids_BT, ids_BT))
    setup = Setup(engine="ddp", precision="float32", micro_batch=2, micro_steps=2, recompute=recompute, cuda=False)
    memory = training_memory(shape, setup)
    assert max(memory.passing, memory.after) == pytest.approx(traced.peak, rel=0.03)


def test_engines_divide_a_foreign_model_as_they_do_ours() -> None:
    shape = shape_of_family("qwen2")
    whole = Setup(engine="ddp", precision="float32", micro_steps=2, cuda=False)
    alone, halves = (training_memory(shape, setup) for setup in (whole, Setup(**{**vars(whole), "devices": 2})))
    count = count_parameters(shape)
    assert (alone.weights, alone.gradients, alone.optimizer) == (4 * count, 4 * count, 8 * count)
    assert halves.buffers == 4 * count
    sharded = training_memory(shape, Setup(**{**vars(whole), "devices": 2, "engine": "fsdp", "zero_stage": 3}))
    assert sharded.weights == 4 * math.ceil(count / 2)
    assert 0 < sharded.gathered < 4 * count
    assert most_memory(shape, whole) == resident(alone.held, alone.total - alone.held, shape.spread)


def test_one_micro_batch_makes_its_gradients_itself() -> None:
    shape = derive(ModelConfig(depth=3, width=64, heads=4, context=64), 700)
    one, two = (
        training_memory(shape, Setup(engine="ddp", precision="float32", micro_steps=steps, cuda=False))
        for steps in (1, 2)
    )
    assert two.total - one.total == min(two.gradients, two.peak - two.after)


def test_a_module_that_cannot_run_without_memory_is_refused_by_name() -> None:
    shape = replace(shape_of_family("qwen2"), config=None)
    with pytest.raises(UntracedError, match="qwen2 can't be traced"):
        shape.step(FLOAT32, 1, "none")
