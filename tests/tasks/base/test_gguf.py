"""A GGUF file as a base: dequantized once, with llama.cpp's ids and probabilities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader

from models.pretrained import load_pretrained
from models.tokenizer import BASE_FIELD, load_tokenizer
from storage.errors import GristmillError
from tasks.base import BaseConfig, base
from tasks.base.source import config_of_gguf, known_config
from tasks.export import ExportConfig, check_formats
from tasks.export.formats.gguf.file import write_gguf
from tasks.stage.output import Output
from tasks.tokenizer.patterns import gguf_pre_tokenizer
from tests.runtimes import runtime_of
from tests.tasks.foreign import CHATML, make_foreign, make_foreign_tokenizer

RUNTIME = runtime_of(group="posttrain", threads=1, device="cpu", checkpoint_every=100)


def take(config: BaseConfig, to: Path) -> Output:
    out = Output.at(to, stage="base", runtime=RUNTIME)
    base.function(config, out)
    return out


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama like SmolLM: each digit is split off, and nothing else is special."""
    tokenizer = make_foreign_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = gguf_pre_tokenizer("smollm")
    return make_foreign(tmp_path_factory.mktemp("theirs") / "llama", "llama", tokenizer)


@pytest.fixture(scope="module")
def file(theirs: Path) -> Path:
    path = theirs.parent / "llama.Q8_0.gguf"
    write_gguf(theirs, path, "q8_0")
    return path


@torch.no_grad()
def test_a_gguf_file_is_dequantized_and_keeps_its_tokenizer_and_its_template(
    file: Path, theirs: Path, tmp_path: Path
) -> None:
    out = take(BaseConfig(gguf=str(file)), tmp_path)
    model = out.path / "model"
    config = json.loads((model / "config.json").read_text())
    assert config[BASE_FIELD] == file.name
    assert "quantization_config" not in config
    assert (model / "chat_template.jinja").read_text() == CHATML
    ours, given = load_tokenizer(model), load_tokenizer(theirs)
    text = "The fox has 1234 hens,\n\n  isn't it 東京?"
    assert ours(text)["input_ids"] == given(text)["input_ids"]
    assert all(len(ours.decode(id).strip()) == 1 for id in ours("1234")["input_ids"])
    ids = torch.tensor([ours(text)["input_ids"]])
    one, other = (load_pretrained(folder)(ids).logits.log_softmax(-1) for folder in (model, theirs))
    assert 0 < (one - other).abs().max() < 0.05, "8 bits a weight"
    check_formats(ExportConfig(formats=["gguf-f16", "safetensors"]), model)


def test_a_file_is_read_once_for_many_plans_and_again_when_it_changed(theirs: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for precision in ("f16", "f32"):
        write_gguf(theirs, path, precision)
        before = config_of_gguf.cache_info().misses
        one, other = (known_config(BaseConfig(gguf=str(path))) for _ in range(2))
        assert config_of_gguf.cache_info().misses == before + 1
        assert one is not other, "a caller may change it"
        assert one.hidden_size == other.hidden_size == 64


def named(text: bytes, other: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = path.read_bytes()
        assert data.count(text) == 1
        path.write_bytes(data.replace(text, other))

    return change


def cut(to: int) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(path.read_bytes()[:to]), None)[1]


def number(field: str, value: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        known = GGUFReader(path).fields[field]
        start = known.offset + sum(part.nbytes for part in known.parts[:-1])
        data = path.read_bytes()
        path.write_bytes(data[:start] + value.to_bytes(4, "little") + data[start + 4 :])

    return change


FIELDS = (b"llama.block_count", b"llama.embedding_length", b"llama.context_length", b"tokenizer.ggml.merges")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (named(b"smollm", b"smullm"), "is gpt2 smullm, but only gpt2 is read from GGUF files, with gpt-2, dbrx"),
        (named(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma"), "is a gemma, but only a llama"),
        (named(b"llama.rope.dimension_count", b"llamaaaa.rope.scaling.type"), "has llamaaaa.rope.scaling.type, which"),
        (named(b"general.architecture", b"general.architecturf"), "is of no architecture, but only a llama"),
        (lambda path: path.write_bytes(b"nothing"), "llama.Q8_0.gguf is not a GGUF file. Get the file again"),
        (lambda path: path.write_bytes(b"version https://git-lfs"), "a pointer of Git LFS is in its place"),
        (lambda path: path.write_bytes(b"GGUF\x01" + bytes(60)), "is a GGUF file of version 1, but 2 and 3 are read"),
        *((cut(to), "is not a whole GGUF file: .* bytes are too few") for to in (10, 1000, -1)),
        *((named(field, field[:-1] + b"_"), f"gguf lacks {field.decode()}") for field in FIELDS),
        (named(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"), "gguf lacks the tensor blk.0.attn_q.weight"),
        (number("llama.attention.head_count", 0), "sets llama.attention.head_count to 0, not a whole number above 0"),
        (number("llama.attention.head_count", 3), "to 64, which llama.attention.head_count, 3, doesn't divide"),
        (number("llama.block_count", 10**9), "sets llama.block_count to 1,000,000,000, but has 2 blocks"),
    ],
)
def test_what_is_not_read_from_gguf_is_refused_by_name(
    file: Path, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    copy = Path(shutil.copyfile(file, tmp_path / file.name))
    change(copy)
    with pytest.raises(GristmillError, match=said):
        take(BaseConfig(gguf=str(copy)), tmp_path / "taken")
