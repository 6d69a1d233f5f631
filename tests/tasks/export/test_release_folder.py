"""The release as users get it: a model folder that transformers opens and that describes itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.pretrained import INDEX, WEIGHTS, load_pretrained
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import CHAT_TEMPLATE_PATH, EOS, load_tokenizer, roles_as_text, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.export import ExportConfig
from tasks.export.card.modelfile import GO_TEMPLATE, modelfile
from tasks.export.card.provenance import Provenance
from tasks.export.dtype import compute_dtype, weights_dtype
from tasks.export.formats import FORMATS
from tasks.export.formats.bitsandbytes import Bitsandbytes
from tasks.export.formats.safetensors import Safetensors
from tasks.export.formats.source import Source
from tasks.export.formats.weights import count_parameters
from tests.tasks.export.test_export import PROMPTS, inputs, run
from tests.tasks.export.users import ask, card_line, modelfile_prompt, site
from tests.tasks.tiny_model import make_model

TOKENS = 12
CHAT = [{"role": role, "content": f"of {role}\n"} for role in ("system", "user", "assistant", "user")]
USER = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer, said = eval(asked["line"]), AutoTokenizer.from_pretrained("."), []
for prompt in asked["prompts"]:
    given = tokenizer(prompt, return_tensors="pt")
    made = model.generate(**given, do_sample=False, max_new_tokens=asked["tokens"])
    said.append(tokenizer.decode(made[0, given["input_ids"].shape[1]:]))
limits = [tokenizer.model_max_length, str(model.dtype)]
exec(asked["code"], {"print": said.append})
shown([*said, limits])
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact, Artifact]:
    return inputs(tmp_path_factory.mktemp("given"), kv_heads=2)


@pytest.fixture(scope="module")
def release(given: tuple[Artifact, Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = run(tmp_path_factory.mktemp("release"), given, formats=["safetensors", "int4", "gguf-f16"], dtype="float32")
    return out.path


def test_a_user_with_the_folder_and_transformers_gets_the_greedy_text_of_the_checkpoint(
    release: Path, given: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    checkpoint = TransformersRuntime(given[0].path)
    expected = {
        prompt: checkpoint.tokenizer.decode(checkpoint.greedy(checkpoint.tokenize(prompt), TOKENS))
        for prompt in PROMPTS
    }
    shown = {one["prompt"]: one["text"] for one in json.loads((release / "parity.json").read_text())["samples"]}
    card = (release / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    packages = site(tmp_path / "site", "transformers", "torch")
    asked = {"line": card_line(release, "safetensors"), "prompts": PROMPTS, "tokens": TOKENS, "code": code}
    *texts, answer, told = ask(USER, packages, release, tmp_path, **asked)
    assert dict(zip(PROMPTS, texts, strict=True)) == expected
    assert shown == expected
    assert all(f"text\n{text}\n```" in card for text in texts)
    assert answer.strip() == checkpoint.chat([{"role": "user", "content": "What is a river?"}], 64)
    assert told == [128, "torch.float32"]


def test_every_tokenizer_of_a_release_has_the_context_as_its_limit_and_is_the_same_tokenizer(
    release: Path, given: tuple[Artifact, Artifact, Artifact]
) -> None:
    found = list(release.rglob("tokenizer_config.json"))
    assert {path.parent.name for path in found} == {release.name, "int4"}
    for path in found:
        assert json.loads(path.read_text())["model_max_length"] == 128
        assert tokenizer_digest(path.parent) == tokenizer_digest(given[0].path)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.soak)])
def test_weights_are_cast_and_all_else_is_written_from_the_checkpoint(
    dtype: str, given: tuple[Artifact, Artifact, Artifact], release: Path, tmp_path: Path
) -> None:
    out = run(tmp_path, given, formats=["safetensors", "gguf-f16"], dtype=dtype)
    assert json.loads((out.path / "config.json").read_text())["dtype"] == dtype
    stored = load_file(out.path / WEIGHTS)
    for name, weights in load_file(given[0].path / WEIGHTS).items():
        assert torch.equal(stored[name], weights.to(getattr(torch, dtype)))
    assert (out.path / "gguf" / "model-f16.gguf").read_bytes() == (release / "gguf" / "model-f16.gguf").read_bytes()
    limit = json.loads((out.path / "parity.json").read_text())["formats"]["safetensors"]["tolerance"]
    assert limit == FORMATS["safetensors"].tolerance_of(dtype).model_dump()
    assert f"released in {dtype}" in (out.path / "README.md").read_text()
    assert TransformersRuntime(out.path).model.dtype == torch.float32, "the proof computes in float32"


def test_weights_that_a_dtype_has_no_number_for_are_refused(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    weights = load_file(model / WEIGHTS)
    weights["model.norm.weight"][0] = 1e6
    save_file(weights, model / WEIGHTS, metadata={"format": "pt"})
    (tmp_path / "out").mkdir()
    Safetensors().write(Source(model, dtype="bfloat16"), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight has weights up to 1e\+06"):
        Safetensors().write(Source(model, dtype="float16"), tmp_path / "out")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_large_weights_are_cut_into_files_with_an_index_and_a_tied_one_is_stored_once(
    family: str, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", family=family)
    weights = load_file(model / WEIGHTS)
    embedding = next(name for name in weights if "embed_tokens" in name or "wte" in name)
    save_file({**weights, "lm_head.weight": weights[embedding].clone()}, model / WEIGHTS, metadata={"format": "pt"})
    out = tmp_path / "out"
    out.mkdir()
    Safetensors(file_bytes=200_000).write(Source(model), out)
    index = json.loads((out / INDEX).read_text())
    assert set(index["weight_map"]) == set(weights)
    files = sorted(out.glob("model-*.safetensors"))
    assert len(files) > 1
    assert {path.name for path in files} == set(index["weight_map"].values())
    assert all(path.stat().st_size < 250_000 for path in files)
    assert index["metadata"]["total_parameters"] == count_parameters(model)
    assert {*files, out / INDEX} <= set(Safetensors().files(out))
    loaded = load_pretrained(out)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    ids = torch.arange(10, 30)[None]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, load_pretrained(model).eval()(ids).logits)


def test_a_release_without_plain_weights_has_no_files_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "int8").mkdir()
    (tmp_path / "int8" / "model.safetensors").write_bytes(b"")
    (tmp_path / "README.md").write_text("")
    assert FORMATS["safetensors"].files(tmp_path) == []
    assert [path.parent.name for path in FORMATS["int8"].files(tmp_path)] == ["int8"]


def test_four_bit_weights_are_for_a_gpu_on_disk_and_computed_in_float32_here(release: Path, tmp_path: Path) -> None:
    def on_disk(folder: Path) -> Any:
        return json.loads((folder / "int4" / "config.json").read_text())["quantization_config"][
            "bnb_4bit_compute_dtype"
        ]

    assert on_disk(release) == "float32", "as the profile says"
    Bitsandbytes(4).write(Source(make_model(tmp_path / "model"), compute=compute_dtype("auto")), tmp_path)
    assert on_disk(tmp_path) == "bfloat16"
    opened: Any = Bitsandbytes(4).open(tmp_path, 1)
    layers = [module for module in opened.model.modules() if hasattr(module, "compute_dtype")]
    assert layers
    assert {layer.compute_dtype for layer in layers} == {torch.float32}
    assert on_disk(tmp_path) == "bfloat16"


@pytest.mark.parametrize(
    ("asked", "precision", "stored", "expected"),
    [
        ("auto", "bfloat16", "float32", "bfloat16"),
        ("auto", "float8", "float32", "bfloat16"),
        ("auto", "float32", "bfloat16", "float32"),
        ("auto", "tf32", "float32", "float32"),
        ("auto", "", "bfloat16", "bfloat16"),
        ("auto", None, "float32", "float32"),
        ("auto", None, None, "float32"),
        ("float16", "bfloat16", "float32", "float16"),
    ],
)
def test_auto_is_the_precision_of_the_last_training(
    asked: Any, precision: str | None, stored: str | None, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dtype": stored} if stored else {}))
    told = None if precision is None else Provenance(link="sft", precision=precision)
    assert weights_dtype(asked, told, tmp_path) == expected


def test_ollama_renders_a_conversation_as_the_template_does(release: Path, given: Any, tmp_path: Path) -> None:
    text = (release / "Modelfile").read_text()
    assert text.startswith("FROM ./gguf/model-f16.gguf\n")
    assert (release / "gguf" / "model-f16.gguf").is_file()
    assert {f'PARAMETER stop "<|{end}|>"' for end in ("end", "endoftext")} <= set(text.splitlines())
    assert "PARAMETER num_ctx 128" in text
    assert f'TEMPLATE """{GO_TEMPLATE}"""' in text
    assert modelfile_prompt(text, CHAT) == rendered(given[0].path)
    assert modelfile(given[0].path, tmp_path, ["safetensors", "int8"]) is None
    preferred = modelfile(given[0].path, tmp_path, ["gguf-q4_0", "gguf-f16", "gguf-q8_0"])
    assert preferred is not None
    assert preferred.startswith("FROM ./gguf/model-q8_0.gguf")


def test_ollama_renders_roles_as_text_over_another_vocabulary(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(roles_as_text(EOS))
    text = modelfile(model, tmp_path, ["gguf-f16"])
    assert text is not None
    assert modelfile_prompt(text, CHAT) == rendered(model)


def rendered(model: Path) -> str:
    """The prompt of CHAT by a model's own template."""
    return str(load_tokenizer(model).apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False))


def test_ollama_gets_no_template_for_one_that_is_not_ours(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE_PATH.read_text().replace("<|end|>", "<|stop|>"))
    text = modelfile(model, tmp_path, ["gguf-f16"])
    assert text is not None
    assert "TEMPLATE" not in text


def test_the_usual_config_says_nothing_that_it_does_not_know() -> None:
    config = ExportConfig()
    assert (config.weights_licence, config.provenance, config.licences) == (None, None, {})
    assert "provenance" not in config.model_dump()
