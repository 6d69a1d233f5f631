"""An adapter over a base that is trained on documents, and weights that stay frozen."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.estimates.arithmetic import shape_to_train
from models.foreign import foreign_shape
from models.presets import count_parameters, derive
from models.pretrained import load_config, load_pretrained
from profiles.load import load
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from tasks.base.source import shape_of_config
from tasks.export.formats.gguf.file import write_gguf
from tasks.pretrain import PretrainConfig
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.check import check_runtime
from tasks.pretrain.engines.initialise import adapt_with, initial_weights, whole_sizes
from tasks.pretrain.engines.trained import mark_trained, trained_sizes
from tasks.pretrain.setup import trained_share
from tasks.pretrain.spec import TrainSpec
from tasks.stage.output import Output
from tasks.stage.runtime import PretrainRuntime
from tests.runtimes import runtime_of
from tests.tasks.pretrain import bases
from tests.tasks.pretrain.bases import IN_TWO, made, plain_losses, trained
from tests.tasks.pretrain.tiny_training import MODEL, losses_of

LORA: dict[str, Any] = {"rank": 4, "alpha": 8}
ATTENTION = {"qwen3_moe": {"targets": ["q_proj", "v_proj"]}}  # experts aren't linear layers of transformers
STEPS = 12
SETTINGS = {**bases.SETTINGS, "steps": STEPS, "learning_rate": 1e-2}


def config_of(**choices: Any) -> PretrainConfig:
    return PretrainConfig.model_validate({**SETTINGS, **choices})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapter")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], Output]:
    """The training of an adapter over a base by one process."""
    config = config_of(adapter=LORA)
    return functools.cache(lambda family: trained(folder, folder / f"{family}-out", family, config))


def first_weights(base: Path, config: PretrainConfig) -> dict[str, torch.Tensor]:
    """What a run begins with, by transformers' names."""
    shape = shape_of_base(base, config, PretrainRuntime())
    spec = TrainSpec(
        config=config,
        runtime=runtime_of(engine="ddp"),
        shape=shape,
        steps=STEPS,
        tokens_digest="",
        tokenizer_digest="",
        train=[],
        validation=[],
        tokenizer=base,
        base=base,
        scratch=base,
        out=base,
    )
    found: dict[str, torch.Tensor] = {}
    initial_weights(spec, lambda name, values: found.update({name.removeprefix("theirs."): values.clone()}))
    assert {f"theirs.{name}": value.shape for name, value in found.items()} == dict(whole_sizes(shape))
    return found


def pefts_losses(tokens: Artifact, base: Artifact, config: PretrainConfig, **settings: Any) -> list[float]:
    """The losses of PEFT's own model, trained by a plain loop from the same first weights."""
    import peft

    chosen = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear", **settings)
    model: Any = peft.get_peft_model(load_pretrained(base.path), chosen).train()
    begun = first_weights(base.path, config)
    with torch.no_grad():
        for name, value in model.base_model.model.named_parameters():
            if name.endswith("magnitude_vector.default.weight"):  # which PEFT computes from the base
                assert torch.allclose(value, begun[name], atol=1e-6), name
            value.copy_(begun[name.replace(".original_module.", ".").replace(".modules_to_save.default.", ".")])
    return plain_losses(model, tokens, base, config)


def test_losses_are_those_of_peft_on_the_same_batches(folder: Path, alone: Callable[[str], Output]) -> None:
    losses = pefts_losses(*made(folder, "llama"), config_of(adapter=LORA))
    assert losses_of(alone("llama")) == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.05


KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rslora, qwen2": ("qwen2", {"rslora": True}, {"use_rslora": True}),
    "dora": ("mistral", {"dora": True}, {"use_dora": True}),
    "dora, transposed": ("gpt2", {"dora": True}, {"use_dora": True, "fan_in_fan_out": True}),
    "head": ("mistral", {"whole": ["head"]}, {"modules_to_save": ["lm_head"]}),
    "weights fused when loaded": ("mixtral", {"targets": ["q_proj"]}, {"target_modules": ["q_proj"]}),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_as_pefts(kind: str, folder: Path, tmp_path: Path) -> None:
    family, ours, theirs = KINDS[kind]
    config = config_of(adapter={**LORA, **ours})
    losses = pefts_losses(*made(folder, family), config, **theirs)
    assert losses_of(trained(folder, tmp_path / "out", family, config)) == pytest.approx(losses, abs=1e-5)


def test_the_adapter_is_merged_kept_and_counted(folder: Path, alone: Callable[[str], Output]) -> None:
    from peft import PeftModel

    _, base = made(folder, "llama")
    out = alone("llama")
    before: Any = load_pretrained(base.path)
    adapted: Any = PeftModel.from_pretrained(load_pretrained(base.path), out.path / "adapter")
    merged: Any = load_pretrained(out.path / "model")
    ids = torch.arange(32)[None] * 7 % 600
    assert torch.allclose(adapted(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-4)
    assert not torch.allclose(before(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-2)
    one, other = before.state_dict(), merged.state_dict()
    changed = {name.split(".")[-2] for name in one if not torch.equal(one[name], other[name])}
    assert changed == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    number = sum(value.numel() for name, value in adapted.named_parameters() if "lora_" in name)
    assert out.counts["trained_parameters"] == number
    assert out.counts["merged_logit_difference"] < 1e-4
    share = number / sum(value.numel() for value in adapted.parameters())
    assert f", {share:.2%} of them trained, " in out.counts["summary"]
    settings = json.loads((out.path / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == f"sha256:{base.digest}"
    kept, now = (json.loads((path / "config.json").read_text()) for path in (base.path, out.path / "model"))
    assert now == {**kept, "dtype": "float32"}
    for name in ("generation_config.json", "tokenizer.json"):
        assert (out.path / "model" / name).read_bytes() == (base.path / name).read_bytes()


@pytest.mark.soak
def test_parts_are_trained_whole_also_where_they_are_one_matrix(folder: Path, tmp_path: Path) -> None:
    """And a snapshot is a whole model too."""
    config = config_of(adapter={**LORA, "whole": ["embedding", "head", "norms"]}, snapshot_every=6)
    out = trained(folder, tmp_path / "out", "qwen2", config, checkpoint_every=6)
    _, base = made(folder, "qwen2")
    one, half, other = (
        load_pretrained(path).state_dict()
        for path in (base.path, out.path / "snapshots" / "step-6", out.path / "model")
    )
    for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight"):
        assert not torch.equal(one[name], half[name])
        assert not torch.equal(half[name], other[name])
    assert torch.equal(other["lm_head.weight"], other["model.embed_tokens.weight"])
    assert torch.equal(one["model.layers.0.self_attn.q_proj.bias"], other["model.layers.0.self_attn.q_proj.bias"])
    changed = sum(value.numel() for name, value in other.items() if "norm" in name or "embed" in name)
    lora = sum(4 * sum(value.shape) for name, value in one.items() if value.dim() == 2 and "proj" in name)
    assert out.counts["trained_parameters"] == changed + lora
    assert out.counts["parameters"] == sum(map(math.prod, foreign_shape(base.path).sizes.values())) + lora


ENGINES: list[dict[str, Any]] = [
    {"engine": "ddp"},
    {"engine": "fsdp", "zero_stage": 3},
    {"engine": "deepspeed", "zero_stage": 0},
    {"engine": "deepspeed", "zero_stage": 1},
    {"engine": "deepspeed", "zero_stage": 2},
    {"engine": "deepspeed", "zero_stage": 3},
]


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_two_processes_learn_what_one_does_and_killed_they_end_with_the_same_bytes(
    engine: dict[str, Any],
    folder: Path,
    alone: Callable[[str], Output],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(adapter=LORA, ema_decay=0.5)
    two = trained(folder, tmp_path / "two", "llama", config, **IN_TWO, **engine)
    assert losses_of(two) == pytest.approx(losses_of(alone("llama")), abs=2e-5)
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill:1@8")
    killed = trained(folder, tmp_path / "killed", "llama", config, **IN_TWO, **engine)
    assert killed.facts["resumed_from_step"] == 6
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(two.path))
    assert killed.counts["weights"] == two.counts["weights"]


FROZEN: list[tuple[str, dict[str, Any], set[str]]] = [
    ("mistral", {"parts": ["embedding", "norms"]}, {"embed_tokens", "layernorm", "norm"}),
    ("llama", {"layers": [0, 0]}, {"layers.0"}),
    ("gpt2", {"parts": ["embedding", "head"]}, {"wte", "wpe", "lm_head"}),
    ("qwen2", {"all_but_layers": [1, 1]}, {"layers.0", "embed_tokens", "model.norm", "lm_head"}),
    ("qwen3", {"all_but_layers": [1, 1], "parts": ["norms"]}, {"layers.0", "embed_tokens", "norm", "lm_head"}),
]


@pytest.mark.parametrize(
    ("family", "freeze", "kept"),
    [pytest.param(*one, marks=() if one[0] == "llama" else pytest.mark.soak) for one in FROZEN],
    ids=str,
)
def test_frozen_weights_stay_and_all_others_move(
    family: str, freeze: dict[str, Any], kept: set[str], folder: Path, tmp_path: Path
) -> None:
    out = trained(folder, tmp_path / "out", family, config_of(freeze=freeze))
    one, other = (load_pretrained(path).state_dict() for path in (made(folder, family)[1].path, out.path / "model"))
    stayed = {name for name, value in one.items() if torch.equal(value, other[name])}
    assert stayed == {name for name in one if any(part in name for part in kept)}
    parameters = load_pretrained(out.path / "model").named_parameters()  # a tied one once
    moved = sum(value.numel() for name, value in parameters if name not in stayed)
    assert out.counts["trained_parameters"] == moved


@pytest.mark.soak
def test_only_trained_weights_are_in_checkpoints_and_resumes_are_exact(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    config = config_of(freeze={"layers": [0, 0]})
    monkeypatch.setattr("tasks.pretrain.healing.supervisor.forget", lambda spec: None)
    whole = trained(folder, tmp_path / "whole", "llama", config)
    newest = max((whole.scratch / "checkpoints").glob("step-*"))
    saved = FileSystemReader(newest).read_metadata().state_dict_metadata
    shape = shape_of_base(made(folder, "llama")[1].path, config, PretrainRuntime())
    names = set(trained_sizes(shape, config, None))
    assert {name.partition("/")[0] for name in saved if not name.startswith("optimizer groups")} == names
    assert not any("blocks.0" in name for name in names)
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill:0@8")
    killed = trained(folder, tmp_path / "killed", "llama", config)
    assert killed.facts["resumed_from_step"] == 6
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(whole.path))


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *(
        ("llama", {"adapter": LORA, **config}, runtime, said)
        for config, runtime, said in (
            ({}, {"tensor_parallel": 2}, "runtime.pretrain.tensor_parallel needs all weights"),
            ({}, {"context_parallel": 2}, "runtime.pretrain.context_parallel needs all weights"),
            ({}, {"compile": "default"}, "runtime.pretrain.compile needs all weights"),
            ({"optimizer": "muon"}, {}, "pretrain.optimizer muon needs all weights"),
            ({"precision": "float8"}, {}, "pretrain.precision float8 needs all weights"),
            ({"isolate_documents": True}, {}, "pretrain.isolate_documents needs all weights"),
            ({"adapter": {"targets": ["c_attn"]}}, {}, "pretrain.adapter.targets has c_attn"),
            ({"adapter": {"rank": 65}}, {}, "pretrain.adapter.rank is 65"),
            ({"adapter": {**LORA, "whole": ["head"]}}, {}, "pretrain.adapter.whole has head, but .* are one matrix"),
        )
    ),
    ("llama", {"freeze": {"parts": ["embedding"]}}, {}, "pretrain.freeze.parts has embedding, but .* are one matrix"),
    ("llama", {"freeze": {"layers": [1, 2]}}, {}, "freeze.layers ends with layer 2, but the model has .* 0 to 1"),
    ("qwen2", {"freeze": {"all_but_layers": [2, 2]}}, {}, "pretrain.freeze.all_but_layers ends with layer 2"),
    (
        "gpt2",
        {"freeze": {"layers": [0, 1], "parts": ["embedding", "head", "norms"]}},
        {},
        "pretrain.freeze leaves nothing to train",
    ),
    ("llama", {"freeze": {"layers": [0, 0]}}, {"pipeline_parallel": 2}, "pipeline_parallel needs gradients in every"),
]


@pytest.mark.parametrize(("family", "config", "runtime", "said"), REFUSED, ids=str)
def test_what_cant_go_with_it_is_refused_by_name(
    family: str, config: dict[str, Any], runtime: dict[str, Any], said: str, folder: Path
) -> None:
    settings = runtime_of(**{"engine": "ddp", "processes": 2, **runtime})
    _, base = made(folder, family)

    def checked() -> None:
        check_runtime(config_of(**config), settings)
        shape_of_base(base.path, config_of(**config), PretrainRuntime())

    with pytest.raises(ConfigError, match=said):
        checked()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"adapter": LORA, "model": MODEL, "context": None}, "adapter is laid over a base"),
        ({"adapter": LORA, "freeze": {"layers": [0, 0]}}, "leave freeze out, or use adapter.whole"),
        ({"adapter": {"dropout": 0.1}}, "dropout draws at random"),
        ({"adapter": {"quantize": "nf4"}}, "quantize is for post-training"),
        ({"freeze": {}}, "it freezes nothing"),
        ({"freeze": {"layers": [1, 0]}}, "layers ends before it begins"),
        ({"freeze": {"layers": [0, 0], "all_but_layers": [1, 1]}}, "exclude each other"),
        ({"freeze": {"parts": ["head"], "all_but_layers": [1, 1]}}, "embedding and head already"),
    ],
    ids=str,
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config_of(**settings)


def test_a_new_model_with_frozen_parts_is_checked_before_it_is_made() -> None:
    model = {"model": MODEL, "context": None, "freeze": {"layers": [0, 2]}}
    with pytest.raises(ConfigError, match=r"freeze\.layers ends with layer 2"):
        check_runtime(config_of(**model), runtime_of(engine="ddp"))
    sizes = trained_sizes(
        derive(config_of(model=MODEL, context=None).new_model, 600),
        config_of(model=MODEL, context=None, freeze={"all_but_layers": [1, 1]}),
        None,
    )
    assert all(name.startswith("blocks.1.") for name in sizes)
    assert math.prod(sizes["blocks.1.attention.output.weight"]) == 64 * 64


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, {"freeze": freeze}) for family, freeze, _ in FROZEN if family != "qwen2"),
        ("llama", {"freeze": {"layers": [1, 1], "parts": ["norms"]}}),
        ("mistral", {"adapter": {**LORA, "dora": True, "whole": ["head", "norms"]}}),
    ],
    ids=str,
)
def test_a_plan_counts_the_trained_numbers(family: str, settings: dict[str, Any], folder: Path) -> None:
    _, base = made(folder, family)
    config = config_of(**settings)
    shape = shape_of_config(
        load_config(base.path), adapt_with(config.adapter), functools.partial(mark_trained, config=config)
    )
    sizes = trained_sizes(shape_of_base(base.path, config, PretrainRuntime()), config, base.path)
    number = sum(map(math.prod, sizes.values()))
    assert round(trained_share(config, shape) * count_parameters(shape)) == number


@pytest.mark.parametrize("form", ["folder", "gguf"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("balance_loss=0.1", "balance_loss is of the family qwen3_moe, not of llama"),
        ("freeze={layers: [0, 9]}", "the model has the layers 0 to 1"),
        ("freeze={parts: [embedding]}", "embedding and head are one matrix"),
        ("adapter={rank: 4, targets: [q_prj]}", "has q_prj, but the model's linear layers"),
    ],
)
def test_a_plan_refuses_what_a_base_in_a_folder_lacks(setting: str, said: str, form: str, folder: Path) -> None:
    _, base = made(folder, "llama")
    path = base.path
    if form == "gguf":
        path = folder / "llama.gguf"
        write_gguf(base.path, path, "f32")
    profile = load("continue", [f"base={{{form}: {path}}}", "pretrain.context=32", f"pretrain.{setting}"])
    with pytest.raises(ConfigError, match=said):
        shape_to_train(profile)
