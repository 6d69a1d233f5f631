"""Every engine, and every way to compute a step, learns on a GPU what plain torch learns on a CPU in float64."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tasks.pretrain.world import World
from tests.gpu.training import expected, learned, spec_on

STEPS = 8
EXACT = 1e-4  # nats a token, in float32
ROUNDED = 0.03  # in 16 bits: eight significant bits, over losses of about four nats

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp": {"engine": "fsdp"},
    "fsdp, gathered twice": {"engine": "fsdp", "zero_stage": 3},
    "fsdp, offload": {"engine": "fsdp", "offload": "optimizer"},
    **{f"zero {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(4)},
}
WAYS: dict[str, dict[str, Any]] = {
    "compiled": {"compile": "default"},
    "graphs": {"compile": "reduce-overhead"},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "compiled, selective": {"compile": "default", "recompute": "selective"},
    "compiled, full": {"compile": "default", "recompute": "full"},
    "graphs, selective": {"compile": "reduce-overhead", "recompute": "selective"},
    "tuned": {"compile": "max-autotune"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "every head its own keys": {"kv_heads": 4},
    "gpt2": {"family": "gpt2", "kv_heads": None, "feed_forward": None},
    "sliding window": {"family": "mistral", "sliding_window": 5},
    "head size": {"family": "qwen3", "head_size": 64},
    "experts": {"family": "qwen3_moe", "feed_forward": None, "experts": 4, "expert_feed_forward": 32},
    "local and global": {"family": "gemma3", "head_size": 64},
    "joint norms": {"family": "olmo3"},
    "heads that flash attention lacks": {"width": 80},
    "window as wide as the context": {"family": "mistral", "sliding_window": 64},
}


def need(engine: str) -> None:
    if engine == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_learns_what_plain_torch_learns(name: str, precision: str, world: World, device: str) -> None:
    need(ENGINES[name]["engine"])
    spec = spec_on(device, runtime=ENGINES[name], precision=precision)
    allowed = EXACT if precision == "float32" else ROUNDED
    assert learned(spec, world, STEPS) == pytest.approx(expected(spec, STEPS), abs=allowed)


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_compute_a_step_changes_no_loss(way: str, world: World, device: str) -> None:
    if device == "cpu" and "compile" in WAYS[way]:
        pytest.skip("compiled code is what a GPU's tests are for")
    spec = spec_on(device, runtime={"engine": "ddp", **WAYS[way]}, precision="float32")
    assert learned(spec, world, STEPS) == pytest.approx(expected(spec, STEPS), abs=EXACT)


@pytest.mark.parametrize("how", ["default", "reduce-overhead"])
@pytest.mark.parametrize("isolated", [False, True])
def test_nor_does_compiling_in_16_bits(isolated: bool, how: str, world: World, device: str) -> None:
    """CUDA graphs are recorded again for other numbers of documents."""
    if device == "cpu":
        pytest.skip("compiled code is what a GPU's tests are for")
    spec = spec_on(device, runtime={"engine": "ddp", "compile": how}, precision="bfloat16", isolate_documents=isolated)
    found = learned(spec, world, STEPS, isolated=isolated)
    assert found == pytest.approx(expected(spec, STEPS, isolated=isolated), abs=ROUNDED)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_attention_is_right(shape: str, precision: str, isolated: bool, world: World, device: str) -> None:
    """Kernels differ by mask, by heads that share keys, and by precision."""
    if device == "cpu" and precision == "float16":
        pytest.skip("a GPU's precision")
    spec = spec_on(device, model=SHAPES[shape], precision=precision, isolate_documents=isolated)
    allowed = EXACT if precision == "float32" else ROUNDED
    found = learned(spec, world, STEPS, isolated=isolated)
    assert found == pytest.approx(expected(spec, STEPS, isolated=isolated), abs=allowed)
