"""To transformers and back: the checkpoint format that everyone loads without our code.

The names differ and GPT-2 keeps its matrices transposed with q, k, v in one; the numbers are the same. What is written
is deterministic, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.presets import ModelShape
from models.tokenizer import EOS, PAD, copy_tokenizer, load_tokenizer
from models.transformer import Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# ours → theirs, inside a block; GPT-2's q, k, v are handled apart
_LLAMA = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_GPT2 = {
    "attention_norm": "ln_1",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}


def to_transformers(model: Transformer, *, eos_id: int | None = None, pad_id: int | None = None) -> PreTrainedModel:
    """The same model as a GPT2LMHeadModel, LlamaForCausalLM or MistralForCausalLM, in float32."""
    from transformers import AutoModelForCausalLM

    config = _config(model.shape, eos_id, pad_id)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
    theirs.to_empty(device="cpu")
    state = _rename(model.state_dict(), model.shape)
    theirs.load_state_dict(state, strict=False)
    _restore_buffers(theirs, config)
    theirs.tie_weights()
    return theirs.eval()


def from_transformers(theirs: PreTrainedModel) -> Transformer:
    """Our decoder with the weights of a GPT-2, LLaMA or Mistral model of transformers."""
    shape = _shape(theirs.config)
    model = Transformer(shape)
    source = {name: value.float() for name, value in theirs.state_dict().items()}
    state = {name: read(source) for name, read in _readers(shape).items()}
    if shape.tie_embeddings:
        state["head.weight"] = state["embedding.weight"]
    model.load_state_dict(state)
    return model.eval()


def save(model: Transformer, folder: Path, tokenizer_folder: Path) -> None:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer load: config, safetensors, tokenizer files."""
    tokenizer = load_tokenizer(tokenizer_folder)
    eos_id, pad_id = tokenizer.convert_tokens_to_ids(EOS), tokenizer.convert_tokens_to_ids(PAD)
    folder.mkdir(parents=True, exist_ok=True)
    to_transformers(model, eos_id=eos_id, pad_id=pad_id).save_pretrained(folder)
    copy_tokenizer(tokenizer_folder, folder)


def load(folder: Path) -> Transformer:
    """Our decoder from a folder in the format of transformers."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return from_transformers(theirs)


def _config(shape: ModelShape, eos_id: int | None, pad_id: int | None) -> Any:
    from transformers import GPT2Config, LlamaConfig, MistralConfig

    ids = {"bos_token_id": eos_id, "eos_token_id": eos_id, "pad_token_id": pad_id}
    if shape.family == "gpt2":
        return GPT2Config(
            vocab_size=shape.vocab_size, n_positions=shape.context, n_embd=shape.width, n_layer=shape.depth,
            n_head=shape.heads, n_inner=shape.feed_forward, activation_function="gelu_new",
            layer_norm_epsilon=shape.norm_eps, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=shape.tie_embeddings, **ids,
        )  # fmt: skip
    common = dict(
        vocab_size=shape.vocab_size, hidden_size=shape.width, intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.depth, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width, max_position_embeddings=shape.context, rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tie_embeddings, **ids,
    )  # fmt: skip
    if shape.family == "llama":
        return LlamaConfig(**common)
    return MistralConfig(**common, sliding_window=shape.sliding_window)


def _shape(config: Any) -> ModelShape:
    tied = bool(config.tie_word_embeddings)
    if config.model_type == "gpt2":
        return ModelShape(
            "gpt2", config.vocab_size, config.n_layer, config.n_positions, config.n_embd, config.n_head, config.n_head,
            config.n_inner or 4 * config.n_embd, None, 10_000.0, tied, config.layer_norm_epsilon,
        )  # fmt: skip
    if config.model_type not in ("llama", "mistral"):
        raise ValueError(f"{config.model_type} is none of gpt2, llama, mistral")
    return ModelShape(
        config.model_type, config.vocab_size, config.num_hidden_layers, config.max_position_embeddings,
        config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size,
        getattr(config, "sliding_window", None), float(config.rope_parameters["rope_theta"]), tied, config.rms_norm_eps,
    )  # fmt: skip


Reader = Callable[[dict[str, Tensor]], Tensor]


def _readers(shape: ModelShape) -> dict[str, Reader]:
    """For each of our parameters, how to read it from a state dict of theirs."""

    def plain(name: str, transposed: bool = False) -> Reader:
        return lambda state: state[name].T if transposed else state[name]

    def third(name: str, index: int) -> Reader:
        return lambda state: state[name].T.chunk(3)[index] if state[name].ndim == 2 else state[name].chunk(3)[index]

    gpt2 = shape.family == "gpt2"
    root, blocks = ("transformer", "h") if gpt2 else ("model", "layers")
    readers = {"embedding.weight": plain(f"{root}.{'wte' if gpt2 else 'embed_tokens'}.weight")}
    readers["head.weight"] = readers["embedding.weight"] if shape.tie_embeddings else plain("lm_head.weight")
    if gpt2:
        readers["positions.weight"] = plain(f"{root}.wpe.weight")
    kinds = ("weight", "bias") if gpt2 else ("weight",)
    for kind in kinds:
        readers[f"norm.{kind}"] = plain(f"{root}.{'ln_f' if gpt2 else 'norm'}.{kind}")
        for layer in range(shape.depth):
            theirs = f"{root}.{blocks}.{layer}"
            for ours, name in (_GPT2 if gpt2 else _LLAMA).items():
                transposed = gpt2 and kind == "weight" and "norm" not in ours
                readers[f"blocks.{layer}.{ours}.{kind}"] = plain(f"{theirs}.{name}.{kind}", transposed)
            if gpt2:
                for index, ours in enumerate("qkv"):
                    readers[f"blocks.{layer}.attention.{ours}.{kind}"] = third(f"{theirs}.attn.c_attn.{kind}", index)
    return readers


def _rename(state: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Our state dict under their names: the inverse of `_readers`."""
    gpt2 = shape.family == "gpt2"
    root, blocks = ("transformer", "h") if gpt2 else ("model", "layers")
    renamed = {
        f"{root}.{'wte' if gpt2 else 'embed_tokens'}.weight": state["embedding.weight"],
        "lm_head.weight": state["head.weight"],
    }
    if gpt2:
        renamed[f"{root}.wpe.weight"] = state["positions.weight"]
    kinds = ("weight", "bias") if gpt2 else ("weight",)
    for kind in kinds:
        renamed[f"{root}.{'ln_f' if gpt2 else 'norm'}.{kind}"] = state[f"norm.{kind}"]
        for layer in range(shape.depth):
            theirs = f"{root}.{blocks}.{layer}"
            for ours, name in (_GPT2 if gpt2 else _LLAMA).items():
                value = state[f"blocks.{layer}.{ours}.{kind}"]
                transposed = gpt2 and kind == "weight" and "norm" not in ours
                renamed[f"{theirs}.{name}.{kind}"] = value.T.contiguous() if transposed else value
            if gpt2:
                joined = torch.cat([state[f"blocks.{layer}.attention.{ours}.{kind}"] for ours in "qkv"])
                renamed[f"{theirs}.attn.c_attn.{kind}"] = joined.T.contiguous() if kind == "weight" else joined
    return renamed


def _restore_buffers(theirs: PreTrainedModel, config: Any) -> None:
    """Rotary frequencies are computed at construction and not saved: on the meta device they came out empty."""
    if config.model_type != "gpt2":
        theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)
