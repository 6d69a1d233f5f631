"""Pruning: importance equals a measurement by hand, and leaving out unused parts changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.convert import load
from models.pretrained import head_size, load_pretrained
from storage.artifact import Artifact
from storage.errors import ConfigError, EmptyOutput
from tasks.posttrain.prune import PruneConfig, prune
from tasks.posttrain.prune.cut import check_sizes, choose, cut
from tasks.posttrain.prune.importance import importance
from tasks.stage.output import Output
from tests.tasks.foreign import make_foreign
from tests.tasks.tiny_model import RUNTIME, make_instructions, make_model

ROWS = [[7, 30, 9, 200, 41, 12], [90, 3, 55], [301, 2, 77, 18, 250, 6, 31, 44]]
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # without biases, with them, with norms of heads


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_foreign(tmp_path_factory.mktemp("model"), request.param, num_hidden_layers=3)
    return load_pretrained(folder).eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(torch.tensor([row])).logits[0] for row in ROWS])


def pruned(model: Any, spoil: Callable[[Any], None], **kept: int) -> tuple[Any, Any]:
    """The model after `spoil`, which makes some of its parts useless, and the pruned one."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        with torch.no_grad():
            spoil(model)
        whole, config = logits(model), PruneConfig(**kept)
        smaller = cut(model, config, choose(config, model.config, importance(model, ROWS)))
        return whole, smaller
    finally:
        model.load_state_dict(state)


def no_layer(model: Any) -> None:
    for matrix in (model.model.layers[1].self_attn.o_proj, model.model.layers[1].mlp.down_proj):
        matrix.weight.zero_()


def no_neurons(model: Any) -> None:
    for number, layer in enumerate(model.model.layers):
        layer.mlp.up_proj.weight[number % 2 :: 2].zero_()


def no_kv_head(model: Any) -> None:
    first = head_size(model.config)
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight[:first].zero_()
        if layer.self_attn.v_proj.bias is not None:
            layer.self_attn.v_proj.bias[:first].zero_()


def no_channels(model: Any) -> None:
    model.model.embed_tokens.weight[:, 5:21].zero_()
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[5:21].zero_()
        layer.mlp.down_proj.weight[5:21].zero_()


@pytest.mark.parametrize(
    ("spoil", "kept"), [(no_layer, {"layers": 2}), (no_neurons, {"feed_forward": 64}), (no_kv_head, {"kv_heads": 1})]
)
def test_what_changes_nothing_is_left_out_first(model: Any, spoil: Callable[[Any], None], kept: dict[str, int]) -> None:
    whole, smaller = pruned(model, spoil, **kept)
    assert logits(smaller).sub(whole).abs().max() < 1e-5
    assert smaller.num_parameters() < model.num_parameters()


def test_channels_that_hold_nothing_are_left_out_first(model: Any) -> None:
    whole, smaller = pruned(model, no_channels, width=48)
    norms = [module for name, module in smaller.named_modules() if name.endswith(("layernorm", "model.norm"))]
    with torch.no_grad():
        for norm in norms:  # a root mean square is over fewer channels now
            norm.weight *= math.sqrt(64 / 48)
            norm.variance_epsilon *= 64 / 48
    assert logits(smaller).sub(whole).abs().max() < 1e-4


def test_importance_is_what_a_hand_would_measure(model: Any) -> None:
    found = importance(model, ROWS)
    angles, tokens = 0.0, 0
    with torch.no_grad():
        for row in ROWS:
            hidden = model(torch.tensor([row]), output_hidden_states=True).hidden_states
            for before, after in zip(hidden[1][0].double(), hidden[2][0].double(), strict=True):
                angles += 1 - float(before @ after / before.norm() / after.norm())
            tokens += len(row)
    assert float(found.layers[1]) == pytest.approx(angles / tokens, rel=1e-6)
    assert found.kv_heads[0].shape == (2,)
    assert found.neurons[0].shape == (128,)
    assert found.channels.shape == (64,)


def test_what_can_not_be_cut_is_refused_by_name(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prune\.layers is 9, but the model has 3"):
        check_sizes(PruneConfig(layers=9), model.config)
    other = load_pretrained(make_foreign(tmp_path / "gpt2", "gpt2"))
    with pytest.raises(ConfigError, match="architecture gpt2"):
        check_sizes(PruneConfig(layers=1), other.config)
    with pytest.raises(ValueError, match="leaves nothing out"):
        PruneConfig()


def test_the_stage_leaves_a_smaller_model_and_says_what_it_lost(tmp_path: Path) -> None:
    model, pairs = make_model(tmp_path / "base" / "model"), make_instructions(tmp_path / "pairs")
    out = Output.at(tmp_path / "out", stage="prune", runtime=RUNTIME)
    prune.function(
        PruneConfig(layers=1, feed_forward=96, calibration_rows=20), Artifact.at(model), Artifact.at(pairs), out
    )
    shape = load(out.path / "model").shape
    assert (shape.depth, shape.feed_forward) == (1, 96)
    assert out.counts["parameters"] < out.counts["parameters_before"]
    assert out.counts["loss_after"] != out.counts["loss_before"]
    assert [row[""] for row in out.counts["tables"]["Layers"]].count("kept") == 1
    with pytest.raises(EmptyOutput, match="192 conversations fit the context, but prune needs 400"):
        prune.function(PruneConfig(layers=1, calibration_rows=400), Artifact.at(model), Artifact.at(pairs), out)
