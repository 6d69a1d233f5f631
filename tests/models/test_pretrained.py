"""Models of a folder: pickled weights and their own code are never run, and weights read later are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.pretrained import WEIGHTS, allocate_pretrained, load_pretrained, weights_for
from tests.tasks.planted_code import plant_code
from tests.tasks.pretrain.bases import FOREIGN, made


def test_weights_in_a_pickle_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
    plant_code(tmp_path / "pytorch_model.bin", tmp_path / "ran")
    with pytest.raises(OSError, match="safetensors"):
        load_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_code_beside_a_model_is_not_run(tmp_path: Path) -> None:
    described = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.mark.parametrize("family", [*FOREIGN, "gpt2", "qwen3_moe"])
def test_weights_that_are_read_later_are_those_of_a_model_loaded_whole(family: str, folder: Path) -> None:
    _, base = made(folder, family)
    check_the_same(base.path)


@pytest.mark.parametrize("change", ["bfloat16", "other name"])
def test_they_are_the_same_in_16_bits_and_under_the_other_name_of_a_tied_matrix(change: str, folder: Path) -> None:
    _, base = made(folder, "qwen2")
    for file in base.path.iterdir():
        (target := folder / change / file.name).parent.mkdir(exist_ok=True)
        target.write_bytes(file.read_bytes())
    tensors = load_file(base.path / WEIGHTS)
    if change == "bfloat16":
        tensors = {name: value.bfloat16() for name, value in tensors.items()}
    else:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / change / WEIGHTS, metadata={"format": "pt"})
    check_the_same(folder / change)


def check_the_same(base: Path) -> None:
    whole, later = load_pretrained(base), allocate_pretrained(base)
    parameters = dict(later.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.fill_(torch.nan)
        for name, value in weights_for(later, base):
            parameters[name].copy_(value)
    ids = torch.arange(20)[None]
    assert torch.equal(later(ids).logits, whole(ids).logits)
    assert later.config.to_dict() == whole.config.to_dict()
    assert later.generation_config.to_dict() == whole.generation_config.to_dict()
    assert [type(later), later.dtype, later.training] == [type(whole), whole.dtype, whole.training]
    buffers = dict(later.named_buffers())
    assert all(torch.equal(buffers[name], value) for name, value in whole.named_buffers())
