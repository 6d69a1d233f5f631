"""Merging: each method against numbers computed by numpy, adapters against PEFT's own merging, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.pretrained import load_pretrained
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.maintain import lineage_of
from storage.store import Store
from tasks.base import BaseConfig, base
from tasks.posttrain.merge import MergeConfig, merge
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tasks.training.adapters.config import LoraConfig
from tests.runtimes import runtime_of
from tests.tasks.export.test_adapter import adapt
from tests.tasks.tiny_model import RUNTIME, make_model

METHODS = ("linear", "ties", "dare_linear", "dare_ties")
WEIGHTS = (0.75, 0.5)
WHOLE = "model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and two models with adapters over it."""
    folder = tmp_path_factory.mktemp("merge")
    make_model(folder / "base", kv_heads=2)
    adapt(folder / "base", folder / "sft", LoraConfig(rank=4, alpha=12), 1)
    adapt(folder / "base", folder / "dpo", LoraConfig(rank=2, alpha=6), 2)
    return folder


def merged(made: Path, to: Path, links: tuple[str, ...] = ("sft", "dpo"), **config: Any) -> dict[str, torch.Tensor]:
    out = Output.at(to, stage="merge", runtime=RUNTIME)
    given = {name: Artifact.at(made / name / "model") for name in links}
    merge.function(MergeConfig.model_validate(config), Artifact.at(made / "base"), given, out)
    return load_file(out.path / "model" / WHOLE)


def models(*weights: float) -> list[dict[str, Any]]:
    return [{"link": name, "weight": weight} for name, weight in zip(("sft", "dpo"), weights, strict=True)]


def transcribed(method: str, base: Any, others: list[Any], weights: list[float], density: float, masks: Any) -> Any:
    """The method of its paper, in numpy. `masks` are what DARE keeps."""
    changes = [(other - base).astype(np.float32) for other in others]
    if method == "ties":
        kept = []
        for change in changes:
            flat = np.zeros(change.size, np.float32)
            largest = np.argsort(-np.abs(change).ravel(), kind="stable")[: int(density * change.size)]
            flat[largest] = change.ravel()[largest]
            kept.append(flat.reshape(change.shape))
        changes = kept
    elif method.startswith("dare"):
        changes = [change * mask / np.float32(density) for change, mask in zip(changes, masks, strict=True)]
    scaled = [weight * change for weight, change in zip(weights, changes, strict=True)]
    if method in ("linear", "dare_linear"):
        return base + sum(scaled)
    sign = np.where(sum(changes) >= 0, 1, -1)
    agree = [np.sign(change) == sign for change in changes]
    return base + sum(one * yes for one, yes in zip(scaled, agree, strict=True)) / np.maximum(sum(agree), 1)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_equals_its_transcription(method: str, made: Path, tmp_path: Path) -> None:
    draws = method.startswith("dare")
    settings: dict[str, Any] = {
        "method": method,
        "models": models(*WEIGHTS),
        **({} if method == "linear" else {"density": 0.4}),
    }
    if draws:
        settings["seed"] = 5
    found = merged(made, tmp_path / "out", **settings)
    base, *others = (load_file(made / folder / WHOLE) for folder in ("base", "sft/model", "dpo/model"))
    torch.manual_seed(5)
    changed = 0
    for name in [*load_order(made / "base")]:
        values = base[name].numpy()
        masks = [torch.bernoulli(torch.full_like(base[name], 0.4)).numpy() for _ in others] if draws else None
        expected = transcribed(method, values, [one[name].numpy() for one in others], [*WEIGHTS], 0.4, masks)
        np.testing.assert_allclose(found[name].numpy(), expected, atol=1e-6)
        changed += int(not np.array_equal(expected, values))
    assert changed == 14, "every linear layer but the head"


def load_order(folder: Path) -> list[str]:
    from models.pretrained import weights_for

    return [name for name, _ in weights_for(load_pretrained(folder), folder)]


@pytest.mark.parametrize(("ours", "theirs"), [("linear", "cat"), ("ties", "ties_svd")])
def test_adapters_are_merged_as_peft_merges_them(ours: str, theirs: str, made: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    square = LoraConfig(rank=4, alpha=12, targets=["q_proj", "o_proj"])  # all of whose products have the rank 64
    for seed, name in enumerate(("sft", "dpo")):
        adapt(made / "base", tmp_path / name, square, seed)
    shutil.copytree(made / "base", tmp_path / "base")
    more: dict[str, Any] = {} if ours == "linear" else {"density": 0.4}
    found = merged(tmp_path, tmp_path / "out", method=ours, models=models(*WEIGHTS), **more)
    peft: Any = PeftModel.from_pretrained(load_pretrained(made / "base"), tmp_path / "sft" / "adapter", "sft")
    peft.load_adapter(tmp_path / "dpo" / "adapter", "dpo")
    full = {} if ours == "linear" else {"svd_rank": 64, **more}
    peft.add_weighted_adapter(["sft", "dpo"], list(WEIGHTS), "both", combination_type=theirs, **full)
    peft.set_adapter("both")
    expected = peft.merge_and_unload().state_dict()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)


def test_a_model_from_elsewhere_is_part_of_the_key_and_of_the_lineage(made: Path, tmp_path: Path) -> None:
    store, runtime = Store(str(tmp_path / "store")), runtime_of(threads=1, device="cpu")
    with open_session(Session(store, runtime, "first")):
        first, _ = base.materialize(BaseConfig(folder=str(made / "base")), [])
        alien, _ = base.materialize(BaseConfig(folder=str(made / "sft" / "model")), [])
    with open_session(Session(store, runtime, "second")):
        copy, _ = base.materialize(BaseConfig(artifact=first.location), [])
        start = first.part("model")

        def both(other: Artifact) -> Artifact:
            names = [{"link": "base"}, {"base": {"artifact": other.location}, "weight": 2}]
            return merge.materialize(MergeConfig.model_validate({"models": names}), [start, {"base": start}])[0]

        result = both(copy)
        assert result.manifest is not None
        inputs = result.manifest.payload.inputs
        assert inputs[f"source:merge.{copy.location}: artifact"] == copy.part("model").digest
        assert inputs["base"] == inputs["links.base"] == start.digest
        assert copy.location in lineage_of(store, result.location)
        with pytest.raises(ConfigError, match=f"{alien.location} wasn't trained from {first.location}"):
            both(alien)


def test_without_weights_it_is_the_mean_of_the_models(made: Path, tmp_path: Path) -> None:
    names = [{"link": "sft"}, {"link": "dpo"}, {"base": {"folder": str(made / "base")}}]
    found = merged(made, tmp_path / "out", models=names)
    parts = [load_file(made / folder / WHOLE) for folder in ("base", "sft/model", "dpo/model")]
    for name, value in found.items():
        torch.testing.assert_close(value, torch.stack([one[name] for one in parts]).mean(0), atol=1e-6, rtol=0)


def test_a_model_of_another_kind_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "wide", width=96, heads=6, kv_heads=2)
    copy = tmp_path / "said"
    shutil.copytree(made / "dpo" / "model", copy)
    (copy / "chat_template.jinja").write_text((copy / "chat_template.jinja").read_text() + " ")
    for other, message in ((tmp_path / "wide", "where the base of the chain has"), (copy, "has another tokenizer")):
        given = {"sft": Artifact.at(made / "sft" / "model"), "dpo": Artifact.at(other)}
        out = Output.at(tmp_path / message[:3], stage="merge", runtime=RUNTIME)
        with pytest.raises(ConfigError, match=rf"merge\.models: dpo .*{message}"):
            merge.function(MergeConfig.model_validate({"models": models(1, 1)}), Artifact.at(made / "base"), given, out)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"density": 0.5}, "linear keeps all numbers"),
        ({"method": "ties", "seed": 1}, "ties draws nothing"),
        ({"models": [{"link": "sft"}, {"link": "sft"}]}, "names sft twice"),
        ({"models": [{"link": "sft"}, {"weight": 1}]}, "name one model"),
    ],
)
def test_settings_that_dont_apply_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MergeConfig.model_validate({"models": models(1, 1), **wrong})
