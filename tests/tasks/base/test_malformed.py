"""Bases whose files are broken: each fault is refused in a sentence that names the file, the field and the remedy."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import GristmillError
from tasks.base import BaseConfig
from tasks.base.check import SAFE, check_files, check_model
from tasks.base.malformed import AGAIN, BELONGS, FETCH, SAVE_TOKENIZER
from tasks.base.source import known_config
from tasks.base.tokenizer import open_tokenizer
from tests.tasks.foreign import make_foreign

Change = Callable[[Path], Any]
CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
SHARD = "model-00001-of-00001.safetensors"
NORM = "model.layers.1.input_layernorm.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 100\n"


def config(**changes: Any) -> Change:
    return as_json(CONFIG, lambda known: known.update(changes))


def without(name: str) -> Change:
    return as_json(CONFIG, lambda known: known.pop(name))


def rope(**parameters: Any) -> Change:
    return config(rope_parameters={"rope_theta": 1e4, **parameters})


def as_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    def changed(folder: Path) -> None:
        known = json.loads((folder / name).read_text())
        change(known)
        (folder / name).write_text(json.dumps(known))

    return changed


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def cut(to: int) -> Change:
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:to])


def longer(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes() + b"more")


def header(**changes: Any) -> Change:
    """Other words about a tensor, in a header of another length."""

    def changed(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        known = json.loads(data[8:end])
        known[NORM].update(changes)
        new = json.dumps(known).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(new)) + new + data[end:])

    return changed


def index(content: Any = None, **parts: Any) -> Change:
    def changed(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / SHARD)
        (folder / INDEX).write_text(content or json.dumps({"metadata": {}, "weight_map": {NORM: SHARD}, **parts}))

    return changed


COUNTS = {
    "num_attention_heads": 0,
    "num_key_value_heads": -2,
    "hidden_size": 64.0,
    "num_hidden_layers": "2",
    "intermediate_size": -1,
    "vocab_size": True,
    "head_dim": -16,
    "max_position_embeddings": -1,
}
JSONS = (CONFIG, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
FAULTS: list[tuple[Change, str, str]] = [
    (
        rope(rope_type="yam"),
        "config.json of the base sets rope_type in rope_parameters to 'yam', which is none",
        BELONGS,
    ),
    (rope(rope_type=["yarn"]), "sets rope_type in rope_parameters to ['yarn'], which is none of", BELONGS),
    (config(rope_scaling={"type": "yam", "factor": 2.0}), "sets rope_type in rope_scaling to 'yam'", BELONGS),
    (config(rope_scaling="yarn"), "sets rope_scaling to 'yarn', not an object", BELONGS),
    (config(rope_parameters=[1]), "sets rope_parameters to [1], not an object", BELONGS),
    (rope(rope_type="yarn"), "sets rope_type in rope_parameters to 'yarn' without factor.", BELONGS),
    (rope(rope_type="llama3", factor=8.0), "'llama3' without high_freq_factor, low_freq_factor", BELONGS),
    (rope(rope_type="linear", factor="2"), "sets factor to '2', not a number above 0", BELONGS),
    (rope(rope_type="linear", factor=-2.0), "sets factor to -2.0, not a number above 0", BELONGS),
    (rope(rope_type="default", rope_theta=0), "sets rope_theta to 0, not a number above 0", BELONGS),
    (
        config(num_attention_heads=5, head_dim=None),
        "sets hidden_size to 64, which num_attention_heads, 5, doesn't divide",
        BELONGS,
    ),
    (config(num_key_value_heads=3), "are not those of a llama: mismatched are", "Use the config.json and"),
    (config(head_dim=15), "sets head_dim to 15, an odd number", BELONGS),
    *((config(**{name: value}), f"sets {name} to {value!r}, not a whole", BELONGS) for name, value in COUNTS.items()),
    (config(vocab_size=None), "sets vocab_size to null, which a llama doesn't take", BELONGS),
    (config(rms_norm_eps="1e-5"), 'sets rms_norm_eps to "1e-5", which a llama doesn\'t take', BELONGS),
    (config(hidden_act="swoosh"), "sets hidden_act to 'swoosh', which transformers doesn't know", BELONGS),
    (config(dtype="float7"), "sets dtype to 'float7', which torch doesn't know", BELONGS),
    (config(model_type=3), "sets model_type to 3, which transformers doesn't know", "Update transformers"),
    (without("model_type"), "lacks model_type", BELONGS),
    (without("hidden_size"), "config.json lacks hidden_size, so it is 4096", "Use the config.json and"),
    (without("num_hidden_layers"), "config.json lacks num_hidden_layers, so it is 32", "Use the config.json"),
    *((text(name, "{"), f"{name} of the base is not JSON", AGAIN) for name in (*JSONS, TOKENIZER)),
    *((text(name, "[]"), f"{name} of the base is not a JSON object", AGAIN) for name in (*JSONS, TOKENIZER)),
    *(
        (text(name, POINTER), f"{name} of the base is not there: a pointer of Git", FETCH)
        for name in (WEIGHTS, TOKENIZER)
    ),
    (cut(-1), "model.safetensors of the base is cut off: it has", AGAIN),
    *(
        (cut(to), f"model.safetensors of the base is cut off within its header, after {to}", AGAIN)
        for to in (0, 4, 100)
    ),
    (longer, "model.safetensors of the base doesn't fit its header", AGAIN),
    (text(WEIGHTS, "<!DOCTYPE html><html>"), "model.safetensors of the base is not a safetensors file", AGAIN),
    (text(WEIGHTS, "\x08" + "\0" * 7 + "notjson!"), "The header of model.safetensors of the base describes no", AGAIN),
    (header(dtype="F7"), "The header of model.safetensors of the base is wrong: unknown variant `F7`.", AGAIN),
    (header(shape=[63]), "The header of model.safetensors of the base is wrong: invalid shape", AGAIN),
    (index("{"), f"{INDEX} of the base is not JSON", AGAIN),
    (index(weight_map=None), f"{INDEX} of the base lacks weight_map", AGAIN),
    (index(weight_map={NORM: None}), f"{INDEX} of the base lacks weight_map", AGAIN),
    (index(metadata=None), f"{INDEX} of the base lacks metadata", AGAIN),
    (
        index(weight_map={NORM: "model-2.safetensors"}),
        "names model-2.safetensors, which is not a file",
        "Get that file",
    ),
    (index(weight_map={"other": SHARD}), f"says that other is in {SHARD}, which doesn't have it", "Get the index and"),
    (lambda folder: (folder / WEIGHTS).rename(folder / SHARD), f"but {INDEX} is missing", "Get that file too"),
    (as_json(TOKENIZER, lambda known: known.pop("model")), "tokenizer.json of the base lacks model", SAVE_TOKENIZER),
    (
        as_json(TOKENIZER, lambda known: known["model"].update(type="Bpe2")),
        "sets the type of its model to 'Bpe2'",
        SAVE_TOKENIZER,
    ),
    (
        as_json(TOKENIZER, lambda known: known["model"]["merges"].append(["zzz", "y"])),
        "tokenizer.json of the base can't be loaded: Token `zzz` out of vocabulary",
        SAVE_TOKENIZER,
    ),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_foreign(tmp_path_factory.mktemp("sound") / "llama", "llama")


def read(folder: Path) -> None:
    check_files(folder)
    check_model(folder)
    open_tokenizer(folder, "base", SAFE)


def test_a_sound_base_is_read(llama: Path) -> None:
    read(llama)


@pytest.mark.parametrize(("change", "said", "remedy"), FAULTS, ids=[said for _, said, _ in FAULTS])
def test_a_fault_is_named_with_its_remedy(change: Change, said: str, remedy: str, llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "base"))
    change(folder)
    with pytest.raises(GristmillError) as caught:
        read(folder)
    assert said in str(caught.value)
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("size", ["num_hidden_layers", "vocab_size"])
def test_a_plan_does_not_build_what_the_stage_would_refuse(size: str, llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "base"))
    assert known_config(BaseConfig(folder=str(folder))) is not None
    config(**{size: 10**9})(folder)
    assert known_config(BaseConfig(folder=str(folder))) is None
