"""A base that our decoder can't compute: transformers' own module, trained by our engines."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.foreign import ForeignDecoder, foreign_shape, foreign_weights
from models.pretrained import load_pretrained
from models.tokenizer import DIGEST_FIELD
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from storage.shards.token_stream import TokenStream
from tasks.pretrain import pretrain
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.recipe.optimizers import new_optimizer, set_learning_rate
from tasks.stage.output import Output
from tasks.stage.runtime import PretrainRuntime
from tasks.training.bits_per_byte import read_windows, spread_windows
from tasks.training.logs import read_log
from tests.tasks.interrupt import interrupt
from tests.tasks.pretrain.bases import CONFIG, FOREIGN, IN_TWO, made, plain_losses, trained
from tests.tasks.pretrain.recipe.test_optimizers import orthogonal
from tests.tasks.pretrain.tiny_training import losses_of, output

BY_MUON = CONFIG.model_copy(update={"optimizer": "muon"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("foreign")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], Output]:
    """The training of a family by one process."""
    return functools.cache(
        lambda family: trained(folder, folder / f"{family}-out", family, recompute="full", insight_every=10)
    )


@pytest.mark.soak_but("qwen2", "gemma2")
@pytest.mark.parametrize("family", FOREIGN)
def test_losses_are_those_of_transformers_on_the_same_batches(
    family: str, folder: Path, alone: Callable[[str], Output]
) -> None:
    tokens, base = made(folder, family)
    losses = plain_losses(load_pretrained(base.path).train(), tokens, base, CONFIG)
    assert losses_of(alone(family)) == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.1


def test_layers_are_recorded_under_the_names_of_transformers(alone: Callable[[str], Output]) -> None:
    row = read_log(alone("qwen2").aside / "insight.jsonl")[-1]
    assert row.keys() == {"step", "layers"}  # without attention's entropy, which only our decoder shows
    for part in ("self_attn", "mlp"):
        layer = row["layers"][f"theirs.model.layers.1.{part}"]
        assert layer.keys() >= {"rms", "gradient_norm", "weight_norm", "update_ratio"}


@pytest.mark.soak_but("qwen2", "gemma2")
@pytest.mark.parametrize("family", FOREIGN)
def test_the_saved_model_is_the_trained_one(family: str, folder: Path, alone: Callable[[str], Output]) -> None:
    tokens, base = made(folder, family)
    model = alone(family).path / "model"
    before, after = (json.loads((one / "config.json").read_text()) for one in (base.path, model))
    assert after == before
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (model / name).read_bytes() == (base.path / name).read_bytes()
    stream = TokenStream(tokens.files("validation/*.tokens"), tokenizer_digest=after[DIGEST_FIELD])
    windows = spread_windows(stream, 32, CONFIG.validation_tokens)
    ids, targets = read_windows(stream, windows, 32, len(windows))
    loss = torch.nn.functional.cross_entropy(load_pretrained(model)(ids).logits.flatten(0, 1), targets.flatten())
    assert read_log(alone(family).path / "log.jsonl")[-1]["validation_loss"] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize("family", FOREIGN)
def test_a_module_of_undefined_memory_is_restored_and_recomputing_changes_no_gradient(
    family: str, folder: Path
) -> None:
    _, base = made(folder, family)
    shape = foreign_shape(base.path)
    with torch.device("meta"):
        model = ForeignDecoder(base.path, shape)
    model.to_empty(device="cpu")
    for value in (*model.parameters(), *model.buffers()):
        value.data.fill_(math.nan)
    model.restore()
    parameters = dict(model.named_parameters())
    assert list(parameters) == list(shape.sizes)
    with torch.no_grad():
        for name, value in foreign_weights(base.path, shape):
            parameters[name].copy_(value)
    theirs: Any = load_pretrained(base.path)
    for one, other in zip(model.theirs.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(one, other)
    kinds = {buffer.dtype for buffer in model.buffers()}
    assert {buffer.dtype for buffer in model.bfloat16().buffers()} == kinds
    model.float()
    ids = torch.arange(64).view(2, 32) * 7 % 600
    targets = torch.roll(ids, -1, 1).masked_fill(ids % 3 == 0, -100)
    loss = torch.nn.functional.cross_entropy(theirs(ids).logits.flatten(0, 1), targets.flatten())
    assert float(model.eval()(ids, targets)) == pytest.approx(float(loss), abs=0.01)  # its weights were rounded
    assert float(model(ids, torch.full_like(ids, -100))) == 0
    gradients = []
    for model.recompute in ("none", "selective", "full"):
        gradients.append(torch.autograd.grad(model(ids, targets), list(model.parameters())))
    for gradient, *others in zip(*gradients, strict=True):
        assert all(torch.equal(gradient, other) for other in others)


@pytest.mark.parametrize(
    "engine",
    [
        {"engine": "ddp"},
        pytest.param({"engine": "fsdp", "zero_stage": 3}, marks=pytest.mark.soak),
        pytest.param({"engine": "deepspeed", "zero_stage": 0}, marks=pytest.mark.soak),
        pytest.param({"engine": "deepspeed", "zero_stage": 2}, marks=pytest.mark.soak),
        pytest.param({"engine": "deepspeed", "zero_stage": 3}, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_two_processes_learn_what_one_does_and_killed_they_end_with_the_same_bytes(
    engine: dict[str, Any],
    folder: Path,
    alone: Callable[[str], Output],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = trained(folder, tmp_path / "two", "qwen2", **IN_TWO, **engine)
    assert losses_of(two) == pytest.approx(losses_of(alone("qwen2")), abs=2e-5)
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill:1@8")
    killed = trained(folder, tmp_path / "killed", "qwen2", **IN_TWO, **engine)
    assert killed.facts["resumed_from_step"] == 6
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(two.path))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"engine": "ddp", **IN_TWO}, {"engine": "ddp"}),
        ({"engine": "ddp"}, {"engine": "fsdp", "zero_stage": 3, **IN_TWO}),
        ({"engine": "fsdp", "zero_stage": 3, **IN_TWO}, {"engine": "fsdp", "zero_stage": 3}),
    ],
    ids=["two to one", "to shards", "shards to one"],
)
def test_a_run_resumes_with_another_number_of_processes(
    before: dict[str, Any], after: dict[str, Any], folder: Path, alone: Callable[[str], Output], tmp_path: Path
) -> None:
    interrupt(pretrain, CONFIG, made(folder, "qwen2"), output(tmp_path, **before), at=8)
    out = trained(folder, tmp_path, "qwen2", **after)
    assert out.facts["resumed_from_step"] == 6
    assert losses_of(out) == pytest.approx(losses_of(alone("qwen2")), abs=2e-5)


@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_muon_takes_each_matrix_of_a_layer_and_of_an_expert_by_itself(family: str, folder: Path) -> None:
    _, base = made(folder, family)
    torch.manual_seed(1)
    model = ForeignDecoder(base.path, foreign_shape(base.path))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = new_optimizer(BY_MUON, model)
    set_learning_rate(optimizer.param_groups, BY_MUON.learning_rate)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    optimizer.step()
    for name, parameter in model.named_parameters():
        old, gradient = before[name].double(), gradients[name].double()
        decayed = old * (1 - BY_MUON.learning_rate * BY_MUON.weight_decay * (parameter.dim() > 1))
        if ".layers." in name and parameter.dim() > 1:
            rate = BY_MUON.learning_rate * 0.2 * math.sqrt(max(parameter.shape[-2:]))
            factors = torch.stack([orthogonal(each) for each in gradient.view(-1, *gradient.shape[-2:])])
            expected = decayed - rate * factors.view_as(old)
        else:
            expected = decayed - BY_MUON.learning_rate * gradient.sign()  # of Adam's first step
        assert torch.allclose(parameter.double(), expected, atol=1e-3 * BY_MUON.learning_rate), name


@pytest.mark.soak
@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_muon_on_shards_learns_what_it_learns_on_whole_matrices(family: str, folder: Path, tmp_path: Path) -> None:
    runtimes: list[dict[str, Any]] = [{}, IN_TWO, {**IN_TWO, "engine": "fsdp", "zero_stage": 3}]
    alone, *others = (
        losses_of(trained(folder, tmp_path / str(number), family, BY_MUON, **runtime))
        for number, runtime in enumerate(runtimes)
    )
    for losses in others:
        assert losses == pytest.approx(alone, abs=2e-5)


@pytest.mark.parametrize(
    ("config", "runtime", "said"),
    [
        ({}, {"tensor_parallel": 2}, "runtime.pretrain.tensor_parallel"),
        ({}, {"pipeline_parallel": 2}, "runtime.pretrain.pipeline_parallel"),
        ({}, {"context_parallel": 2}, "runtime.pretrain.context_parallel"),
        ({}, {"compile": "default"}, "runtime.pretrain.compile"),
        ({"precision": "float8"}, {}, "pretrain.precision float8"),
        ({"isolate_documents": True}, {}, "pretrain.isolate_documents"),
        ({"context": 65}, {}, "pretrain.context is 65"),
    ],
    ids=str,
)
def test_what_needs_our_decoder_is_refused_by_name(
    config: dict[str, Any], runtime: dict[str, Any], said: str, folder: Path
) -> None:
    _, base = made(folder, "qwen2")
    with pytest.raises(ConfigError, match=said):
        shape_of_base(base.path, CONFIG.model_copy(update=config), PretrainRuntime(**runtime))
