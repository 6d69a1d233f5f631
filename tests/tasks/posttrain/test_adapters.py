"""Adapters: little is trained, PEFT loads it, the merged model computes the same, and a resume is exact."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flows.plan import plan
from models.config import ModelConfig
from models.presets import derive
from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from profiles.checks import sides_of
from profiles.load import load
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, TrainingError
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.stage.output import Output
from tasks.training.adapters.config import LAYERS, LoraConfig, linear_layers
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.quantized import as_rounded, load_nf4
from tasks.training.adapters.save import TOLERANCE, merge, save_adapter
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt
from tests.tasks.posttrain.test_posttrain import output
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import answer, make_instructions, make_model, make_preferences, question

LORA = LoraConfig(rank=8, alpha=16)
SFT = SftConfig(epochs=2, global_batch=16, learning_rate=1e-2, adapter=LORA)
IN_4_BITS = SFT.model_copy(update={"adapter": LORA.model_copy(update={"quantize": "nf4"})})
# Everything drawn at random, and everything but plain products of matrices
DPO = DpoConfig(
    epochs=1,
    global_batch=16,
    learning_rate=1e-2,
    adapter=LoraConfig(rank=4, alpha=8, dropout=0.1, dora=True, rslora=True),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def tuned(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("sft")
    out = output(folder, "sft")
    sft.function(SFT, model, Artifact.at(make_instructions(folder / "pairs")), out)
    return out


@pytest.fixture(scope="module")
def aligned(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("dpo")
    out = output(folder, "dpo")
    dpo.function(DPO, model, Artifact.at(make_preferences(folder / "pairs")), out)
    return out


def conversation(model: Artifact) -> torch.Tensor:
    messages = [*question("fox"), answer("wood")]
    return torch.tensor([load_tokenizer(model.path).apply_chat_template(messages, return_dict=True)["input_ids"]])


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(ids).logits
    return found


def test_it_learns_with_few_parameters_and_says_how_many(tuned: Output) -> None:
    log = read_log(tuned.path / "log.jsonl")
    assert log[-1]["loss"] < log[0]["loss"] - 1, "near the minimum over embeddings drawn at random"
    layers = [
        module
        for name, module in load_pretrained(tuned.path / "model").named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]
    assert len(layers) == 2 * 7
    trained = sum(8 * (layer.in_features + layer.out_features) for layer in layers)
    assert tuned.counts["trained_parameters"] == trained
    whole = sum(value.numel() for value in load_pretrained(tuned.path / "model").parameters()) + trained
    assert tuned.counts["parameters"] == whole
    assert tuned.counts["trainable_share"] == pytest.approx(trained / whole, abs=1e-6)
    assert f"{trained / whole:.2%} of the parameters trained" in tuned.counts["summary"]


def test_plain_peft_loads_the_adapter_and_the_merged_model_computes_the_same(model: Artifact, tuned: Output) -> None:
    from peft import PeftModel

    adapter = tuned.path / "adapter"
    assert {path.name for path in adapter.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    settings = json.loads((adapter / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == f"sha256:{model.digest}"
    assert str(model.path.parent) not in json.dumps(settings)
    ids = conversation(model)
    base = logits(load_pretrained(model.path), ids)
    adapted = logits(PeftModel.from_pretrained(load_pretrained(model.path), str(adapter)), ids)
    assert (adapted - base).abs().max() > 1
    merged = load_pretrained(tuned.path / "model")
    assert (logits(merged, ids) - adapted).abs().max() < TOLERANCE
    assert 0 <= tuned.counts["merged_logit_difference"] < TOLERANCE
    with safe_open(tuned.path / "model" / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(tensors(model.path)), "the layout of a model without an adapter"
    theirs, ours = ((path / "config.json").read_text() for path in (model.path, tuned.path / "model"))
    assert json.loads(theirs) == json.loads(ours)


def tensors(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.soak
def test_the_reference_of_dpo_is_the_model_without_its_adapter(aligned: Output) -> None:
    log = read_log(aligned.path / "log.jsonl")
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert log[-1]["loss"] < 0.5
    assert aligned.counts["validation_preference_accuracy"] > 0.9


@pytest.mark.soak
def test_dropout_is_the_adapters_in_dpo_too(model: Artifact, aligned: Output, tmp_path: Path) -> None:
    out = output(tmp_path, "dpo")
    assert DPO.adapter is not None
    plain = DPO.model_copy(update={"adapter": DPO.adapter.model_copy(update={"dropout": 0.0})})
    dpo.function(plain, model, Artifact.at(make_preferences(tmp_path / "pairs")), out)
    first, other = (read_log(made.path / "log.jsonl")[0] for made in (aligned, out))
    assert first["gradient_norm"] != pytest.approx(other["gradient_norm"], rel=1e-3)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    method: str, model: Artifact, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    stage, config = (sft, SFT) if method == "sft" else (dpo, DPO)
    whole: Output = request.getfixturevalue("tuned" if method == "sft" else "aligned")
    make = make_instructions if method == "sft" else make_preferences
    inputs = (model, Artifact.at(make(tmp_path / "pairs")))
    out = output(tmp_path, method)
    interrupt(stage, config, inputs, out, at=5)
    (checkpoint,) = (out.scratch / "checkpoints").glob("checkpoint-4")
    assert (checkpoint / "adapter_model.safetensors").is_file()
    assert not (checkpoint / "model.safetensors").exists()
    stage.function(config, *inputs, out)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))
    assert out.counts == whole.counts


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_can_be_a_target_depends_on_the_model(family: str, tmp_path: Path) -> None:
    theirs = load_pretrained(make_model(tmp_path / "model", family=family))
    known = {
        "gpt2": ["c_attn", "c_fc", "c_proj"],
        "llama": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
    }[family]
    assert set(peft_config("sft", LORA, theirs).target_modules or ()) == set(known) == set(LAYERS[family])
    depth = theirs.config.num_hidden_layers
    assert {name for name, _ in theirs.named_modules() if name.endswith(tuple(known))} == {
        *linear_layers(family, depth)
    }
    targets = [known[0], "layers.0.*" if family == "llama" else "h.0.*", "layers.[9].*", ""]
    assert LORA.model_copy(update={"targets": targets}).unknown_targets(family, depth) == targets[2:]
    some = [known[0], f"0.mlp.{known[2]}" if family == "gpt2" else "1.self_attn.q_proj"]
    assert set(peft_config("sft", LORA.model_copy(update={"targets": some}), theirs).target_modules or ()) == set(some)
    pattern = peft_config("sft", LORA.model_copy(update={"targets": [f"*.1.*{known[0][-5:]}"]}), theirs)
    named = [name for name, _ in theirs.named_modules() if ".1." in name and name.endswith(known[0][-5:])]
    assert pattern.target_modules == set(named)
    assert 0 < len(named) <= 7
    for wrong in ("lm_head", "proj", "embed_tokens", "*.9.*"):
        with pytest.raises(
            ConfigError, match=rf"sft\.adapter\.targets has {re.escape(wrong)}, but .* are {', '.join(known)}\."
        ):
            peft_config("sft", LORA.model_copy(update={"targets": [known[0], wrong]}), theirs)
    with pytest.raises(ConfigError, match=r"sft\.adapter\.rank is 999, but the smallest side of a layer is \d+"):
        peft_config("sft", LORA.model_copy(update={"rank": 999}), theirs)


@pytest.mark.parametrize(("family", "shape"), [("gpt2", {}), ("llama", {"kv_heads": 2}), ("qwen3", {"head_size": 8})])
def test_a_profile_knows_the_smallest_side_of_its_layers(family: str, shape: dict[str, Any], tmp_path: Path) -> None:
    known = derive(ModelConfig(**{"family": family, "depth": 2, "width": 64, "heads": 4, "context": 128, **shape}), 600)
    theirs = load_pretrained(make_model(tmp_path / "model", family=family, **shape))
    for target in LAYERS[family]:
        adapter = LoraConfig(targets=[target])
        smallest = adapter.smallest_side(family, 2, sides_of(known, None))
        peft_config("sft", adapter.model_copy(update={"rank": smallest}), theirs)
        with pytest.raises(ConfigError, match=f"but the smallest side of a layer is {smallest}"):
            peft_config("sft", adapter.model_copy(update={"rank": smallest + 1}), theirs)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("sft.adapter={rank: 129}", r"sft\.adapter\.rank is 129, but the smallest side of a layer is \d+: lower it"),
        ("dpo.adapter={rank: 4, whole: [head]}", r"dpo\.adapter\.whole has head, but .* one matrix: name both"),
        ("dpo.adapter={kind: prefix, whole: [head]}", r"whole"),
    ],
)
def test_what_a_new_model_lacks_is_refused_when_the_profile_is_read(settings: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load("tiny", [settings, "pretrain.model.tie_embeddings=true"])


@pytest.mark.parametrize("settings", ["{rank: 65}", "{rank: 4, whole: [head]}", "{rank: 4, targets: [q_prj]}"])
def test_a_plan_refuses_what_a_base_of_this_machine_lacks(settings: str, model: Artifact, tmp_path: Path) -> None:
    pairs = make_instructions(tmp_path / "pairs")
    source = f"{{kind: files, name: mine, role: instructions, paths: ['{pairs}/all.jsonl']}}"
    sources = [f"download.sources=[{source}]", f"base={{folder: {model.path}}}", f"runtime.store={tmp_path / 'store'}"]
    with pytest.raises(ConfigError, match=r"sft\.adapter\."):
        plan(load("finetune", [*sources, f"sft.adapter={settings}"]))
    plan(load("finetune", [*sources, "sft.adapter={rank: 64}"]))


def draw_adapter(base: Path, folder: Path, **settings: Any) -> None:
    """An adapter to the model in `base`, both of its matrices drawn at random."""
    from peft import get_peft_model

    theirs = load_pretrained(base)
    config = peft_config("sft", LoraConfig(rank=4, **settings), theirs)
    config.init_lora_weights = False
    torch.manual_seed(0)
    adapted = get_peft_model(theirs, config)
    save_adapter(config, adapted.state_dict(), load_pretrained(base), "base", folder)


def batches(model: Path) -> list[dict[str, torch.Tensor]]:
    ids = conversation(Artifact.at(model))
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]


@pytest.mark.soak_but("{}-llama", "{'dora': True}-gpt2")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("variant", [{}, {"dora": True}, {"rslora": True}], ids=str)
def test_every_form_can_be_merged(family: str, variant: dict[str, bool], tmp_path: Path) -> None:
    base = make_model(tmp_path / "model", family=family)
    draw_adapter(base, tmp_path / "adapter", **variant)
    merged, counts = merge("sft", load_pretrained(base), tmp_path / "adapter", batches(base))
    assert 0 < counts["merged_logit_difference"] < TOLERANCE
    ids = conversation(Artifact.at(base))
    assert (logits(merged, ids) - logits(load_pretrained(base), ids)).abs().max() > 0.01


def test_a_merged_model_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_model(tmp_path / "model")
    theirs = load_pretrained(base)
    theirs.model.norm.weight.data *= 1e6  # logits so large that their last digits exceed the tolerance
    theirs.save_pretrained(base)
    draw_adapter(base, tmp_path / "adapter")
    merge("sft", load_pretrained(base), tmp_path / "adapter", batches(base))  # of large logits the last digits may
    monkeypatch.setattr("tasks.training.adapters.save.RELATIVE", 0.0)
    with pytest.raises(TrainingError, match=r"differ from its own by .*, more than 1\.0e-04\. Lower sft\.learning"):
        merge("sft", load_pretrained(base), tmp_path / "adapter", batches(base))
    draw_adapter(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = {name.replace("layers.0", "layers.5"): value for name, value in load_file(file).items()}
    save_file(weights, file)
    with pytest.raises(TrainingError, match="differ in the weight"):
        merge("sft", load_pretrained(base), tmp_path / "adapter", batches(base))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_decay is on matrices only, and dora trains vectors too"):
        SftConfig(weight_decay=0.1, adapter=LoraConfig(dora=True))
    with pytest.raises(ValueError, match=r"'ia3' found using .* does not match .*'lora', 'prefix', 'prompt'"):
        SftConfig.model_validate({"adapter": {"kind": "ia3"}})
    assert "adapter" not in SftConfig().model_dump(), "the keys of stages without one are as before"


@pytest.mark.soak
def test_over_a_model_in_4_bits_it_learns_and_is_merged_into_the_rounded_weights(
    model: Artifact, tuned: Output, tmp_path: Path
) -> None:
    """PEFT loads it over the base in 4 bits, as docs/post-training.md says."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    out = output(tmp_path, "sft")
    sft.function(IN_4_BITS, model, Artifact.at(make_instructions(tmp_path / "pairs")), out)
    log = read_log(out.path / "log.jsonl")
    assert log[-1]["loss"] < log[0]["loss"] - 1
    assert out.counts["trained_parameters"] == tuned.counts["trained_parameters"]
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    plain = AutoModelForCausalLM.from_pretrained(model.path, quantization_config=four_bits, dtype=torch.float32)
    rounded = load_nf4(model.path, cuda=False, bfloat16=False)
    ids = conversation(model)
    theirs = logits(PeftModel.from_pretrained(plain, str(out.path / "adapter")), ids)
    adapted = logits(PeftModel.from_pretrained(rounded, str(out.path / "adapter")), ids)
    merged = logits(load_pretrained(out.path / "model"), ids)
    assert (merged - adapted).abs().max() < TOLERANCE
    assert (merged - theirs).abs().max() < 0.01, "some CPUs multiply in bfloat16"
    assert tensors(out.path / "model") == tensors(model.path)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_weights_that_4_bits_stand_for_compute_what_they_do(family: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", family=family)
    ids = conversation(Artifact.at(folder))
    rounded = load_nf4(folder, cuda=False, bfloat16=False)
    plain = as_rounded(folder, rounded)
    assert (logits(plain, ids) - logits(rounded, ids)).abs().max() < TOLERANCE
    assert (logits(plain, ids) - logits(load_pretrained(folder), ids)).abs().max() > 0.01


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2])
def test_dpo_over_a_model_in_4_bits_resumes_exactly(processes: int, model: Artifact, tmp_path: Path) -> None:
    config = DPO.model_copy(update={"adapter": IN_4_BITS.adapter})
    inputs = (model, Artifact.at(make_preferences(tmp_path / "pairs")))
    whole, out = (output(tmp_path / name, "dpo", processes=processes) for name in ("whole", "resumed"))
    dpo.function(config, *inputs, whole)
    assert losses_of(whole)[0] == pytest.approx(math.log(2), abs=1e-5)
    interrupt(dpo, config, inputs, out, at=5)
    dpo.function(config, *inputs, out)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))


@pytest.mark.parametrize(
    "wrong", [{"engine": "fsdp", "zero_stage": 3, "processes": 2}, {"compile": "default"}], ids=str
)
def test_what_4_bits_cant_be_trained_with_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"quantize is nf4, which runtime\.posttrain\.(engine|compile) .* can't do"):
        sft.check_runtime(IN_4_BITS, runtime_of(group="posttrain", **wrong))


ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"recompute": "full"},
    "zero 2": {"engine": "deepspeed", "zero_stage": 2, "offload": "optimizer"},
    "zero 3": {"engine": "deepspeed", "zero_stage": 3, "recompute": "full"},
    "fsdp": {"engine": "fsdp", "zero_stage": 3, "recompute": "full"},
}


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_of_any_engine_learn_what_one_does_and_resume(
    engine: str, model: Artifact, tuned: Output, tmp_path: Path
) -> None:
    out = output(tmp_path, "sft", processes=2, **ENGINES[engine])
    inputs = (model, Artifact.at(make_instructions(tmp_path / "pairs")))
    interrupt(sft, SFT, inputs, out, at=5)
    sft.function(SFT, *inputs, out)
    assert out.facts["resumed_from_step"] == 4
    assert losses_of(out) == pytest.approx(losses_of(tuned), abs=5e-3)
    ids = conversation(model)
    theirs, ours = (logits(load_pretrained(made.path / "model"), ids) for made in (out, tuned))
    assert torch.allclose(theirs, ours, atol=0.05)
    assert tensors(out.path / "model") == tensors(tuned.path / "model")


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_dpo_over_processes_has_the_same_reference(engine: str, model: Artifact, tmp_path: Path) -> None:
    config = DPO.model_copy(update={"adapter": LORA.model_copy(update={"dora": True})})
    alone, out = output(tmp_path / "one", "dpo"), output(tmp_path / "two", "dpo", processes=2, **ENGINES[engine])
    pairs = Artifact.at(make_preferences(tmp_path / "pairs"))
    for made in (alone, out):
        dpo.function(config, model, pairs, made)
    assert losses_of(out) == pytest.approx(losses_of(alone), abs=5e-3)
