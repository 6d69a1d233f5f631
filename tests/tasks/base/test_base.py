"""An existing model as a base: what is accepted, what is refused by name, and how the later stages use it."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from flows.early import is_wide
from models.pretrained import load_pretrained
from models.tokenizer import BASE_FIELD, load_tokenizer
from storage.artifact import Artifact
from storage.errors import ConfigError, EmptyOutput, GristmillError, SourceError
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.base import BaseConfig, base
from tasks.base.source import fingerprint
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.export import ExportConfig, export
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.pair_lengths import check_pairs
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tasks.training.model_folder import check_tokenizer
from tests.runtimes import runtime_of
from tests.tasks.foreign import CHATML, CONTEXT, make_foreign, make_foreign_tokenizer
from tests.tasks.planted_code import plant_code
from tests.tasks.tiny_model import ANIMALS, PLACES, make_instructions, make_preferences, write_rows

FAMILIES = ("llama", "qwen2", "gpt2", "gemma")
RUNTIME = runtime_of(group="posttrain", threads=1, device="cpu", checkpoint_every=100)


def take(folder: Path, to: Path) -> Output:
    out = Output.at(to, stage="base", runtime=RUNTIME)
    base.function(BaseConfig(folder=str(folder)), out)
    return out


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_foreign(tmp_path_factory.mktemp("foreign") / "tiny-llama", "llama")


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_base_keeps_its_weights_its_logits_and_its_tokenizer(family: str, tmp_path: Path) -> None:
    source = make_foreign(tmp_path / "theirs", family)
    out = take(source, tmp_path / "taken")
    model = out.path / "model"
    assert (model / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    config = json.loads((model / "config.json").read_text())
    assert config[BASE_FIELD] == "theirs"
    check_tokenizer(model)
    tokenizer = load_tokenizer(model)
    assert (model / "chat_template.jinja").read_text() == CHATML
    ids = tokenizer("The fox lives in the wood.", return_tensors="pt").input_ids
    ours, theirs = load_pretrained(model), load_pretrained(source)
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    ends = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    assert ends == tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert out.counts["context"] == CONTEXT


def test_a_base_without_a_template_gets_ours_and_that_is_said(tmp_path: Path) -> None:
    tokenizer = make_foreign_tokenizer(template=None, special=["</s>"], eos="</s>")
    source = make_foreign(tmp_path / "plain", "llama", tokenizer)
    out = take(source, tmp_path / "taken")
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    rendered = load_tokenizer(out.path / "model").apply_chat_template(chat, tokenize=False)
    assert rendered == "<|user|>\nWhy?</s>\n<|assistant|>\nSo.</s>\n"
    assert "with our chat template" in out.counts["summary"]
    assert (out.path / "model" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def described(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", {"format": "pt"})

    return changed


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    plant_code(folder / "pytorch_model.bin", folder / "ran")


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def template(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(text)

    return change


def shards(name: str) -> Callable[[Path], None]:
    """The weights as a shard, under another name in the index."""

    def change(folder: Path) -> None:
        shutil.copy(folder / "model.safetensors", folder.parent / "elsewhere.safetensors")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        known = load_file(folder / "model-00001-of-00001.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(known, name.format(outside=folder.parent))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def as_bloom(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bloom", "vocab_size": 500, "hidden_size": 64}))


def piped_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    os.mkfifo(folder / "chat_template.jinja")


def test_weights_beyond_float16_are_known_before_a_training(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage counts them, and a format that can't hold them is refused before the documents are prepared."""
    notes: list[str] = []
    monkeypatch.setattr(Output, "note", lambda self, message: notes.append(message))
    for number, wide in ((6e4, False), (7e4, True)):
        folder = shutil.copytree(llama, tmp_path / str(number))
        state = load_file(folder / "model.safetensors")
        state["model.embed_tokens.weight"][1] = -number
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        notes.clear()
        out = take(folder, tmp_path / f"{number}-out")
        payload = KeyPayload(stage="base", version=1, config={}, inputs={})
        taken = Manifest(key=payload.key(), payload=payload, digest="0" * 64, files={}, counts=out.counts, created="")
        assert is_wide(Artifact(out.path, "", taken)) == wide
        assert any("up to 7e+04, beyond the range of float16" in note for note in notes) == wide


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (described(auto_map={"AutoModelForCausalLM": "mine.Mine"}), "its own code, named by auto_map in config.json"),
        (described(quantization_config={"quant_method": "gptq"}), "is quantized"),
        (described(is_encoder_decoder=True), "has an encoder"),
        (described(model_type="mine"), "sets model_type to 'mine', which transformers doesn't know"),
        (described(num_hidden_layers=1), "not those of a llama: unexpected are model.layers.1"),
        (described(num_hidden_layers=3), "not those of a llama: missing are model.layers.2"),
        (described(intermediate_size=64), "mismatched are model.layers.0"),
        (weights(lambda state: state.pop(NORM)), f"missing are {NORM}"),
        (pickled, "only in pytorch_model.bin, which is not opened: a pickle can run code"),
        (cut, "model.safetensors of the base is cut off: it has"),
        (
            shards("{outside}/elsewhere.safetensors"),
            "names /.*/elsewhere.safetensors, which is not a file in the folder",
        ),
        (shards("../elsewhere.safetensors"), "names ../elsewhere.safetensors, which is not a file in the folder"),
        (shards("model-00002-of-00002.safetensors"), "names model-00002-of-00002.safetensors, which is not a file"),
        (weights(lambda state: state.update({NORM: state[NORM].to(torch.int8)})), f"{NORM} is of type I8"),
        (weights(lambda state: state[NORM].__setitem__(3, math.nan)), f"computes nothing: {NORM} has NaN"),
        (weights(lambda state: state[NORM].__setitem__(3, -math.inf)), f"{NORM} has infinite numbers"),
        (as_bloom, "a bloom, doesn't limit the length of a text"),
        (piped_template, "chat_template.jinja in .* is not a file"),
        (without("model.safetensors"), "weights of the base are missing"),
        (without("config.json"), "is not a model"),
        (
            without("tokenizer.json", "tokenizer_config.json"),
            "The base has no tokenizer: .* has none of tokenizer.json",
        ),
        (template(CHATML.replace("assistant\n", "assistant\n<think>")), "can't be trained on: prompt_not_a_prefix"),
    ],
)
def test_what_cant_be_a_base_is_refused_by_name(
    llama: Path, tmp_path: Path, change: Callable[[Path], None], named: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "changed")
    change(folder)
    with pytest.raises(GristmillError, match=named):
        take(folder, tmp_path / "taken")
    assert not (folder / "ran").exists()


def test_a_base_is_one_folder_or_a_repository_at_a_commit() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    named = BaseConfig(repository="HuggingFaceTB/SmolLM2-135M", revision=commit)
    assert fingerprint(named) == {"HuggingFaceTB/SmolLM2-135M": commit}
    assert BaseConfig(gguf="llama.gguf", package="some-model").named == "llama.gguf"
    for wrong in (
        {"gguf": "a", "folder": "b"},
        {"package": "a"},
        {"package": "a", "folder": "b"},
        {"artifact": "a", "gguf": "b"},
        {},
        {"folder": "a", "repository": "b/c", "revision": commit},
        {"repository": "b/c"},
        {"revision": commit},
        {"repository": "b/c", "revision": "main"},
        {"repository": "b/c", "revision": commit[:7]},
    ):
        with pytest.raises(ValidationError):
            BaseConfig.model_validate(wrong)


def test_a_folder_is_identified_by_the_bytes_of_its_files(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "same")
    before = fingerprint(BaseConfig(folder=str(folder)))
    assert before == fingerprint(BaseConfig(folder=str(llama)))
    weights(lambda state: state[NORM].add_(1))(folder)
    after = fingerprint(BaseConfig(folder=str(folder)))
    assert {name for name in after if after[name] != before[name]} == {"base/model.safetensors"}
    with pytest.raises(SourceError, match="is not a folder"):
        fingerprint(BaseConfig(folder=str(tmp_path / "none")))


def test_a_hub_that_cant_be_reached_is_told_of(tmp_path: Path) -> None:
    config = BaseConfig(repository="nobody/nothing", revision="0" * 40)
    with pytest.raises(SourceError, match="nobody/nothing at 0000"):
        base.function(config, Output.at(tmp_path, stage="base", runtime=RUNTIME))


def questions(folder: Path) -> Artifact:
    rows = [
        {
            "id": f"{animal}-{place}",
            "query": f"The {animal} lives in the",
            "choices": [f" {place}.", " moon."],
            "gold": 0,
        }
        for animal in ANIMALS[:5]
        for place in PLACES[:4]
    ]
    return Artifact.at(write_rows(folder / "places.jsonl", rows))


def test_a_base_is_tuned_and_exported(tmp_path: Path) -> None:
    begun = Artifact.at(take(make_foreign(tmp_path / "theirs", "qwen2"), tmp_path / "base").path / "model")
    tuned, released = (Output.at(tmp_path / stage, stage=stage, runtime=RUNTIME) for stage in ("sft", "export"))
    sft.function(
        SftConfig(epochs=1, learning_rate=5e-3), begun, Artifact.at(make_instructions(tmp_path / "pairs")), tuned
    )
    assert tuned.counts["validation_loss"] < 0.7 * tuned.counts["initial_validation_loss"]
    config = ExportConfig(formats=["safetensors"], prompts=["The fox lives in the"], greedy_tokens=8, positions=16)
    export.function(
        config, Artifact.at(tuned.path / "model"), None, questions(tmp_path / "benchmarks"), {}, None, released
    )
    assert json.loads((released.path / "config.json").read_text())["model_type"] == "qwen2"


@pytest.mark.soak
@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2", "gemma"])
def test_a_base_is_tuned_aligned_evaluated_and_exported(family: str, tmp_path: Path) -> None:
    taken = take(make_foreign(tmp_path / "theirs", family), tmp_path / "base")
    begun = Artifact.at(taken.path / "model")
    tuned, aligned, scored, released = (
        Output.at(tmp_path / stage, stage=stage, runtime=RUNTIME) for stage in ("sft", "dpo", "evaluate", "export")
    )
    pairs = Artifact.at(make_instructions(tmp_path / "instructions"))
    sft.function(SftConfig(epochs=1, learning_rate=5e-3), begun, pairs, tuned)
    log = read_log(tuned.path / "log.jsonl")
    assert tuned.counts["validation_loss"] < 0.7 * log[0]["loss"]
    assert tuned.counts["documents"]["removed"] == {}
    preferences = Artifact.at(make_preferences(tmp_path / "preferences"))
    dpo.function(DpoConfig(learning_rate=1e-3), Artifact.at(tuned.path / "model"), preferences, aligned)
    assert aligned.counts["validation_preference_accuracy"] > 0.8
    last, asked = Artifact.at(aligned.path / "model"), questions(tmp_path / "benchmarks")
    evaluate.function(EvaluateConfig(), {"base": begun, "dpo": last}, None, asked, asked, None, None, None, scored)
    scores = json.loads((scored.path / "scores.json").read_text())["models"]
    assert scores["dpo"]["bits_per_byte"] > 0
    assert "Bits per byte of the questions with their right answers" in (scored.path / "scores.md").read_text()
    formats = ["safetensors", "gguf-f16"] if family != "gemma" else ["safetensors"]  # its tokenizer isn't a Gemma's
    config = ExportConfig(formats=formats, prompts=["The fox lives in the"], greedy_tokens=8, positions=16)
    export.function(config, last, None, asked, {}, None, released)
    assert "started from the base model theirs" in (released.path / "README.md").read_text()
    assert json.loads((released.path / "config.json").read_text())["model_type"] == family


@pytest.mark.soak
def test_what_no_gguf_can_hold_is_refused_by_name(tmp_path: Path) -> None:
    taken = take(make_foreign(tmp_path / "theirs", "gpt_neox"), tmp_path / "base")
    config = ExportConfig(formats=["gguf-f16"], prompts=["The fox"], greedy_tokens=4, positions=8)
    out = Output.at(tmp_path / "export", stage="export", runtime=RUNTIME)
    with pytest.raises(ConfigError, match="gpt_neox isn't among llama, mistral, qwen2") as caught:
        export.function(
            config, Artifact.at(taken.path / "model"), None, questions(tmp_path / "benchmarks"), {}, None, out
        )
    assert caught.value.remedy == "Leave gguf out of export.formats."


def test_pairs_that_dont_fit_a_base_are_told_of_before_it_is_tuned(llama: Path, tmp_path: Path) -> None:
    model = Artifact.at(take(llama, tmp_path / "base").path / "model")
    rows = [{"id": str(n), "messages": [{"role": "user", "content": "fox " * 300}]} for n in range(4)]
    write_rows(tmp_path / "pairs" / "instructions" / "all.jsonl", rows)
    with pytest.raises(EmptyOutput, match="4 overlong"):
        check_pairs({"sft": SftConfig(deduplicate="none")}, Artifact.at(tmp_path / "pairs"), model)
