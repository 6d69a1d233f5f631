"""Embeddings, head and norms that are trained whole beside an adapter: what is trained, kept, merged and compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method
from tasks.posttrain.methods.cpo import CpoConfig, cpo
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.grpo import GRPO, GrpoConfig
from tasks.posttrain.methods.kto import KTO, KtoConfig
from tasks.posttrain.methods.orpo import OrpoConfig, orpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.rollouts.llama_cpp import weights_of
from tasks.stage.output import Output
from tasks.training.adapters.config import LoraConfig, Part
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.quantized import load_nf4, train_in_float32
from tasks.training.adapters.save import TOLERANCE, merge, save_adapter
from tasks.training.adapters.whole import tie_copies
from tests.tasks.interrupt import interrupt
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.posttrain.test_adapters import ENGINES, batches, conversation, logits, tensors
from tests.tasks.posttrain.test_posttrain import output
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import answer, make_instructions, make_model, make_preferences, question, write_rows

ENDS: tuple[Part, ...] = ("embedding", "head")
LORA = LoraConfig(rank=4, alpha=8, whole=(*ENDS, "norms"))
SFT = SftConfig(epochs=1, global_batch=16, learning_rate=5e-3, adapter=LORA)
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_instructions(tmp_path_factory.mktemp("pairs")))


@pytest.fixture(scope="module")
def tuned(model: Artifact, instructions: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("sft"), "sft")
    sft.function(SFT, model, instructions, out)
    return out


def test_the_parts_are_trained_counted_and_merged_and_peft_alone_loads_them(model: Artifact, tuned: Output) -> None:
    from peft import PeftModel

    one, other = (load_pretrained(folder).state_dict() for folder in (model.path, tuned.path / "model"))
    changed = {name for name in one if not torch.equal(one[name], other[name])}
    assert changed == set(one), "matrices of layers by LoRA, all else whole"
    assert torch.equal(other[EMBEDDING], other["lm_head.weight"])
    assert tensors(tuned.path / "model") == tensors(model.path), "one matrix, saved once"
    whole = sum(one[name].numel() for name in one if "norm" in name or name == EMBEDDING)
    lora = sum(4 * sum(value.shape) for name, value in one.items() if "_proj" in name)
    assert tuned.counts["trained_parameters"] == whole + lora
    assert tuned.counts["parameters"] == lora + sum(v.numel() for n, v in one.items() if n != "lm_head.weight")
    settings = json.loads((tuned.path / "adapter" / "adapter_config.json").read_text())
    assert EMBEDDING.removesuffix(".weight") in settings["modules_to_save"]
    adapted: Any = PeftModel.from_pretrained(load_pretrained(model.path), str(tuned.path / "adapter"))
    ids = conversation(model)
    by_adapter, by_merged = logits(adapted, ids), logits(load_pretrained(tuned.path / "model"), ids)
    assert (by_merged - by_adapter).abs().max() < TOLERANCE
    assert torch.equal(adapted.get_base_model().get_output_embeddings().weight, other["lm_head.weight"])
    losses = losses_of(tuned)
    assert losses[-1] < losses[0] - 0.5


def adapted(folder: Path, **settings: Any) -> Any:
    """PEFT's model, of which everything that is trained was moved."""
    from peft import get_peft_model

    theirs = load_pretrained(folder)
    model: Any = get_peft_model(theirs, peft_config("sft", LORA.model_copy(update=settings), theirs))
    tie_copies(model)
    move(model)
    return model


def move(model: Any) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn_like(value))


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llama", {}), ("gpt2", {"rslora": True}), ("mistral", {"whole": ("head",)}), ("qwen3", {"whole": ENDS})],
    ids=str,
)
def test_saved_and_merged_it_computes_the_same(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    base = make_model(tmp_path / "model", family=family, tie_embeddings=family != "mistral")
    model = adapted(base, **settings)
    ids = conversation(Artifact.at(base))
    computed = logits(model, ids)
    save_adapter(model.peft_config["default"], model.state_dict(), load_pretrained(base), "base", tmp_path / "adapter")
    merged, counts = merge("sft", load_pretrained(base), tmp_path / "adapter", batches(base))
    assert (logits(merged, ids) - computed).abs().max() < TOLERANCE
    merged.save_pretrained(tmp_path / "merged")
    assert (logits(load_pretrained(tmp_path / "merged"), ids) - computed).abs().max() < TOLERANCE
    assert counts["trained_parameters"] == sum(v.numel() for v in model.parameters() if v.requires_grad)
    found = weights_of(model)  # for an engine that samples
    assert found.keys() == merged.state_dict().keys()
    assert all(torch.allclose(found[name], value, atol=1e-6) for name, value in merged.state_dict().items())


REFERENCES: dict[str, tuple[Method[Any], PosttrainConfig]] = {
    "kto": (KTO, KtoConfig(adapter=LORA, validation_share=0)),
    "grpo": (
        GRPO,
        GrpoConfig.model_validate(
            {"adapter": LORA, "beta": 0.1, "group": 4, "max_new_tokens": 4, "validation_share": 0}
            | {"rewards": [{"kind": "length", "target": 8}], "max_drop": None}
        ),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_the_reference_is_the_base_to_the_bit(name: str, model: Artifact, tmp_path: Path) -> None:
    """Whatever was learned, also by TRL's head, which reads the matrix of the head."""
    from trl.trainer.utils import add_fused_lm_head, use_adapter

    method, config = REFERENCES[name]
    labelled = [
        {
            "id": str(one),
            "source": "test",
            "prompt": question("fox", one),
            "completion": [answer("wood")],
            "label": one < 8,
        }
        for one in range(16)
    ]
    pairs = write_rows(tmp_path / "rows" / "all.jsonl", labelled) if name == "kto" else make_instructions(tmp_path)
    rows, _, _ = render_rows(method, config, [*pairs.glob("*.jsonl")], load_tokenizer(model.path), 128)
    parts = parts_of(method, config, model.path, rows, tmp_path)
    settings = peft_config(name, LORA, parts.common["model"])
    parts = replace(parts, common={**parts.common, "peft_config": settings})
    trainer: Any = method.make_trainer(parts)
    tie_copies(trainer.model)
    move(trainer.model)
    base = load_pretrained(model.path)
    add_fused_lm_head(base)
    ids = conversation(model)
    asked = {"input_ids": ids, "labels": ids, "fused_lm_head": True}

    def scores(of: Any) -> Tensor:
        with torch.no_grad():
            found: Tensor = of.eval()(**asked).log_probs
        return found

    with use_adapter(trainer.model, adapter_name=None):
        reference, plain = scores(trainer.model), logits(trainer.model, ids)
    assert torch.equal(reference, scores(base))
    assert torch.equal(plain, logits(load_pretrained(model.path), ids)), "as ppo compares them"
    assert (scores(trainer.model) - reference).abs().max() > 0.1


def test_over_4_bits_they_begin_as_they_are_and_are_not_quantized(model: Artifact) -> None:
    from peft import get_peft_model

    theirs = load_nf4(model.path, cuda=False, bfloat16=False)
    adapted: Any = get_peft_model(theirs, peft_config("sft", LORA, theirs))
    for value in adapted.parameters():
        if value.requires_grad:
            value.data = value.data.to(torch.bfloat16)  # as TRL does
    train_in_float32(adapted)
    base = load_pretrained(model.path)
    assert torch.equal(adapted.get_base_model().get_output_embeddings().weight, base.get_output_embeddings().weight)
    assert adapted.get_base_model().get_output_embeddings().weight.dtype == torch.float32


@pytest.mark.soak
def test_over_4_bits_they_are_trained_and_merged(model: Artifact, instructions: Artifact, tmp_path: Path) -> None:
    config = SFT.model_copy(update={"adapter": LORA.model_copy(update={"quantize": "nf4"})})
    whole, out = (output(tmp_path / name, "sft") for name in ("whole", "resumed"))
    sft.function(config, model, instructions, whole)
    assert whole.counts["merged_logit_difference"] < TOLERANCE
    assert losses_of(whole)[-1] < losses_of(whole)[0] - 0.5
    interrupt(sft, config, (model, instructions), out, at=5)
    sft.function(config, model, instructions, out)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    model: Artifact, instructions: Artifact, tuned: Output, tmp_path: Path
) -> None:
    out = output(tmp_path, "sft")
    interrupt(sft, SFT, (model, instructions), out, at=5)
    (checkpoint,) = (out.scratch / "checkpoints").glob("checkpoint-4")
    assert not any("original_module" in name for name in load_file(checkpoint / "adapter_model.safetensors"))
    sft.function(SFT, model, instructions, out)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(tuned.path))
    assert out.counts == tuned.counts


@pytest.mark.soak
@pytest.mark.parametrize("family", ["llama", "mistral"])  # one matrix, and two
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_of_any_engine_learn_what_one_does_and_resume(
    engine: str, family: str, instructions: Artifact, tmp_path: Path
) -> None:
    model = Artifact.at(make_model(tmp_path / "model", family=family, tie_embeddings=family == "llama"))
    alone, out = output(tmp_path / "one", "sft"), output(tmp_path / "two", "sft", processes=2, **ENGINES[engine])
    if engine == "fsdp":
        with pytest.raises(ConfigError, match=r"sft\.adapter\.whole is set, which .*engine fsdp can't do"):
            sft.check_runtime(SFT, out.runtime)
        return
    sft.function(SFT, model, instructions, alone)
    interrupt(sft, SFT, (model, instructions), out, at=5)
    sft.function(SFT, model, instructions, out)
    assert out.facts["resumed_from_step"] == 4
    assert losses_of(out) == pytest.approx(losses_of(alone), abs=5e-3)
    assert tensors(out.path / "model") == tensors(alone.path / "model")
    one, other = (load_pretrained(made.path / "model").state_dict() for made in (alone, out))
    assert torch.allclose(one[EMBEDDING], other[EMBEDDING], atol=0.02)
    assert out.counts["trained_parameters"] == alone.counts["trained_parameters"]


METHODS: dict[str, tuple[Any, PosttrainConfig]] = {
    "dpo": (dpo, DpoConfig(adapter=LORA)),
    "orpo": (orpo, OrpoConfig(adapter=LORA)),
    "cpo": (cpo, CpoConfig(adapter=LORA)),
}


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_pairs_train_them_too(method: str, model: Artifact, tmp_path: Path) -> None:
    stage, config = METHODS[method]
    out = output(tmp_path, method)
    stage.function(config, model, Artifact.at(make_preferences(tmp_path / "pairs")), out)
    one, other = (load_pretrained(folder).state_dict() for folder in (model.path, out.path / "model"))
    assert not torch.equal(one[EMBEDDING], other[EMBEDDING])
    assert out.counts["merged_logit_difference"] < TOLERANCE


@pytest.mark.parametrize(
    ("whole", "family", "said"),
    [
        (("head",), "llama", r"sft\.adapter\.whole has head, but the model's embedding and head are one matrix"),
        (("embedding", "norms"), "gpt2", r"sft\.adapter\.whole has embedding, but the model's embedding and head are"),
    ],
)
def test_half_of_a_tied_matrix_is_refused(whole: tuple[Part, ...], family: str, said: str, tmp_path: Path) -> None:
    theirs = load_pretrained(make_model(tmp_path / "model", family=family))
    with pytest.raises(ConfigError, match=said):
        peft_config("sft", LORA.model_copy(update={"whole": whole}), theirs)
