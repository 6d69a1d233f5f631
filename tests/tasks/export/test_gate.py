"""Mistakes of an exporter that change few logits or none, but that users would notice, stop a release."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf import GGUFReader

from models.runtimes.llama_cpp import LlamaCppRuntime
from storage.errors import ConfigError, ParityError
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tasks.export.proof.compare import Parity, _same_ids
from tasks.export.proof.judge import require
from tasks.export.proof.reference import Reference
from tasks.export.proof.weights import WeightError, Worst
from tasks.export.run import prove
from tasks.export.tolerance import EIGHT_BIT
from tests.tasks.export.faults import make_checkpoint

NAMES = ("safetensors", "int8", "gguf-f16", "gguf-q4_k_m", "w4a16", "onnx")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    return make_checkpoint(tmp_path_factory.mktemp("gate"))


def edited(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


def swap_unseen_tokens(model: Path) -> None:
    """Two tokens that are in no text and no prompt of the proof."""
    settings = json.loads((model / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    one, other = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (model / "tokenizer.json").write_text(json.dumps(settings))


def lose_decoder(model: Path) -> None:
    edited(model / "tokenizer.json", lambda settings: settings.update(decoder=None))


def cut_texts(model: Path) -> None:
    cut = {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0}
    edited(model / "tokenizer.json", lambda settings: settings.update(truncation=cut))


def end_elsewhere(model: Path) -> None:
    edited(model / "generation_config.json", lambda settings: settings.update(eos_token_id=9))
    edited(model / "tokenizer_config.json", lambda settings: settings.update(eos_token="a"))


def scale_matrix(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= 1.1
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


def lose_channel(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][5] = 0
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


FAULTS = (swap_unseen_tokens, lose_decoder, cut_texts, end_elsewhere, scale_matrix, lose_channel)
OF_FOLDERS = (lose_decoder, cut_texts)  # a GGUF file has neither


# A graph takes ten seconds to write: `make test` stops one of each kind, of a tokenizer's faults and of weights'
OF_GRAPHS = (lose_decoder, scale_matrix)


@pytest.mark.soak_but(
    "swap_unseen_tokens-safetensors",
    "swap_unseen_tokens-gguf-q4_k_m",
    "lose_decoder-int8",
    "cut_texts-safetensors",
    "end_elsewhere-safetensors",
    "end_elsewhere-gguf-q4_k_m",
    "scale_matrix-gguf-q4_k_m",
    "lose_channel-safetensors",
    "lose_channel-int8",
)
@pytest.mark.parametrize(
    ("fault", "name"),
    [
        pytest.param(fault, name, marks=pytest.mark.soak if name == "onnx" and fault not in OF_GRAPHS else ())
        for fault in FAULTS
        for name in NAMES
        if not (name.startswith("gguf") and fault in OF_FOLDERS)
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_it_is_stopped(
    fault: Callable[[Path], None], name: str, checkpoint: tuple[Path, Reference], tmp_path: Path
) -> None:
    model, reference = checkpoint
    damaged, release = tmp_path / "model", tmp_path / "release"
    shutil.copytree(model, damaged)
    fault(damaged)
    release.mkdir()
    FORMATS[name].write(Source(damaged), release)
    if name.startswith("gguf") and fault is end_elsewhere:
        read = GGUFReader(FORMATS[name].path(release), "r+")
        read.fields["tokenizer.ggml.eos_token_id"].parts[-1][0] = 9
        read.data.flush()
    with pytest.raises(ParityError):
        judge(name, release, reference)


def judge(name: str, release: Path, reference: Reference) -> None:
    weights, parity, _ = prove(reference, name, release, 1)
    require(name, parity, weights, FORMATS[name].tolerance)


SOUND = Parity(
    positions=100,
    mean_divergence=0.005,
    runtime_divergence=0.005,
    max_difference=0.1,
    same_top=0.9,
    perplexity=9.0,
    perplexity_increase=0.01,
    increase_low=0.001,
    increase_high=0.019,
    same_greedy=3,
    greedy_ties=0,
    greedy_tokens=30,
    prompts=3,
    texts=1,
    chats=1,
    probes=[],
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_divergence": 0.011}, "mean divergence"),
        ({"mean_divergence": math.nan}, "mean divergence"),
        ({"runtime_divergence": 0.011}, "its runtime is 1.10e-02 nats from transformers with the same weights"),
        ({"increase_high": 0.021}, "perplexity up by 1.00%"),
    ],
    ids=str,
)
def test_limits_are_held_against_the_worse_end_and_against_the_runtime(change: dict[str, Any], message: str) -> None:
    weights = WeightError(1, Worst(), Worst(), Worst())
    assert require("int8", SOUND, weights, EIGHT_BIT)["mean_divergence"] == 0.005
    with pytest.raises(ParityError, match=message):
        require("int8", replace(SOUND, **change), weights, EIGHT_BIT)


def test_a_runtime_that_reads_a_text_as_other_tokens_is_refused() -> None:
    reference: Any = SimpleNamespace(texts=[("a text", [1, 2, 3])], vocabulary=[], chats=[])
    for ids, refused in (([1, 2, 3], False), ([1, 3, 2], True), ([1, 2], True)):
        candidate: Any = SimpleNamespace(tokenize=lambda text, ids=ids: ids)
        with pytest.raises(ParityError, match="tokenizes 'a text' differently") if refused else nullcontext():
            _same_ids(reference, candidate)


@pytest.mark.soak_but("safetensors", "gguf-q4_k_m")
@pytest.mark.parametrize("name", NAMES)
def test_a_sound_one_passes(name: str, checkpoint: tuple[Path, Reference], tmp_path: Path) -> None:
    """Also of a base read from a GGUF file, whose config says what it was called there."""
    model, reference = checkpoint
    named, release = tmp_path / "model", tmp_path / "release"
    shutil.copytree(model, named)
    edited(named / "config.json", lambda settings: settings.update(_model_name_or_path="Mix1 Ep2"))
    release.mkdir()
    FORMATS[name].write(Source(named), release)
    judge(name, release, reference)


def test_a_prompt_without_room_is_refused_by_name(checkpoint: tuple[Path, Reference], tmp_path: Path) -> None:
    model, reference = checkpoint
    with pytest.raises(ConfigError, match="The prompt 'The fox lives"):
        Reference(model, reference.windows[:1], ExportConfig(prompts=["The fox lives " * 100]), tmp_path)


def test_targets_of_llama_cpp_are_those_of_its_distributions(
    checkpoint: tuple[Path, Reference], tmp_path: Path
) -> None:
    """Every token, also one that is a part of a character; what two texts have in common is read once."""
    model, reference = checkpoint
    FORMATS["gguf-f16"].write(Source(model), tmp_path)
    with LlamaCppRuntime(FORMATS["gguf-f16"].path(tmp_path)) as runtime:
        partial = [id for id in range(600) if runtime.decode([id]) == "\ufffd"]
        assert partial
        ids = [*reference.windows[0][:40], *partial[:5]]
        for text, start in ((ids, 1), ([*ids[:30], 7, 8, 9], 31), (ids, 40)):
            rows_TV = runtime.all_log_probabilities(text)
            found = runtime.targets(text, start)
            assert len(found) == len(text) - start
            for place, one in enumerate(found, start):
                assert one.log_probability == pytest.approx(rows_TV[place - 1][text[place]], abs=1e-4)
                assert one.best == pytest.approx(rows_TV[place - 1].max(), abs=1e-4)
                assert one.is_best == (rows_TV[place - 1].argmax() == text[place])
