"""Virtual tokens, by prefix and prompt tuning: what is trained, loaded, measured and released is one and the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.pretrained import context_of, load_config, load_pretrained
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import load_tokenizer
from profiles.load import load
from storage.artifact import Artifact
from storage.errors import ConfigError, SourceError
from tasks.base.check import check_format
from tasks.export import ExportConfig, export
from tasks.export.release import open_release
from tasks.posttrain.check import check_runtime
from tasks.posttrain.methods import METHODS
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.kto import KtoConfig, kto
from tasks.posttrain.methods.orpo import OrpoConfig, orpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.stage.output import Output
from tasks.training.adapters.config import check_sight
from tests.runtimes import runtime_of
from tests.tasks.posttrain.test_posttrain import output
from tests.tasks.tiny_model import RUNTIME, make_instructions, make_model, make_preferences, make_validation

TOKENS = 4
BASE = {"global_batch": 16, "learning_rate": 3e-2}


def settings(kind: str) -> dict[str, Any]:
    return {**BASE, "adapter": {"kind": kind, "tokens": TOKENS}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model", kv_heads=2))


@pytest.fixture(scope="module")
def tuned(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("sft")
    out = output(folder, "sft")
    config = SftConfig.model_validate(settings("prefix"))
    sft.function(config, model, Artifact.at(make_instructions(folder / "pairs")), out)
    return out


@pytest.fixture(scope="module")
def prompted(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("sft")
    out = output(folder, "sft")
    config = SftConfig.model_validate(settings("prompt"))
    sft.function(config, model, Artifact.at(make_instructions(folder / "pairs")), out)
    return out


def by_hand(model: Artifact, adapter: Path, ids: torch.Tensor) -> torch.Tensor:
    from peft import PeftModel

    with torch.no_grad():
        found: torch.Tensor = PeftModel.from_pretrained(load_pretrained(model.path), adapter).eval()(ids).logits
    return found[:, -ids.shape[1] :]


def test_what_is_trained_is_counted_and_loaded_again(model: Artifact, tuned: Output, prompted: Output) -> None:
    layers, kv = 2, 2 * 16
    for out, numbers in ((tuned, TOKENS * layers * 2 * kv), (prompted, TOKENS * 64)):
        whole = sum(value.numel() for value in load_pretrained(model.path).parameters())
        assert out.counts["trained_parameters"] == numbers
        assert out.counts["parameters"] == whole + numbers
        assert out.counts["validation_loss"] < out.counts["initial_validation_loss"]
        assert f"{TOKENS} virtual tokens" in out.counts["summary"]
        folder = out.path / "model"
        assert load_file(folder / "model.safetensors").keys() == load_file(model.path / "model.safetensors").keys()
        ids = torch.randint(0, 600, (1, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            ours = load_pretrained(folder).eval()(ids).logits
            bare = load_pretrained(model.path).eval()(ids).logits
        assert torch.allclose(ours, by_hand(model, out.path / "adapter", ids), atol=1e-5)
        assert (ours - bare).abs().max() > 0.1
        assert context_of(load_config(folder)) == context_of(load_config(model.path)) - TOKENS
