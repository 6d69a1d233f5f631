"""A base that is trained on: the same losses as transformers' own module, the same weights by every engine, a report of
what changed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from models.convert import from_transformers
from models.pretrained import load_pretrained
from storage.errors import ConfigError
from tasks.pretrain.base import _change, shape_of_base
from tasks.stage.output import Output
from tasks.stage.runtime import PretrainRuntime
from tests.tasks.pretrain.bases import CONFIG, OURS, made, plain_losses, trained
from tests.tasks.pretrain.tiny_training import losses_of

# transformers' module has none of the routers' losses
ONLY = {"qwen3_moe": {"balance_loss": 0.0, "router_z_loss": 0.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("continued")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], Output]:
    """The training of a family by one process."""
    return functools.cache(
        lambda family: trained(folder, folder / f"{family}-out", family, CONFIG.model_copy(update=ONLY.get(family, {})))
    )


@pytest.mark.soak_but("llama", "qwen3_moe", "gemma3")  # tests/models has the logits and gradients of each family
@pytest.mark.parametrize("family", OURS)
def test_losses_are_those_of_transformers_on_the_same_batches(
    family: str, folder: Path, alone: Callable[[str], Output]
) -> None:
    tokens, base = made(folder, family)
    theirs: Any = load_pretrained(base.path).train()
    theirs.config._attn_implementation = "eager"
    losses = plain_losses(theirs, tokens, base, CONFIG)
    assert losses_of(alone(family)) == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.soak_but("llama", "qwen3_moe", "gemma3")
@pytest.mark.parametrize("family", OURS)
def test_the_result_is_the_base_but_for_its_weights(family: str, folder: Path, alone: Callable[[str], Output]) -> None:
    out, (_, base) = alone(family), made(folder, family)
    before, after = (json.loads((model / "config.json").read_text()) for model in (base.path, out.path / "model"))
    assert after == {**before, "dtype": "float32"}
    assert after["gristmill_base"] == "a base"
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (out.path / "model" / name).read_bytes() == (base.path / name).read_bytes()
    one, other = (from_transformers(load_pretrained(model)) for model in (base.path, out.path / "model"))
    changed = [name for name, value in one.state_dict().items() if not torch.equal(value, other.state_dict()[name])]
    assert len(changed) == len(one.state_dict())
    assert one.shape == other.shape
    assert one.shape.context == 64


def test_what_changed_is_reported_by_source(alone: Callable[[str], Output]) -> None:
    measured = alone("llama").counts["held_out_bits_per_token"]  # the shards of a test have no table of bytes
    assert measured.keys() == {"even", "odd"}
    for source in measured.values():
        assert source["after"] < source["before"] - 0.05
        assert source["low"] <= source["change"] <= source["high"]
        assert source["change"] == pytest.approx(source["after"] - source["before"], abs=1e-5)


def test_the_interval_of_a_change_is_that_of_scipy_for_equal_groups() -> None:
    before, after = np.array([9.0, 8.0, 7.5, 8.5, 9.5]), np.array([8.5, 7.75, 7.75, 8.0, 8.5])
    found = _change(before, after, np.full(5, 2.0))
    low, high = ttest_rel(after / 2, before / 2).confidence_interval(0.95)
    assert found == {
        "before": 4.25,
        "after": 4.05,
        "change": -0.2,
        "low": pytest.approx(low, abs=1e-6),
        "high": pytest.approx(high, abs=1e-6),
    }


def test_a_context_beyond_the_bases_is_refused(folder: Path) -> None:
    _, base = made(folder, "llama")
    longer = CONFIG.model_copy(update={"context": 65})
    with pytest.raises(ConfigError, match=r"pretrain.context is 65, but the base sees 64"):
        shape_of_base(base.path, longer, PretrainRuntime())


@pytest.mark.parametrize(
    "runtime",
    [
        {"engine": "fsdp", "zero_stage": 3, "processes": 2},
        pytest.param({"engine": "ddp", "processes": 2}, marks=pytest.mark.soak),
        pytest.param({"engine": "ddp", "tensor_parallel": 2, "processes": 2}, marks=pytest.mark.soak),
        {"engine": "deepspeed", "zero_stage": 0},
        pytest.param({"engine": "deepspeed", "zero_stage": 3, "processes": 2}, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_every_engine_begins_with_the_base(
    runtime: dict[str, Any], folder: Path, alone: Callable[[str], Output], tmp_path: Path
) -> None:
    other = trained(folder, tmp_path, "llama", **runtime)
    assert losses_of(other) == pytest.approx(losses_of(alone("llama")), abs=2e-5)
    one, two = (out.counts["held_out_bits_per_token"] for out in (alone("llama"), other))
    assert {name: each["before"] for name, each in two.items()} == {
        name: pytest.approx(each["before"], abs=1e-4) for name, each in one.items()
    }
