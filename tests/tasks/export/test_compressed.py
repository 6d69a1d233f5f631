"""Formats of compressed-tensors: the layout is the package's own, and each method loses less than plain rounding."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.pretrained import load_pretrained, stored_weights
from storage.artifact import Artifact
from storage.digests import file_digest
from storage.errors import ConfigError, ParityError
from tasks.export import ExportConfig, export
from tasks.export.formats import FORMATS
from tasks.export.formats.compressed.checkpoint import dense_tensors
from tasks.export.formats.source import Source
from tasks.export.proof.reference import Reference
from tasks.export.run import prove
from tasks.stage.output import Output
from tests.tasks.foreign import make_foreign
from tests.tasks.tiny_model import RUNTIME, make_model, make_validation

METHODS = ("w4a16", "gptq", "awq", "w8a8")


def windows(vocabulary: int, lengths: tuple[int, ...] = (40, 40, 40, 24)) -> tuple[tuple[int, ...], ...]:
    drawn = np.random.default_rng(0)
    return tuple(tuple(drawn.integers(10, vocabulary, length).tolist()) for length in lengths)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Widths 64 and 192: whole rows, and groups of 64. Heads share no values, so that AWQ folds into these too."""
    return make_model(tmp_path_factory.mktemp("llama") / "model", feed_forward=192)


@pytest.fixture(scope="module")
def release(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release in each of the formats."""
    folder = tmp_path_factory.mktemp("release")
    for method in METHODS:
        FORMATS[method].write(Source(llama, windows(600)), folder)
    return folder


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_transformers_computes_with_the_weights_that_were_written(method: str, llama: Path, release: Path) -> None:
    ids = list(windows(600)[0])
    model = load_pretrained(llama)
    model.load_state_dict(dict(dense_tensors(release / method)), strict=False)
    expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    found = torch.from_numpy(FORMATS[method].open(release, 1).all_log_probabilities(ids))
    rounded_activations = method == "w8a8"
    difference = (found - expected).abs().max()
    assert 1e-5 < difference < 0.05 if rounded_activations else difference < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_the_same_model_gives_the_same_bytes(method: str, llama: Path, release: Path, tmp_path: Path) -> None:
    FORMATS[method].write(Source(llama, windows(600)), tmp_path)
    files = FORMATS[method].files(tmp_path)
    assert {file.name for file in files} >= {"config.json", "model.safetensors", "tokenizer.json"}
    for file in files:
        assert file_digest(file) == file_digest(release / file.relative_to(tmp_path))


def test_a_row_has_a_scale_for_each_group_of_columns(release: Path) -> None:
    settings = json.loads((release / "w4a16" / "config.json").read_text())["quantization_config"]
    found = {group["weights"]["group_size"]: group["targets"] for group in settings["config_groups"].values()}
    names = ("q", "k", "v", "o", "gate", "up")
    assert found == {None: [rf"re:.*\.{name}_proj$" for name in names], 64: [r"re:.*\.down_proj$"]}
    assert settings["ignore"] == ["lm_head"]
    tensors = load_file(release / "w4a16" / "model.safetensors")
    assert tensors["model.layers.0.mlp.down_proj.weight_packed"].shape == (64, 192 // 8)
    assert tensors["model.layers.0.mlp.down_proj.weight_scale"].shape == (64, 3)
    eight = json.loads((release / "w8a8" / "config.json").read_text())["quantization_config"]["config_groups"]
    assert [group["targets"] for group in eight.values()] == [["Linear"]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma", "gemma3_text", "olmo3"])
def test_weights_come_back_under_the_names_of_the_checkpoint(architecture: str, method: str, tmp_path: Path) -> None:
    """Biases, norms that multiply by one more than their weight, shared values: AWQ's factors are undone in all."""
    wide = {"head_dim": 16} if architecture.startswith("gemma") else {}
    model = make_foreign(tmp_path / "model", architecture, **wide)
    FORMATS[method].write(Source(model, windows(380)), tmp_path)
    found, expected = dict(FORMATS[method].weights(model, tmp_path)), dict(stored_weights(model))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        off = np.linalg.norm(found[name] - weights) / max(1e-9, float(np.linalg.norm(weights)))
        assert off < (0.02 if method == "w8a8" else 0.25), name


@pytest.mark.soak
def test_a_damaged_checkpoint_is_no_release(llama: Path, release: Path, tmp_path: Path) -> None:
    config = ExportConfig(prompts=["The fox"], greedy_tokens=4)
    reference = Reference(llama, windows(600, (60, 60)), config, tmp_path / "scratch")
    weights, parity, _ = prove(reference, "gptq", release, 1)
    assert weights.tensors == len(dict(stored_weights(llama)))
    assert parity.mean_divergence < 0.15
    name = "model.layers.1.mlp.up_proj.weight_scale"
    path = tmp_path / "w4a16" / "model.safetensors"
    _copy(release / "w4a16", path.parent)
    tensors = load_file(path)
    scale = tensors.pop(name)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ParityError, match=f"{name} is missing"):
        prove(reference, "w4a16", tmp_path, 1)
    save_file({**tensors, name: scale * 64}, path, {"format": "pt"})
    (sound, whole, _), (broken, damaged, _) = (prove(reference, "w4a16", at, 1) for at in (release, tmp_path))
    assert damaged.mean_divergence > 10 * whole.mean_divergence
    assert broken.row.error > 10 > sound.row.error
    assert broken.row.tensor == "model.layers.1.mlp.up_proj.weight"
    save_file({kept: value for kept, value in tensors.items() if "mlp.up" not in kept}, path, {"format": "pt"})
    with pytest.raises(ParityError, match=r"model\.layers\.0\.mlp\.up_proj\.weight is missing"):
        prove(reference, "w4a16", tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ParityError, match="can't be loaded"):
        prove(reference, "w4a16", tmp_path, 1)


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())


@pytest.mark.soak
def test_a_release_holds_them_with_proof_and_card(llama: Path, tmp_path: Path) -> None:
    make_validation(tmp_path / "validation", llama)
    out = Output.at(tmp_path, stage="export", runtime=RUNTIME)
    config = ExportConfig(formats=[*METHODS], prompts=["The fox"], greedy_tokens=4, positions=64)
    export.function(config, Artifact.at(llama), None, Artifact.at(tmp_path / "validation"), {}, None, out)
    proof = json.loads((out.path / "parity.json").read_text())["formats"]
    assert all(proof["w8a8"]["mean_divergence"] < proof[method]["mean_divergence"] for method in METHODS[:3])
    assert proof["gptq"]["mean_divergence"] < proof["w4a16"]["mean_divergence"]
    assert "`vllm serve w4a16`" in (out.path / "README.md").read_text()


@pytest.mark.parametrize(
    ("architecture", "methods", "message"),
    [
        ("gpt2", METHODS, r"transformer\.h\.0\.attn\.c_attn of this gpt2 model is a Conv1D"),
        ("mixtral", METHODS, r"of this mixtral model is a Mixtral"),
        ("phi", ("awq",), "these layers of a phi model are unknown"),
    ],
)
def test_an_architecture_that_it_cannot_hold_is_refused_by_name(
    architecture: str, methods: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    model = make_foreign(tmp_path / "model", architecture)
    (model / "model.safetensors").unlink()  # the config says enough
    for method in methods:
        with pytest.raises(ConfigError, match=message):
            FORMATS[method].check(model)


def test_an_architecture_that_awq_does_not_know_is_calibrated_by_gptq(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "phi")
    FORMATS["gptq"].write(Source(model, windows(380)), tmp_path)
    found, expected = dict(FORMATS["gptq"].weights(model, tmp_path)), dict(stored_weights(model))
    assert found.keys() == expected.keys()


@torch.no_grad()
def test_activations_with_outliers_are_smoothed_where_there_is_text(llama: Path, release: Path, tmp_path: Path) -> None:
    """Two columns of every norm are a hundred times larger, and their weights a hundred times smaller."""
    model = _with_outliers(llama, tmp_path / "model")
    ids = list(windows(600, (60,))[0])
    expected = torch.from_numpy(_log_probabilities(model, ids))
    off = []
    for name, text in (("plain", ()), ("smooth", windows(600))):
        FORMATS["w8a8"].write(Source(model, text), tmp_path / name)
        found = torch.from_numpy(FORMATS["w8a8"].open(tmp_path / name, 1).all_log_probabilities(ids))
        off.append(float((expected.exp() * (expected - found)).sum(-1).mean()))
        for tensor, weights in FORMATS["w8a8"].weights(model, tmp_path / name):
            assert np.allclose(weights, dict(stored_weights(model))[tensor], atol=0.02), tensor
    assert off[1] < off[0] / 4
    norm = "model.layers.1.input_layernorm.weight"
    plain, smooth = (load_file(tmp_path / name / "w8a8" / "model.safetensors") for name in ("plain", "smooth"))
    assert torch.equal(plain[norm], load_file(model / "model.safetensors")[norm])
    assert smooth[norm][:2].max() < plain[norm][:2].min() / 4


def _with_outliers(model: Path, target: Path) -> Path:
    _copy(model, target)
    tensors = load_file(target / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            value[:2] *= 100
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            value[:, :2] /= 100
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def _log_probabilities(model: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = load_pretrained(model)(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()
    return found


def test_activations_of_an_architecture_without_known_folds_are_rounded_as_they_are(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "phi")
    for name, text in (("with", windows(380)), ("without", ())):
        FORMATS["w8a8"].write(Source(model, text), tmp_path / name)
    files = [tmp_path / name / "w8a8" / "model.safetensors" for name in ("with", "without")]
    assert file_digest(files[0]) == file_digest(files[1])


def test_a_width_that_fills_no_whole_words_is_refused(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "llama", intermediate_size=172)
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.mlp\.down_proj has 172 columns"):
        FORMATS["gptq"].check(model)
    FORMATS["w8a8"].check(model)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_nothing_to_calibrate_on_is_an_error(method: str, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{method} needs text to calibrate on") as caught:
        FORMATS[method].write(Source(llama), tmp_path)
    assert "w4a16" in caught.value.remedy


def test_a_profile_without_text_to_calibrate_on_is_refused_when_it_is_read() -> None:
    with pytest.raises(ValueError, match="gptq can't be written with calibration_tokens 0"):
        ExportConfig(formats=["w4a16", "gptq"], calibration_tokens=0)
    ExportConfig(formats=["w4a16", "w8a8"], calibration_tokens=0)


def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FORMATS["gptq"].needs() is None
    monkeypatch.setitem(sys.modules, "loguru", None)
    assert FORMATS["gptq"].needs() == "loguru not installed: pip install 'gristmill[export]'."


def test_a_checkpoint_of_16_bits_keeps_what_is_not_rounded_in_its_type(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "llama")
    tensors: dict[str, Any] = load_file(model / "model.safetensors")
    save_file(
        {name: value.bfloat16() for name, value in tensors.items()}, model / "model.safetensors", {"format": "pt"}
    )
    FORMATS["awq"].write(Source(model, windows(380)), tmp_path)
    kept = {name: value.dtype for name, value in load_file(tmp_path / "awq" / "model.safetensors").items()}
    assert kept["model.embed_tokens.weight"] == kept["model.norm.weight"] == torch.bfloat16
    assert kept["model.layers.0.input_layernorm.weight"] == torch.bfloat16
