"""Exports: each is proved in its own runtime, and one that differs from the checkpoint is never published."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.conversation import turns_of
from models.convert import load
from models.runtimes.llama_cpp import LlamaCppRuntime
from models.runtimes.protocol import RuntimeFault
from models.runtimes.transformers import TransformersRuntime, load_model
from models.tokenizer import FIM_TOKENS, SPECIAL_TOKENS, load_tokenizer
from storage.artifact import Artifact
from storage.errors import ConfigError, ParityError, StoreError
from tasks.export import ExportConfig, export
from tasks.export.formats.gguf.file import write_gguf
from tasks.export.formats.gguf.vocabulary import plain_template
from tasks.export.release import open_release
from tasks.stage.output import Output
from tests.tasks.tiny_model import RUNTIME, make_model, make_validation

PROMPTS = ["The fox lives in the", "Nobody in the yard", "Where does the hen live?"]
SCORES = {"models": {"dpo": {"bits_per_byte": 2.0, "tasks": {}}}}


def inputs(folder: Path, **shape: Any) -> tuple[Artifact, Artifact, Artifact]:
    """What the stage reads: a model with random weights, scores, held-out tokens."""
    model = make_model(folder / "model", **shape)
    make_validation(folder / "validation", model)
    (folder / "scores").mkdir()
    (folder / "scores" / "scores.json").write_text(json.dumps(SCORES))
    return Artifact.at(model), Artifact.at(folder / "scores"), Artifact.at(folder / "validation")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact, Artifact]:
    return inputs(tmp_path_factory.mktemp("llama"), kv_heads=2)


def run(folder: Path, given: tuple[Artifact, Artifact, Artifact], **config: Any) -> Output:
    out = Output.at(folder, stage="export", runtime=RUNTIME)
    settings = {"prompts": PROMPTS, "greedy_tokens": 12, "positions": 256, **config}
    export.function(ExportConfig.model_validate(settings), *given, {}, None, out)
    return out


def test_a_release_holds_every_format_its_proof_and_its_card(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    out = run(tmp_path, llama, formats=[*ExportConfig().formats, "gguf-f32"], licence="Free.")
    proof = json.loads((out.path / "parity.json").read_text())["formats"]
    assert proof["safetensors"]["max_difference"] == 0
    assert proof["gguf-f16"]["same_greedy"] == proof["gguf-f16"]["prompts"] > len(PROMPTS)
    assert proof["gguf-f32"]["mean_divergence"] <= proof["gguf-q8_0"]["mean_divergence"]
    assert proof["gguf-q8_0"]["mean_divergence"] < proof["gguf-q4_0"]["mean_divergence"]
    assert proof["gguf-q4_0"]["bytes"] < proof["gguf-q8_0"]["bytes"] < proof["gguf-f16"]["bytes"]
    assert proof["int4"]["bytes"] < proof["int8"]["bytes"] < proof["safetensors"]["bytes"]
    assert "probes" not in out.counts["formats"]["gguf-f16"], "the manifest stays short"
    card = (out.path / "README.md").read_text()
    for name in proof:
        assert f"| {name} |" in card
    assert "Free." in card
    assert json.loads((out.path / "lineage.json").read_text())["model"] == llama[0].digest
    ids = torch.randint(len(SPECIAL_TOKENS), 600, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, ours = load_model(out.path)(ids).logits, load(llama[0].path)(ids)
        assert (theirs - ours).abs().max() < 1e-4
        assert load_model(out.path / "int8")(ids).logits.shape == theirs.shape


def test_a_release_records_the_likeliest_tokens_of_each_format(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    out = run(tmp_path, llama, formats=["safetensors", "gguf-q4_0"])
    text = (out.path / "parity.json").read_text()
    parity = json.loads(text)
    model, tokenizer = load_model(llama[0].path), load_tokenizer(llama[0].path)
    assert [probe["ids"] for probe in parity["probes"][:3]] == [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert len(parity["probes"]) > len(PROMPTS), "of held-out text too"
    for probe in parity["probes"]:
        with torch.no_grad():
            logs = torch.log_softmax(model(torch.tensor([probe["ids"]])).logits[0, -1].double(), -1)
        best = logs.topk(10)
        assert [id for id, _ in probe["top"]] == best.indices.tolist()
        assert [log for _, log in probe["top"]] == pytest.approx(best.values.tolist(), abs=1e-4)
    formats = {name: proof["probes"] for name, proof in parity["formats"].items()}
    assert formats["safetensors"] == parity["probes"]
    with LlamaCppRuntime(out.path / "gguf" / "model-q4_0.gguf") as runtime:
        written = runtime.log_probabilities(parity["probes"][0]["ids"])
    rounded = formats["gguf-q4_0"]
    assert [probe["ids"] for probe in rounded] == [probe["ids"] for probe in parity["probes"]]
    assert all(log == pytest.approx(written[id], abs=1e-4) for id, log in rounded[0]["top"])
    assert rounded[0]["top"] != parity["probes"][0]["top"]
    assert f'"ids": {json.dumps(rounded[0]["ids"])}' in text, "numbers share a line"


@pytest.mark.soak
def test_an_export_outside_its_tolerance_is_no_release(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    strict = {
        "max_divergence": 1e-12,
        "max_perplexity_increase": 1.0,
        "max_weight_error": 1.0,
        "max_runtime_divergence": 1.0,
        "same_greedy": False,
    }
    with pytest.raises(ParityError, match=r"gguf-q4_0 doesn't match its checkpoint.*mean divergence") as caught:
        run(tmp_path, llama, formats=["gguf-q4_0"], tolerances={"gguf-q4_0": strict})
    assert "export.tolerances.gguf-q4_0" in caught.value.remedy
    assert not (tmp_path / "out" / "README.md").exists()


def test_llama_cpp_continues_greedily_as_transformers_does(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    model, tokenizer = load_model(llama[0].path), load_tokenizer(llama[0].path)
    write_gguf(llama[0].path, tmp_path / "model.gguf", "f32")
    runtime = LlamaCppRuntime(tmp_path / "model.gguf")
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert runtime.greedy(prompt, 12) == made[0, ids.shape[1] :].tolist()
    assert isinstance(runtime.chat([{"role": "user", "content": "Where does the fox live?"}], 8), str)


def test_llama_cpp_knows_the_special_tokens_and_what_fills_in_the_middle(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    from gguf import GGUFReader, TokenType

    write_gguf(llama[0].path, tmp_path / "model.gguf", "f32")
    fields = GGUFReader(tmp_path / "model.gguf").fields
    types = fields["tokenizer.ggml.token_type"].contents()
    control = [number for number, kind in enumerate(types) if kind == TokenType.CONTROL]
    assert control == list(range(len(SPECIAL_TOKENS)))
    named = [fields[f"tokenizer.ggml.fim_{piece}_token_id"].contents() for piece in ("pre", "suf", "mid")]
    tokenizer = load_tokenizer(llama[0].path)
    assert named == tokenizer.convert_tokens_to_ids(list(FIM_TOKENS))
    ends = [fields[f"tokenizer.ggml.{kind}_token_id"].contents() for kind in ("eos", "eot")]
    assert ends == [tokenizer.eos_token_id, turns_of(tokenizer).end], "of a document, and of an answer"
    assert ends[0] != ends[1]
    prefix, suffix, middle = FIM_TOKENS
    prompt = f"{prefix}The fox{suffix} the yard.{middle}"
    ids = tokenizer.encode(prompt)
    assert [id for id in ids if id < len(SPECIAL_TOKENS)] == named
    runtime = LlamaCppRuntime(tmp_path / "model.gguf")
    assert runtime.greedy(prompt, 8) == runtime.greedy(ids, 8)
    assert np.array_equal(runtime.log_probabilities(prompt), runtime.log_probabilities(ids))


def test_llama_cpp_listens_where_nobody_else_may_enter(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    write_gguf(llama[0].path, tmp_path / "model.gguf", "f32")
    with LlamaCppRuntime(tmp_path / "model.gguf") as runtime:
        kind, path = runtime._server.listening_address.split("://")
        assert kind == "unix"
        assert Path(path).is_socket()
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        assert runtime.tokenize("The fox") == load_tokenizer(llama[0].path).encode("The fox")
        assert min(runtime.tokenize("<|endoftext|>")) >= len(SPECIAL_TOKENS)
    assert not Path(path).parent.exists()


@pytest.mark.soak_but("qwen3")
@pytest.mark.parametrize(
    ("family", "shape"),
    [
        pytest.param("gpt2", {}, id="gpt2"),
        pytest.param("mistral", {"sliding_window": 128, "kv_heads": 1}, id="mistral"),
        pytest.param("qwen3", {"head_size": 24}, id="qwen3"),
        pytest.param("gemma3", {"sliding_window": 8, "global_every": 2}, id="gemma3"),
        pytest.param("olmo3", {"sliding_window": 8, "global_every": 2}, id="olmo3"),
    ],
)
def test_the_other_families_are_exported_too(family: str, shape: dict[str, Any], tmp_path: Path) -> None:
    given = inputs(tmp_path, family=family, **shape)
    formats = run(tmp_path, given, formats=["safetensors", "gguf-f32", "gguf-f16", "gguf-q8_0"]).counts["formats"]
    assert formats["gguf-f32"]["mean_divergence"] < 1e-6
    assert formats["gguf-f16"]["same_greedy"] == formats["gguf-f16"]["prompts"]


@pytest.mark.soak
def test_what_llama_cpp_would_compute_otherwise_is_refused(tmp_path: Path) -> None:
    given = inputs(tmp_path, family="mistral", sliding_window=16)
    with pytest.raises(ConfigError, match=r"a sliding window \(16\)"):
        run(tmp_path, given, formats=["gguf-f16"])


def test_a_broken_file_is_no_release(llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(llama[0].path, path, "f16")
    data = bytearray(path.read_bytes())
    del data[len(data) // 2 :]
    path.write_bytes(bytes(data))
    with pytest.raises(RuntimeFault, match="can't load"):
        LlamaCppRuntime(path)
    (tmp_path / "gguf").mkdir()
    path.rename(tmp_path / "gguf" / "model-f16.gguf")
    with pytest.raises(StoreError, match="can't load"):
        open_release(tmp_path)


@pytest.mark.soak
def test_a_release_is_opened_in_the_runtime_of_a_format_that_it_holds(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    out = run(tmp_path / "release", llama, formats=["safetensors", "gguf-f16"])
    chat = [{"role": "user", "content": "Where does the fox live?"}]
    _open_with_a_long_temporary_folder(out.path / "gguf" / "model-f16.gguf", tmp_path / ("long" * 40))
    in_llama_cpp = open_release(out.path)
    assert isinstance(in_llama_cpp, LlamaCppRuntime)
    (out.path / "gguf" / "model-f16.gguf").unlink()
    in_transformers = open_release(out.path)
    assert isinstance(in_transformers, TransformersRuntime)
    assert in_transformers.chat(chat, 8) == in_llama_cpp.chat(chat, 8)
    with pytest.raises(StoreError, match=r"no int8.*It has safetensors"):
        open_release(out.path, format="int8")
    for runtime in (in_transformers, in_llama_cpp):
        assert len({runtime.chat(chat, 16, 5.0) for _ in range(3)}) > 1, "it is drawn"
        assert isinstance(runtime.chat(chat, 1000), str), "it ends with the context"
        with pytest.raises(RuntimeFault):
            runtime.chat([{"role": "user", "content": "fox " * 500}], 8)
    with pytest.raises(StoreError, match="holds a model in none of"):
        open_release(tmp_path)


@pytest.mark.soak
def test_a_runtime_that_is_closed_as_soon_as_it_is_open_ends(
    llama: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    """llama.cpp loses a signal to stop that arrives before its loop has begun."""
    path = run(tmp_path, llama, formats=["gguf-f16"]).path / "gguf" / "model-f16.gguf"
    script = (
        "import sys; from pathlib import Path; from models.runtimes.llama_cpp import LlamaCppRuntime\n"
        "for _ in range(40): LlamaCppRuntime(Path(sys.argv[1])).close()"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], timeout=120, check=True)


def _open_with_a_long_temporary_folder(path: Path, folder: Path) -> None:
    """Where the path of a socket is longer than the system allows, llama.cpp's server does not start."""
    folder.mkdir()
    script = (
        "import sys; from pathlib import Path; from models.runtimes.llama_cpp import LlamaCppRuntime\n"
        "with LlamaCppRuntime(Path(sys.argv[1])) as runtime: assert runtime.tokenize('fox')"
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", script, str(path)], env=environment, timeout=120, check=True)
    assert not list(folder.iterdir())


def test_the_template_of_a_runtime_has_no_marks_of_training(llama: tuple[Artifact, Artifact, Artifact]) -> None:
    text = plain_template(llama[0].path)
    assert not re.search(r"generation\s*-?%", text)
    assert "add_generation_prompt" in text
