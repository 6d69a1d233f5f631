"""How a base begins a text and ends a turn, in everything made from it: configs, GGUF, llama.cpp, its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from models.runtimes.llama_cpp import LlamaCppRuntime
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import load_tokenizer
from tasks.base import BaseConfig, base
from tasks.export.card.modelfile import modelfile
from tasks.export.formats.gguf.file import write_gguf
from tasks.stage.output import Output
from tests.models.families import CHAT, FAMILIES, SYSTEM, Family
from tests.tasks.base.test_base import RUNTIME, take
from tests.tasks.foreign import CHATML, make_foreign
from tests.tasks.foreign import SPECIAL as IM

BOS = ["<s>", *IM]
SILENT = Family(CHATML, BOS, IM[0], [], IM[2], bos="<s>", adds_bos=True)  # of BOS
NONE = Family("", BOS, IM[0], [], IM[0], bos="<s>", adds_bos=True)
BASES = {
    **{name: FAMILIES[name] for name in ("llama 3", "qwen 3", "phi 3", "glm 4", "vicuna", "falcon")},
    "leaves bos out": SILENT,
    "has no template": NONE,
}


@pytest.mark.parametrize("family", BASES.values(), ids=BASES)
def test_llama_cpp_and_transformers_read_the_same(family: Family, tmp_path: Path) -> None:
    out = take(make_foreign(tmp_path / "theirs", "llama", family.tokenizer()), tmp_path / "base")
    model = out.path / "model"
    write_gguf(model, tmp_path / "model.gguf", "f32")
    ours = TransformersRuntime(model)
    spelt = "".join(ours.tokenizer.added_tokens_encoder)
    asked = [CHAT[:1], CHAT[:3], [{"role": "user", "content": f"hi{spelt}\n<|user|>\nUSER: [INST]"}]]
    with LlamaCppRuntime(tmp_path / "model.gguf") as runtime:
        for text in ("The fox's 12 hens!", "naïve 東京\n\n x", spelt):
            assert runtime.tokenize(text) == ours.tokenize(text)
            assert (ours.tokenize(text)[0] == ours.tokenizer.bos_token_id) == family.adds_bos
        for chat in asked:
            ids = ours.chat_ids(chat)
            assert ids.count(ours.tokenizer.bos_token_id) == family.adds_bos
            assert np.array_equal(runtime.chat_log_probabilities(chat), runtime.log_probabilities(ids))
    ends = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    assert {*ours.tokenizer.convert_ids_to_tokens(ends)} == {family.eos, family.end}


TOLD = {
    "chatml": (FAMILIES["chatml"], "nothing but its words", "<|im_end|>, after every answer"),
    "phi 3": (FAMILIES["phi 3"], "nothing but its words", "<|end|>, after every answer"),
    "glm 4": (FAMILIES["glm 4"], "nothing but its words", "<|user|>, which opens the next turn"),
    "falcon": (FAMILIES["falcon"], "nothing but its words", "no token of the template"),
    "leaves bos out": (SILENT, "<s>", "<|im_end|>, after every answer"),
    "has no template": (NONE, "<s>", "<|endoftext|>, after every answer"),
}


@pytest.mark.parametrize("name", TOLD)
def test_the_page_of_a_base_shows_what_is_learned_and_what_ends_it(name: str, tmp_path: Path) -> None:
    family, begins, ends = TOLD[name]
    out = take(make_foreign(tmp_path / "theirs", "llama", family.tokenizer()), tmp_path / "base")
    told = {row["what"]: row["value"] for row in out.counts["tables"]["Base"]}
    assert told["a text begins with"] == begins
    assert told["a turn ends with"].startswith(ends)
    assert told["a generation ends at"].split() == [*dict.fromkeys([family.eos, family.end])]
    question, questions, system = (row["learned"] for row in out.counts["tables"]["What is learned of a conversation"])
    assert question.strip() == system.strip() == f"In the wood.{family.end}"
    middle = "" if family.by == "nothing" else family.end
    assert questions.replace(" ", "") == f"Inthewood.{middle}…Intheyard.{family.end}"


def test_ollama_gets_a_template_for_ours_over_another_vocabulary(tmp_path: Path) -> None:
    folder = take(make_foreign(tmp_path / "theirs", "llama", NONE.tokenizer()), tmp_path / "base").path / "model"
    text = modelfile(folder, tmp_path, ["gguf-f32"])
    assert text is not None
    assert "{{ .Content }}<|endoftext|>" in text
    rendered = load_tokenizer(folder).apply_chat_template([SYSTEM, *CHAT[:1]], tokenize=False)
    assert rendered.startswith("<s><|system|>\n"), "Ollama puts its BOS before it"


def test_a_gguf_file_whose_texts_begin_with_bos_is_a_base_whose_texts_do(tmp_path: Path) -> None:
    given, out = SILENT.tokenizer(), Output.at(tmp_path / "base", stage="base", runtime=RUNTIME)
    write_gguf(make_foreign(tmp_path / "theirs", "llama", given), tmp_path / "bos.gguf", "f32")
    base.function(BaseConfig(gguf=str(tmp_path / "bos.gguf")), out)
    assert load_tokenizer(out.path / "model")("The fox")["input_ids"] == given("The fox")["input_ids"]
