"""Settings that can't be combined are refused before anything starts, with the reason and a remedy."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.pretrain import PretrainConfig
from tasks.pretrain.check import check_runtime, check_special, is_shardable
from tests.runtimes import runtime_of
from tests.tasks.pretrain.tiny_training import CONFIG

EVEN = CONFIG.model_copy(update={"global_batch": 16, "model": CONFIG.new_model.model_copy(update={"kv_heads": 4})})


def check(**runtime: Any) -> None:
    """Of a profile with 4 heads and 2 blocks."""
    check_runtime(EVEN, runtime_of(device="cpu", **runtime))


@pytest.mark.parametrize(
    ("engine", "tensor", "pipeline", "context"), product(("ddp", "fsdp", "deepspeed"), *[(1, 2)] * 3)
)
def test_meshes_combine_or_are_refused_by_what_stands_in_the_way(
    engine: str, tensor: int, pipeline: int, context: int
) -> None:
    settings = {
        "engine": engine,
        "processes": 2 * tensor * pipeline * context,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
    }
    supported = {
        "ddp": pipeline == 1 or context == 1,
        "fsdp": pipeline == 1,
        "deepspeed": tensor == pipeline == context == 1,
    }
    if supported[engine]:
        check(**settings)
        return
    with pytest.raises(
        ConfigError, match=rf"which the engine {engine}.* does not support \(.+\)\. Set runtime\.pretrain\."
    ):
        check(**settings)


@pytest.mark.parametrize(
    ("settings", "says", "remedy"),
    [
        ({"pipeline_parallel": 2, "context_parallel": 2, "processes": 4}, "whole rows", "pipeline_parallel to 1"),
        ({"pipeline_parallel": 4, "processes": 4}, "pipeline_parallel is 4, but the model has 2 blocks", "no more"),
        (
            {"pipeline_parallel": 2, "processes": 2, "micro_batch": 16},
            "1 micro-batches, too few to fill 2 pipeline stages",
            "micro_batch",
        ),
        ({"tensor_parallel": 2, "processes": 3}, "3 devices can't be divided", "runtime.training.processes"),
        ({"engine": "fsdp", "compile": "reduce-overhead"}, "CUDA graphs", "compile to default"),
        ({"offload": "optimizer"}, "whole in every process", "fsdp, or to deepspeed with a zero_stage from 1 to 3"),
        ({"zero_stage": 2}, "it shards nothing", "deepspeed or fsdp"),
        ({"replicate": 2}, "does not form groups of shards", "engine to fsdp"),
    ],
    ids=str,
)
def test_a_refusal_says_why_and_what_to_set(settings: dict[str, Any], says: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check(**{"engine": "ddp", **settings})
    assert remedy in caught.value.remedy


def test_what_is_sharded_when_memory_runs_out_can_train_the_same() -> None:
    for engine, choices in product(
        ("ddp", "fsdp", "deepspeed"), ({"adamw", "auto"}, {"muon", "auto"}, {"adamw", "float16"})
    ):
        expected = choices == {"adamw", "auto"} or ("muon" in choices and engine != "deepspeed")
        assert is_shardable(choices, runtime_of(engine=engine).pretrain) == expected
        if expected:
            sharded = {"engine": "deepspeed", "zero_stage": 1} if engine == "deepspeed" else {"engine": "fsdp"}
            check_special(choices, runtime_of(**sharded).pretrain, cuda=False)


def test_checks_of_a_new_model_are_not_asked_for_a_base() -> None:
    config = PretrainConfig(model=None, steps=9, warmup_steps=2)
    with pytest.raises(ConfigError, match="preflight is always, but its checks are of a new model"):
        check_runtime(config, runtime_of(device="cpu", preflight="always"))
    check_runtime(config, runtime_of(device="cpu", preflight="auto"))
