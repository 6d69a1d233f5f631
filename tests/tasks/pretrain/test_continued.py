"""A base that is trained on: the same losses as transformers' own module, the same weights by every engine, a report of
what changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from models.convert import from_transformers
from models.pretrained import load_pretrained
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.token_sources import write_sources
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.base import _change, shape_of_base
from tasks.pretrain.loader import open_loader
from tasks.pretrain.recipe.schedule import learning_rate
from tasks.stage.output import Output
from tasks.stage.runtime import PretrainRuntime
from tests.tasks.pretrain.tiny_training import losses_of, make_data, output
from tests.tasks.tiny_model import make_model

STEPS = 20
SETTINGS: dict[str, Any] = {
    "model": None,
    "context": 32,
    "steps": STEPS,
    "global_batch": 4,
    "warmup_steps": 3,
    "learning_rate": 1e-3,
    "validation_every": 10,
    "validation_tokens": 256,
    "sample_tokens": 4,
}
CONFIG = PretrainConfig.model_validate(SETTINGS)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2, "rope_theta": 50_000.0, "norm_eps": 1e-6},
    "gpt2": {},
    "mistral": {"sliding_window": 16, "tie_embeddings": False},
    "qwen3": {"head_size": 24, "rope_theta": 1e6},
    "qwen3_moe": {"head_size": 24, "experts": 4, "experts_per_token": 2, "expert_feed_forward": 32},
    "gemma3": {"head_size": 24, "sliding_window": 16, "global_every": 2},
    "olmo3": {"sliding_window": 16, "global_every": 2},
}
# transformers' module has none of the routers' losses
ONLY = {family: {"balance_loss": 0.0, "router_z_loss": 0.0} if family == "qwen3_moe" else {} for family in FAMILIES}


def documents(folder: Path) -> tuple[Artifact, Artifact]:
    """Token shards of two sources, also in what is held out, and their tokenizer."""
    tokens, tokenizer = make_data(folder)
    for path in tokens.files("validation/*.tokens"):
        write_sources(path.with_suffix(".sources"), ["even", "odd"] * 3)
    return Artifact.at(tokens.path), tokenizer  # whose digest has these files too


def made(folder: Path, family: str = "llama") -> tuple[Artifact, Artifact]:
    """`documents`, and a base with their tokenizer."""
    tokens, _ = documents(folder)
    base = folder / family
    if not base.exists():
        make_model(base, family=family, context=64, **FAMILIES[family])
        settings = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps({**settings, "gristmill_base": "a base"}))
    return tokens, Artifact.at(base)


def trained(folder: Path, out: Path, family: str = "llama", **runtime: Any) -> Output:
    written = output(out, engine="ddp", **runtime) if "engine" not in runtime else output(out, **runtime)
    pretrain.function(CONFIG.model_copy(update=ONLY[family]), *made(folder, family), written)
    return written


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_those_of_transformers_on_the_same_batches(family: str, tmp_path: Path) -> None:
    out = trained(tmp_path, tmp_path / "out", family)
    losses = their_losses(*made(tmp_path, family))
    assert losses_of(out) == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.1


def their_losses(tokens: Artifact, base: Artifact) -> list[float]:
    """The losses of transformers' own module, trained by a plain loop with the same settings."""
    theirs: Any = load_pretrained(base.path).train()
    theirs.config._attn_implementation = "eager"
    matrices = [one for one in theirs.parameters() if one.dim() > 1]
    vectors = [one for one in theirs.parameters() if one.dim() == 1]
    groups = [{"params": matrices, "weight_decay": CONFIG.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(CONFIG.beta1, CONFIG.beta2), eps=CONFIG.epsilon)
    digest = json.loads((base.path / "config.json").read_text())["gristmill_tokenizer_digest"]
    loader = open_loader(tokens.files("train/*.tokens"), CONFIG, context=32, tokenizer_digest=digest)
    losses = []
    for step in range(1, STEPS + 1):
        ((ids, targets, _),) = loader.micro_batches(step, rank=0, ranks=1, size=4)
        logits = theirs(torch.from_numpy(ids.copy())).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets.copy()).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), CONFIG.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(CONFIG, step, STEPS)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("family", FAMILIES)
def test_the_result_is_the_base_but_for_its_weights(family: str, tmp_path: Path) -> None:
    out = trained(tmp_path, tmp_path / "out", family)
    _, base = made(tmp_path, family)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base.path, out.path / "model"))
    assert after == {**before, "dtype": "float32"}
    assert after["gristmill_base"] == "a base"
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (out.path / "model" / name).read_bytes() == (base.path / name).read_bytes()
    one, other = (from_transformers(load_pretrained(folder)) for folder in (base.path, out.path / "model"))
    changed = [name for name, value in one.state_dict().items() if not torch.equal(value, other.state_dict()[name])]
    assert len(changed) == len(one.state_dict())
    assert one.shape == other.shape
    assert one.shape.context == 64


def test_what_changed_is_reported_by_source(tmp_path: Path) -> None:
    out = trained(tmp_path, tmp_path / "out")
    measured = out.counts["held_out_bits_per_token"]  # the shards of a test have no table of bytes
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


def test_a_context_beyond_the_bases_is_refused(tmp_path: Path) -> None:
    _, base = made(tmp_path)
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
def test_every_engine_begins_with_the_base(runtime: dict[str, Any], tmp_path: Path) -> None:
    alone = trained(tmp_path, tmp_path / "alone")
    other = trained(tmp_path, tmp_path / "other", **runtime)
    assert losses_of(other) == pytest.approx(losses_of(alone), abs=2e-5)
    one, two = (out.counts["held_out_bits_per_token"] for out in (alone, other))
    assert {name: each["before"] for name, each in two.items()} == {
        name: pytest.approx(each["before"], abs=1e-4) for name, each in one.items()
    }
