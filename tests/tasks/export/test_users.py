"""Users with the folder of a release, the packages that its card names and nothing else, get the text on the card.

How that is judged: a format of float32 or float16 says what the card shows. Of one of few bits as many texts may differ
as its proof found to differ, a near-tie being a difference here (parity.json: prompts, same_greedy, greedy_ties).
Graphs are in test_graphs.py, plain weights in test_release_folder.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from models.pretrained import load_pretrained
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import load_tokenizer
from tasks.export.formats import FORMATS
from tasks.export.formats.gguf.file import write_gguf
from tests.tasks.export.test_adapter import COMMIT, FIRST, adapt, base_named, release
from tests.tasks.export.users import LLAMA_CPP, TRANSFORMERS, ask, card_line, modelfile_prompt, site
from tests.tasks.tiny_model import make_model, make_validation, texts

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("compressed_tensors", "torchao")),
    reason="the extra is not installed: pip install 'gristmill[export]'",
)
TOKENS = 16
PROMPTS = ["The fox lives in the", "Nobody in the yard", "The history of"]
CHAT = [{"role": "user", "content": "Where does the fox live?"}]
PACKAGES = {
    ("int8", "int4"): ("transformers", "bitsandbytes", "accelerate"),
    ("w4a16", "gptq", "awq", "w8a8"): ("transformers", "compressed-tensors"),
    ("torchao-int8",): ("transformers", "torch", "torchao"),
    ("adapter",): ("peft",),
}
OF_LLAMA_CPP = ("gguf-f16", "gguf-q4_k_m", "gguf-adapter")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that has learned what animals do, and an adapter over it."""
    folder = tmp_path_factory.mktemp("chain")
    learn(base_named(make_model(folder / "base", kv_heads=2, feed_forward=192), f"someone/tiny@{COMMIT}"))
    adapt(folder / "base", folder / "sft", FIRST, 1)
    make_validation(folder / "validation", folder / "base")
    return folder


@pytest.fixture(scope="module")
def folder(chain: Path) -> Path:
    """The release, in every format but graphs."""
    formats = ["safetensors", *(name for names in PACKAGES for name in names), *OF_LLAMA_CPP]
    settings = {"prompts": PROMPTS, "greedy_tokens": TOKENS, "positions": 64, "dtype": "float32"}
    return release(chain, chain / "release", "sft", formats=formats, **settings).path


def learn(model: Path, steps: int = 60) -> None:
    """Some steps on sentences: weights drawn at random find many tokens almost equally likely."""
    learner, tokenizer = load_pretrained(model), load_tokenizer(model)
    ids = torch.tensor([id for text in texts() for id in [*tokenizer.encode(text), 0]])
    optimizer = torch.optim.AdamW(learner.parameters(), lr=5e-3)
    drawn = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.stack([ids[at : at + 64] for at in torch.randint(len(ids) - 64, (8,), generator=drawn).tolist()])
        learner(rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    config = (model / "config.json").read_bytes()
    learner.save_pretrained(model)
    (model / "config.json").write_bytes(config)


def judge(folder: Path, said: Mapping[str, Sequence[str]]) -> None:
    """Compare what formats said with what the card shows."""
    proof = json.loads((folder / "parity.json").read_text())
    shown = [one["text"] for one in proof["samples"]]
    card = (folder / "README.md").read_text()
    assert all(f"text\n{text}\n```" in card for text in shown)
    assert all(shown)
    for name, found in said.items():
        measured = proof["formats"][name]
        may_differ = measured["prompts"] - measured["same_greedy"] + measured["greedy_ties"]
        differ = sum(one != other for one, other in zip(shown, found, strict=True))
        assert differ <= (0 if FORMATS[name].tolerance.same_greedy else may_differ), (name, found)


@pytest.mark.soak
@pytest.mark.parametrize("names", PACKAGES, ids=", ".join)
def test_a_user_of_transformers_gets_the_text_on_the_card(
    names: tuple[str, ...], chain: Path, folder: Path, tmp_path: Path
) -> None:
    """Of an adapter that came over a base of a hub, which lies in the user's cache as the hub's client leaves it."""
    cached = tmp_path / ".cache" / "huggingface" / "hub" / "models--someone--tiny" / "snapshots" / COMMIT
    shutil.copytree(chain / "base", cached)
    packages = site(tmp_path / "site", *PACKAGES[names])
    lines = {name: card_line(folder, name) for name in names}
    judge(folder, ask(TRANSFORMERS, packages, folder, tmp_path, prompts=PROMPTS, tokens=TOKENS, lines=lines))


def test_a_user_of_llama_cpp_gets_the_text_on_the_card_and_its_conversations(
    chain: Path, folder: Path, tmp_path: Path
) -> None:
    """By the file's own template, and by that of the Modelfile."""
    write_gguf(chain / "base", tmp_path / "BASE.gguf", "f32")
    lines = {name: card_line(folder, name) for name in OF_LLAMA_CPP}
    lines["gguf-adapter"] = lines["gguf-adapter"].replace("BASE.gguf", str(tmp_path / "BASE.gguf"))
    prompts = [*PROMPTS, modelfile_prompt((folder / "Modelfile").read_text(), CHAT)]
    packages = site(tmp_path / "site", "xllamacpp")
    said: dict[str, Any] = ask(
        LLAMA_CPP, packages, folder, tmp_path, prompts=prompts, tokens=TOKENS, lines=lines, chat=CHAT
    )
    judge(folder, {name: found[: len(PROMPTS)] for name, found in said.items()})
    expected = TransformersRuntime(chain / "sft" / "model").chat(CHAT, TOKENS)
    for name in ("gguf-f16", "gguf-adapter"):
        assert [one.strip() for one in said[name][len(PROMPTS) :]] == [expected, expected]
