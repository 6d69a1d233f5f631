"""The peak of a training process on a CPU is what the plan says, for models of any family, engine and micro-batch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from models.memory import most_memory
from models.presets import ForeignShape
from models.pretrained import load_config
from models.tokenizer import DIGEST_FIELD, copy_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from tasks.base.source import shape_of_config
from tasks.pretrain import PretrainConfig
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.engines.initialise import adapt_with
from tasks.pretrain.engines.trained import mark_trained
from tasks.pretrain.setup import setup_of, trained_share
from tasks.pretrain.spec import TrainSpec
from tests.models.measured import peaks_of
from tests.models.test_traced import SCALED
from tests.runtimes import runtime_of
from tests.tasks.pretrain.bases import documents

NEAR = 0.15
MIDDLE: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1408,
    "vocab_size": 16_384,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
}
SMOLLM2 = {
    **MIDDLE,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
}
# Family, changes of MIDDLE, changes of the config, runtime
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "SmolLM2, 1": ("llama", SMOLLM2, {"context": 256}, {"micro_batch": 1}),
    "SmolLM2, 4": ("llama", SMOLLM2, {"context": 256}, {"micro_batch": 4}),
    "llama, full": ("llama", {}, {"context": 512}, {"micro_batch": 2, "recompute": "full"}),
    "llama, one micro-batch": ("llama", {}, {"context": 512}, {"micro_batch": 4}),
    "llama, Muon": ("llama", {}, {"optimizer": "muon", "muon_learning_rate": 1e-3}, {"micro_batch": 4}),
    "llama, scaled": ("llama", {"rope_scaling": SCALED}, {"context": 512}, {"micro_batch": 4}),
    "qwen2": ("qwen2", {}, {"context": 512}, {"micro_batch": 4}),
    "gemma2": ("gemma2", {}, {"context": 512}, {"micro_batch": 2}),
    "gemma3": ("gemma3_text", {}, {"context": 1024}, {"micro_batch": 2, "recompute": "full"}),
    "phi": ("phi", {}, {"context": 512}, {"micro_batch": 4}),
    "olmo2": ("olmo2", {}, {"context": 128}, {"micro_batch": 8, "recompute": "selective"}),
    "llama, LoRA": ("llama", {}, {"context": 512, "adapter": {"rank": 8}}, {"micro_batch": 4}),
    "gemma2, LoRA": ("gemma2", {}, {"context": 512, "adapter": {"rank": 8}}, {"micro_batch": 2}),
    "phi, frozen": ("phi", {}, {"context": 512, "freeze": {"layers": [0, 3]}}, {"micro_batch": 4}),
    "qwen2, DDP": ("qwen2", {}, {}, {"micro_batch": 2, "processes": 2}),
    "qwen2, FSDP": ("qwen2", {}, {}, {"micro_batch": 2, "processes": 2, "engine": "fsdp", "zero_stage": 3}),
}


def made(folder: Path, family: str, settings: dict[str, Any]) -> tuple[Artifact, Path]:
    """Token shards, and a base of random weights in a family with their tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokens, tokenizer = documents(folder)
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    config = AutoConfig.for_model(family, **{**MIDDLE, **settings}, **marks)
    setattr(config, DIGEST_FIELD, tokenizer_digest(tokenizer.path))
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(**marks)
    model.save_pretrained(folder / "base")
    copy_tokenizer(tokenizer.path, folder / "base")
    return tokens, folder / "base"


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_the_peak_of_a_process_is_near_the_plan(name: str, tmp_path: Path) -> None:
    family, changes, asked, chosen = CASES[name]
    tokens, base = made(tmp_path, family, changes)
    ranks, steps = chosen.get("processes", 1), 1 if name == "llama, one micro-batch" else 2
    adamw = {"optimizer": "adamw", "muon_learning_rate": None}
    usual = {"model": None, "steps": 2, "warmup_steps": 1, "validation_every": 2, "validation_tokens": 512}
    sizes = {"context": 512, "global_batch": steps * ranks * chosen["micro_batch"], "sample_tokens": 4}
    config = PretrainConfig.model_validate({**usual, **adamw, **sizes, **asked})
    usual_runtime = {"threads": 1, "device": "cpu", "workers": 1, "engine": "ddp", "checkpoint_every": 100}
    runtime = runtime_of(**{**usual_runtime, **chosen})
    spec = TrainSpec(
        config=config,
        runtime=runtime,
        shape=shape_of_base(base, config, runtime.pretrain),
        steps=2,
        tokens_digest="",
        tokenizer_digest=tokenizer_digest(base),
        train=tokens.files("train/*.tokens"),
        validation=tokens.files("validation/*.tokens"),
        tokenizer=base,
        base=base,
        base_digest="random",
        scratch=tmp_path / "scratch",
        out=tmp_path / "out",
    )
    for folder in (spec.scratch, spec.out):
        folder.mkdir()
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    measured = max(peaks_of("tasks.pretrain.train", path, runtime))
    mark = None if config.trains_all else partial(mark_trained, config=config)
    shape = shape_of_config(load_config(base), adapt_with(config.adapter), mark)
    assert isinstance(shape, ForeignShape) == isinstance(spec.shape, ForeignShape)
    setup = replace(setup_of(config, runtime, cuda=False), trained=trained_share(config, shape))
    planned = most_memory(replace(shape, context=spec.context), setup)
    shutil.rmtree(base)
    assert planned == pytest.approx(measured, rel=NEAR), f"{planned / 1e6:,.0f} MB planned, {measured / 1e6:,.0f} taken"
