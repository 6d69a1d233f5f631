"""Bases small enough to train in a test, documents in their tokens, and a plain loop that trains a module alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from models.pretrained import load_config
from models.tokenizer import DIGEST_FIELD, copy_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.shards.token_sources import write_sources
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.loader import open_loader
from tasks.pretrain.recipe.schedule import learning_rate
from tasks.stage.output import Output
from tests.tasks.pretrain.tiny_training import make_data, output
from tests.tasks.tiny_model import make_model

SETTINGS: dict[str, Any] = {
    "model": None,
    "context": 32,
    "steps": 20,
    "global_batch": 4,
    "warmup_steps": 3,
    "learning_rate": 1e-3,
    "validation_every": 10,
    "validation_tokens": 256,
    "sample_tokens": 4,
}
CONFIG = PretrainConfig.model_validate(SETTINGS)
IN_TWO: dict[str, Any] = {"processes": 2, "micro_batch": 2}

OURS: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2, "rope_theta": 50_000.0, "norm_eps": 1e-6},
    "gpt2": {},
    "mistral": {"sliding_window": 16, "tie_embeddings": False},
    "qwen3": {"head_size": 24, "rope_theta": 1e6},
    "qwen3_moe": {"head_size": 24, "experts": 4, "experts_per_token": 2, "expert_feed_forward": 32},
    "gemma3": {"head_size": 24, "sliding_window": 16, "global_every": 2},
    "olmo3": {"sliding_window": 16, "global_every": 2},
}

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 600}
LIKE_LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 128, "head_dim": 16}
# Computed by transformers' modules: biases and a plain head; a cap on logits, scaled embeddings and a window in every
# second layer; weights under other names in the files, and experts that are fused when they are loaded
FOREIGN: dict[str, dict[str, Any]] = {
    "qwen2": {**LIKE_LLAMA, "tie_word_embeddings": True},
    "gemma2": {**LIKE_LLAMA, "sliding_window": 16, "final_logit_softcapping": 2.0},
    "gpt_neox": {**SMALL, "intermediate_size": 128},
    "mixtral": {**LIKE_LLAMA, "num_local_experts": 4},
}


def documents(folder: Path) -> tuple[Artifact, Artifact]:
    """Token shards of two sources, also in what is held out, and their tokenizer."""
    tokens, tokenizer = make_data(folder)
    for path in tokens.files("validation/*.tokens"):
        write_sources(path.with_suffix(".sources"), ["even", "odd"] * 3)
    return Artifact.at(tokens.path), tokenizer  # whose digest has these files too


def made(folder: Path, family: str) -> tuple[Artifact, Artifact]:
    """`documents`, and a base with their tokenizer and a context of 64. Made once."""
    tokens, tokenizer = documents(folder)
    base = folder / family
    if not base.exists():
        if family in OURS:
            make_model(base, family=family, context=64, **OURS[family])
            settings = json.loads((base / "config.json").read_text())
            (base / "config.json").write_text(json.dumps({**settings, "gristmill_base": "a base"}))
        else:
            _foreign(base, family, tokenizer.path)
    return tokens, Artifact.at(base)


def _foreign(base: Path, family: str, tokenizer: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(1)
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    config = AutoConfig.for_model(family, max_position_embeddings=64, **FOREIGN[family], **marks)
    setattr(config, DIGEST_FIELD, tokenizer_digest(tokenizer))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(**marks)
    model.save_pretrained(base)
    copy_tokenizer(tokenizer, base)


def trained(folder: Path, out: Path, family: str, config: PretrainConfig = CONFIG, /, **runtime: Any) -> Output:
    """The output of a training of `made(folder, family)`."""
    written = output(out, **{"engine": "ddp", **runtime})
    pretrain.function(config, *made(folder, family), written)
    return written


def plain_losses(model: Any, tokens: Artifact, base: Artifact, config: PretrainConfig) -> list[float]:
    """The losses of a module that a plain loop trains on the same batches, with the same settings."""
    learned = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in learned if one.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [one for one in learned if one.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon)
    digest = getattr(load_config(base.path), DIGEST_FIELD)
    loader = open_loader(tokens.files("train/*.tokens"), config, context=32, tokenizer_digest=digest)
    losses, steps = [], config.steps or 0
    for step in range(1, steps + 1):
        ((ids, targets, _),) = loader.micro_batches(step, rank=0, ranks=1, size=config.global_batch)
        logits = model(input_ids=torch.from_numpy(ids.copy())).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets.copy()).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, config.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, steps)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses
