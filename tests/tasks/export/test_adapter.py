"""Adapters in a release: proved over their base in PEFT and in llama.cpp, several as one, refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.chain import Chain, Start
from models.pretrained import load_pretrained
from models.runtimes.llama_library import LlamaLibrary
from models.runtimes.protocol import RuntimeFault
from models.tokenizer import BASE_FIELD, copy_tokenizer
from profiles.load import load
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import ConfigError, ParityError, StoreError
from tasks.export import ExportConfig, export
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Adapted, Source
from tasks.export.proof.judge import require
from tasks.export.proof.reference import Reference
from tasks.export.release import open_release
from tasks.export.run import prove
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.stage.output import Output
from tasks.training.adapters.config import LoraConfig
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.save import save_adapter
from tests.tasks.base.test_base import RUNTIME as TRAINING
from tests.tasks.base.test_base import questions, take
from tests.tasks.foreign import make_foreign
from tests.tasks.tiny_model import RUNTIME, make_instructions, make_model, make_validation

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BOTH = ("adapter", "gguf-adapter")
PROMPTS = ["The fox lives in the", "Nobody in the yard"]
FIRST = LoraConfig(rank=4, alpha=12)
SECOND = LoraConfig(rank=2, alpha=6, rslora=True, targets=["q_proj", "down_proj"])


def adapt(model: Path, folder: Path, settings: LoraConfig, seed: int) -> Path:
    """An adapter drawn at random, in adapter/, and the model with it merged in model/, as a link leaves them."""
    from peft import PeftModel, get_peft_model

    base = load_pretrained(model)
    config = peft_config("sft", settings, base)
    config.init_lora_weights = False
    torch.manual_seed(seed)
    drawn = get_peft_model(base, config).state_dict()
    by = {"lora_B": 0.1, "modules_to_save": 1.1}
    state = {name: value * next((by[part] for part in by if part in name), 1) for name, value in drawn.items()}
    save_adapter(config, state, load_pretrained(model), "sha256:0", folder / "adapter")
    merged: Any = PeftModel.from_pretrained(load_pretrained(model), folder / "adapter").merge_and_unload()
    merged.save_pretrained(folder / "model")
    copy_tokenizer(model, folder / "model")
    return folder


def base_named(folder: Path, name: str) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, BASE_FIELD: name}))
    return folder


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and two links that were trained on it with adapters of different kinds."""
    folder = tmp_path_factory.mktemp("chain")
    base_named(make_model(folder / "base", kv_heads=2), f"someone/tiny@{COMMIT}")
    adapt(folder / "base", folder / "sft", FIRST, 1)
    adapt(folder / "sft" / "model", folder / "dpo", SECOND, 2)
    make_validation(folder / "validation", folder / "base")
    return folder


def release(chain: Path, to: Path, *links: str, **config: Any) -> Output:
    out = Output.at(to, stage="export", runtime=RUNTIME)
    settings = {"formats": BOTH, "prompts": PROMPTS, "greedy_tokens": 12, "positions": 256, **config}
    given = {"base": Artifact.at(chain / "base")} | {name: Artifact.at(chain / name / "adapter") for name in links}
    model, validation = Artifact.at(chain / links[-1] / "model"), Artifact.at(chain / "validation")
    export.function(ExportConfig.model_validate(settings), model, None, validation, given, None, out)
    return out


@pytest.mark.soak
def test_an_adapter_is_proved_over_its_base_and_says_which_that_is(chain: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader
    from peft import AutoPeftModelForCausalLM

    out = release(chain, tmp_path, "sft", name="Tiny", weights_licence="MIT")
    proof = json.loads((out.path / "parity.json").read_text())["formats"]
    for name in BOTH:
        assert proof[name]["same_greedy"] == proof[name]["prompts"]
        assert proof[name]["worst_tensor"]
        assert proof[name]["bytes"] < (chain / "base" / "model.safetensors").stat().st_size
    assert not list(out.path.glob("*.safetensors"))
    assert not list(out.path.rglob("base.gguf"))
    settings = json.loads((out.path / "adapter" / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == ("someone/tiny", COMMIT)
    assert (settings["r"], settings["lora_alpha"]) == (4, 12)
    fields = GGUFReader(out.path / "gguf-adapter" / "adapter.gguf").fields
    told = {name: fields[name].contents() for name in fields if not name.startswith("GGUF.")}
    assert told == {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 12.0,
        "general.name": "Tiny",
        "general.license": "MIT",
        "general.base_model.count": 1,
        "general.base_model.0.name": "someone/tiny",
        "general.base_model.0.version": COMMIT,
        "general.base_model.0.repo_url": "https://huggingface.co/someone/tiny",
    }
    lineage = json.loads((out.path / "lineage.json").read_text())
    assert lineage["adapter sft"] == Artifact.at(chain / "sft" / "adapter").digest
    card = (out.path / "README.md").read_text()
    assert "--lora gguf-adapter/adapter.gguf" in card
    assert 'AutoPeftModelForCausalLM.from_pretrained("adapter")' in card
    # As a user loads it who has the base under its name
    settings |= {"base_model_name_or_path": str(chain / "base"), "revision": None}
    (out.path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    ids = torch.arange(10, 40)[None]
    with torch.no_grad():
        theirs = AutoPeftModelForCausalLM.from_pretrained(out.path / "adapter")(ids).logits
        assert (theirs - load_pretrained(chain / "sft" / "model")(ids).logits).abs().max() < 1e-4
        assert (theirs - load_pretrained(chain / "base")(ids).logits).abs().max() > 0.1


@pytest.mark.soak
def test_adapters_trained_one_after_the_other_are_one_of_the_summed_rank(chain: Path, tmp_path: Path) -> None:
    out = release(chain, tmp_path, "sft", "dpo")
    settings = json.loads((out.path / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["use_rslora"]) == (6, 6, False)
    assert "v_proj" in settings["target_modules"]
    with pytest.raises(ParityError, match="adapter doesn't match its checkpoint"):
        release(chain, tmp_path / "less", "dpo", formats=["adapter"])


@pytest.mark.soak
def test_a_base_of_others_is_tuned_and_released_as_an_adapter(tmp_path: Path) -> None:
    base = Artifact.at(take(make_foreign(tmp_path / "theirs", "llama"), tmp_path / "base").path / "model")
    tuned, released = (Output.at(tmp_path / stage, stage=stage, runtime=TRAINING) for stage in ("sft", "export"))
    pairs = Artifact.at(make_instructions(tmp_path / "pairs"))
    sft.function(SftConfig(epochs=1, learning_rate=5e-3, adapter=FIRST), base, pairs, tuned)
    given = {"base": base, "sft": Artifact.at(tuned.path / "adapter")}
    config = ExportConfig(formats=[*BOTH], prompts=PROMPTS, greedy_tokens=8, positions=16)
    asked = questions(tmp_path / "benchmarks")
    export.function(config, Artifact.at(tuned.path / "model"), None, asked, given, None, released)
    settings = json.loads((released.path / "adapter" / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == ("theirs", None)


@pytest.mark.soak
@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
@pytest.mark.parametrize("rslora", [False, True])
def test_other_families_and_scales_are_proved_too(family: str, rslora: bool, tmp_path: Path) -> None:
    base = make_foreign(tmp_path / "base", family)
    adapt(base, tmp_path / "sft", LoraConfig(rank=3, alpha=7, rslora=rslora), 3)
    written, reference, adapted = write(tmp_path, base, tmp_path / "sft")
    for name in BOTH:
        weights, parity, _ = prove(reference, name, written, 1, adapted)
        require(name, parity, weights, FORMATS[name].tolerance)
        assert weights.tensors > 10
        assert not np.isnan(parity.perplexity)


def test_parts_that_were_trained_whole_are_those_of_the_last_adapter(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", kv_heads=2)
    for number, (name, before, whole) in enumerate(
        [("sft", base, ("embedding", "head")), ("dpo", tmp_path / "sft" / "model", ("embedding", "head", "norms"))]
    ):
        adapt(before, tmp_path / name, LoraConfig(rank=2, whole=whole), number)
    for links in (["sft"], ["sft", "dpo"]):
        given = [tmp_path / one for one in links]
        written, reference, adapted = write(tmp_path / links[-1] / "as", base, *given, formats=("adapter",))
        weights, parity, _ = prove(reference, "adapter", written, 1, adapted)
        require("adapter", parity, weights, FORMATS["adapter"].tolerance)


def write(folder: Path, base: Path, *links: Path, formats: tuple[str, ...] = BOTH) -> tuple[Path, Reference, Adapted]:
    """Formats, without the stage."""
    model, written = links[-1] / "model", folder / "written"
    adapted = Adapted(base, tuple(link / "adapter" for link in links), "theirs", folder / "scratch")
    for made in (written, adapted.scratch):
        made.mkdir(parents=True, exist_ok=True)
    for name in formats:
        FORMATS[name].write(Source(model, adapted=adapted), written)
    drawn = np.random.default_rng(0).integers(10, 250, (2, 60)).tolist()
    config = ExportConfig(prompts=PROMPTS, greedy_tokens=4)
    return written, Reference(model, tuple(map(tuple, drawn)), config, folder / "reference"), adapted


def scaled(folder: Path) -> None:
    path = folder / "adapter" / "adapter_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "lora_alpha": settings["lora_alpha"] * 1.01}))


def scaled_in_gguf(folder: Path) -> None:
    path = folder / "gguf-adapter" / "adapter.gguf"
    value = np.float32(12.0).tobytes()
    data, key = path.read_bytes(), b"adapter.lora.alpha"
    place = data.index(value, data.index(key))
    path.write_bytes(data[:place] + np.float32(12.12).tobytes() + data[place + 4 :])


@pytest.mark.parametrize(("name", "change"), [("adapter", scaled), ("gguf-adapter", scaled_in_gguf)])
def test_a_wrong_alpha_is_stopped(chain: Path, tmp_path: Path, name: str, change: Callable[[Path], None]) -> None:
    written, reference, adapted = write(tmp_path, chain / "base", chain / "sft")
    proved = prove(reference, name, written, 1, adapted)
    require(name, proved[1], proved[0], FORMATS[name].tolerance)
    change(written)
    weights, parity, _ = prove(reference, name, written, 1, adapted)
    assert parity.mean_divergence > 10 * proved[1].mean_divergence
    with pytest.raises(ParityError, match=rf"{name} doesn't match its checkpoint.*a row of .* off"):
        require(name, parity, weights, FORMATS[name].tolerance)


def test_a_damaged_file_and_an_adapter_alone_are_refused(chain: Path, tmp_path: Path) -> None:
    written, _, adapted = write(tmp_path, chain / "base", chain / "sft")
    with pytest.raises(StoreError, match="isn't a whole model: it needs its base"):
        open_release(written)
    path = written / "gguf-adapter" / "adapter.gguf"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RuntimeFault, match=r"can't load .*adapter\.gguf"):
        FORMATS["gguf-adapter"].over(adapted).open(written, 1)
    with pytest.raises(RuntimeFault, match=r"can't load .*adapter\.gguf"):
        LlamaLibrary(adapted.scratch / "base.gguf", adapter=path)
    for name in BOTH:
        with pytest.raises(ConfigError, match="comes without its base and adapters"):
            FORMATS[name].write(Source(chain / "sft" / "model"), tmp_path)


def test_dora_is_refused_where_it_is_handed_on_all_the_same(chain: Path, tmp_path: Path) -> None:
    adapt(chain / "base", tmp_path / "sft", LoraConfig(rank=4, dora=True), 4)
    with pytest.raises(ConfigError, match="is DoRA, not plain LoRA"):
        write(tmp_path, chain / "base", tmp_path / "sft")


@pytest.mark.parametrize(
    ("profile", "settings", "named"),
    [
        (
            "tiny",
            ["sft.adapter={rank: 8}", "dpo.adapter={rank: 8}"],
            "adapter, but the model doesn't start from a public base",
        ),
        ("finetune", ["dpo={}"], "adapter, but dpo trains all weights: give it an adapter, or remove adapter"),
        ("finetune", ["sft.adapter={dora: true}"], r"sft\.adapter\.dora scales the base's own rows"),
        ("finetune", ["sft.adapter={quantize: nf4}"], r"sft\.adapter\.quantize rounds the base.*set it to none"),
        ("finetune", ["export.link=base"], "nothing was trained on the base"),
        (
            "finetune",
            ["sft.adapter={whole: [head]}", "export.formats=[adapter, gguf-adapter]"],
            r"gguf-adapter, which has no place for the parts of sft\.adapter\.whole: leave whole out, or",
        ),
    ],
)
def test_what_is_no_adapter_over_a_base_is_refused_when_the_profile_is_read(
    profile: str, settings: list[str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load(profile, ["export.formats=[safetensors, adapter]", *settings])


def test_the_pipeline_hands_adapters_on_where_a_format_asks_for_them(tmp_path: Path) -> None:
    for name in ("base", "sft", "dpo"):
        for part in ("model", "adapter"):
            (tmp_path / name / part).mkdir(parents=True)

    def beneath(profile: Profile, link: str) -> dict[str, Artifact]:
        nothing = Artifact.at(tmp_path)
        chain = Chain(profile, Start(Artifact.at(tmp_path / "base"), nothing, nothing))
        for name in ("sft", "dpo"):
            chain.add(name, Artifact.at(tmp_path / name))
        return chain.beneath(link)

    both = ["dpo={}", "dpo.adapter={rank: 4}"]
    asked = load("finetune", ["export.formats=[gguf-adapter]", *both])
    found = beneath(asked, "dpo")
    assert {name: given.path.relative_to(tmp_path).as_posix() for name, given in found.items()} == {
        "base": "base/model",
        "sft": "sft/adapter",
        "dpo": "dpo/adapter",
    }
    assert set(beneath(asked, "sft")) == {"base", "sft"}
    assert set(beneath(load("finetune", both), "dpo")) == {"base"}, "whose answers stand on the card"
    assert beneath(load("tiny"), "dpo") == beneath(asked, "base") == {}
    empty = Artifact.at(tmp_path)
    keys = [export.payload(ExportConfig(), (empty, None, empty, given, None)).inputs for given in ({}, found)]
    assert set(keys[0]) == {"model", "validation"}
    assert set(keys[1]) - set(keys[0]) == {"beneath.base", "beneath.sft", "beneath.dpo"}


def test_an_adapter_is_no_model_to_be_measured() -> None:
    with pytest.raises(ConfigError, match="adapter isn't a whole model, so measure the link itself"):
        load("tiny", ["evaluate.models=[{name: x, link: sft, format: adapter}]"])
