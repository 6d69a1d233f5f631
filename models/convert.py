"""Conversion to and from transformers, the format that loads anywhere without our code.

Names differ, we fuse q, k, v and gate, up into one matrix each, and GPT-2 stores matrices transposed, but the numbers
are the same. The files written are deterministic, byte for byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from models.foreign import ForeignDecoder
from models.kernels.rope_scaling import scaling_of
from models.presets import OWN_HEADS, Family, ModelShape
from models.pretrained import StoredWeights, extend, head_size, load_config, load_pretrained
from models.tokenizer import DIGEST_FIELD, END, EOS, PAD, copy_tokenizer, load_tokenizer, tokenizer_digest
from models.transformer import Decoder, Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

State = dict[str, Tensor]
Parts = dict[str, tuple[str, ...]]
GENERATION = "generation_config.json"

# Fields of a config that don't change logits: ids, dropout and initialisation, which matter in training, and GPT-2's
# other heads
_NO_LOGIT = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
    "max_window_layers",  # of Qwen3: `layer_types` says which layers have a window
    "pretraining_tp",
    "initializer_range",
    "attention_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "reorder_and_upcast_attn",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)
# Of a mixture whose layers are all sparse, as `decoder_sparse_step` and `mlp_only_layers` say: the size of a dense
# layer, and the losses of transformers' own training
_NO_LOGIT_OF_EXPERTS = ("intermediate_size", "output_router_logits", "router_aux_loss_coef")


class NotCarriedError(ValueError):
    """Our decoder can't compute what a model of transformers does. The message says why."""


# ours → theirs within a block. Several of theirs are fused in one of ours
_LLAMA: Parts = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}
_QK_NORMS: Parts = {"attention.q_norm": ("self_attn.q_norm",), "attention.k_norm": ("self_attn.k_norm",)}
_QWEN3: Parts = {**_LLAMA, **_QK_NORMS}
_QWEN3_MOE: Parts = {
    **{ours: theirs for ours, theirs in _QWEN3.items() if not ours.startswith("feed_forward.")},
    "feed_forward.router": ("mlp.gate",),
}
# The experts of a layer: in a module of transformers as one tensor of three dimensions, in files each by itself
_EXPERTS = {"feed_forward.up": "mlp.experts.gate_up_proj", "feed_forward.down": "mlp.experts.down_proj"}
_EXPERT = {"feed_forward.up": ("gate_proj", "up_proj"), "feed_forward.down": ("down_proj",)}
_GEMMA3: Parts = {
    **_QWEN3,
    "attention_post_norm": ("post_attention_layernorm",),
    "feed_forward_norm": ("pre_feedforward_layernorm",),
    "feed_forward_post_norm": ("post_feedforward_layernorm",),
}
_GPT2: Parts = {
    "attention_norm": ("ln_1",),
    "attention.qkv": ("attn.c_attn",),
    "attention.output": ("attn.c_proj",),
    "feed_forward_norm": ("ln_2",),
    "feed_forward.up": ("mlp.c_fc",),
    "feed_forward.down": ("mlp.c_proj",),
}
_BLOCKS = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "gemma3": _GEMMA3,
    "olmo3": {ours: theirs for ours, theirs in _GEMMA3.items() if ours not in ("attention_norm", "feed_forward_norm")},
}
_FAMILIES = {"gemma3_text" if family == "gemma3" else family: family for family in get_args(Family)}  # by model_type


def to_transformers(model: Transformer, config: Any = None) -> PreTrainedModel:
    """The same model as transformers' class of its family, such as LlamaForCausalLM, in float32 on the CPU. `config` is
    that of a model with the same shape, if it should be kept."""
    from transformers import AutoModelForCausalLM

    config = config_of(model.shape) if config is None else config
    config.dtype = torch.float32
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
    theirs.to_empty(device="cpu")
    theirs.load_state_dict(_to_theirs(model.state_dict(), model.shape), strict=False)
    if model.shape.rope_theta is not None:
        # Rotary frequencies are computed at construction and not saved. On the meta device they were empty
        theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)
    if model.embedding.scale != 1.0:
        theirs.model.embed_tokens.embed_scale.fill_(model.embedding.scale)
    theirs.tie_weights()
    return theirs.eval()


def from_transformers(theirs: PreTrainedModel) -> Transformer:
    """Our decoder with the weights of a model of transformers, in float32.

    Raises NotCarriedError for another architecture, and for settings that our decoder lacks.
    """
    shape = shape_of(theirs.config)
    model = Transformer(shape)
    model.load_state_dict(_to_ours({name: value.float() for name, value in theirs.state_dict().items()}, shape))
    return model.eval()


def read_weights(folder: Path, shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    """Our parameters by name, tied ones once, from the files of a model that has this shape, one at a time and in
    float32."""
    stored = StoredWeights(folder)
    for ours, names, transposed in _names(shape, files=True):
        if ours == "head.weight" and shape.tie_embeddings:
            continue
        stacked = torch.cat([torch.from_numpy(stored[name]) for name in names])
        yield ours, stacked.T.contiguous() if transposed else stacked


def save(model: Decoder, folder: Path, tokenizer_folder: Path, base: Path | None = None) -> None:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer load: config, safetensors and tokenizer files. A model
    that was trained on from a `base` keeps its settings."""
    from transformers import GenerationConfig

    if base is not None:
        if isinstance(model, ForeignDecoder):
            theirs = model.to_save()
        else:
            assert isinstance(model, Transformer)
            theirs = to_transformers(model, extend(load_config(base), model.shape.context, model.shape.rope_parameters))
        theirs.generation_config = GenerationConfig()
        theirs.save_pretrained(folder)
        shutil.copyfile(base / GENERATION, folder / GENERATION)
        copy_tokenizer(tokenizer_folder, folder)
        return
    tokenizer = load_tokenizer(tokenizer_folder)
    eos_id, pad_id = tokenizer.convert_tokens_to_ids([EOS, PAD])
    assert isinstance(model, Transformer)
    folder.mkdir(parents=True, exist_ok=True)
    theirs = to_transformers(model, config_of(model.shape, eos_id, pad_id))
    # Generation must stop at the end of a turn as well as at the end of a document
    ends = tokenizer.convert_tokens_to_ids([EOS, END])
    theirs.generation_config = GenerationConfig(bos_token_id=eos_id, eos_token_id=ends, pad_token_id=pad_id)
    setattr(theirs.config, DIGEST_FIELD, tokenizer_digest(tokenizer_folder))
    theirs.save_pretrained(folder)
    copy_tokenizer(tokenizer_folder, folder)


def load(folder: Path) -> Transformer:
    """Our decoder from a folder in the format of transformers. Raises NotCarriedError as `from_transformers` does."""
    return from_transformers(load_pretrained(folder))


def config_of(shape: ModelShape, eos_id: int | None = None, pad_id: int | None = None) -> Any:
    """transformers' config of a shape."""
    from transformers import (
        Gemma3TextConfig,
        GPT2Config,
        LlamaConfig,
        MistralConfig,
        Olmo3Config,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    ids = {"bos_token_id": eos_id, "eos_token_id": eos_id, "pad_token_id": pad_id}
    if shape.family == "gpt2":
        return GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.context,
            n_embd=shape.width,
            n_layer=shape.depth,
            n_head=shape.heads,
            n_inner=shape.feed_forward,
            activation_function="gelu_new",
            layer_norm_epsilon=shape.norm_eps,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=shape.tie_embeddings,
            **ids,
        )
    common: dict[str, Any] = dict(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.norm_eps,
        rope_parameters=shape.rope_parameters,
        tie_word_embeddings=shape.tie_embeddings,
        **ids,
    )
    if shape.family == "llama":
        return LlamaConfig(**common)
    if shape.family == "qwen3":
        return Qwen3Config(**common)
    if shape.family == "qwen3_moe":
        return Qwen3MoeConfig(
            **common,
            num_experts=shape.experts,
            num_experts_per_tok=shape.experts_per_token,
            moe_intermediate_size=shape.expert_feed_forward,
            norm_topk_prob=True,
            router_aux_loss_coef=0.0,
        )
    if shape.global_every is not None:
        sights = {True: "sliding_attention", False: "full_attention"}
        common |= {
            "layer_types": [sights[bool((layer + 1) % shape.global_every)] for layer in range(shape.depth)],
            "sliding_window": shape.sliding_window,
        }
    if shape.family == "gemma3":
        return Gemma3TextConfig(**common, query_pre_attn_scalar=shape.query_scalar or shape.head_dim)
    if shape.family == "olmo3":
        return Olmo3Config(**common)
    return MistralConfig(**common, sliding_window=shape.sliding_window)


def shape_of(config: Any) -> ModelShape:
    """The shape of a model of transformers. Raises NotCarriedError unless the shape describes the model completely:
    `config_of` must turn it into the same config again."""
    shape = _shape(config)
    again = config_of(shape)
    silent = _NO_LOGIT + (_NO_LOGIT_OF_EXPERTS if shape.experts else ())
    names = {*type(config).__annotations__, "head_dim"} - {*silent}  # OLMo 3's module reads one that isn't declared
    fields = {name: getattr(config, name) for name in sorted(names) if hasattr(config, name)}
    if fields.get("rope_parameters"):
        fields["rope_parameters"] = _by_new_name(config.rope_parameters)
    lost = [f"{name} {value}" for name, value in fields.items() if value is not None and value != getattr(again, name)]
    if lost:
        raise NotCarriedError(f"our {config.model_type} does not support {', '.join(lost)}")
    return shape


def _by_new_name(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rotary positions, of each kind of layer too, without `type`, an older name of `rope_type`."""
    kept = {name: value for name, value in parameters.items() if name != "type"}
    return {name: _by_new_name(value) if isinstance(value, dict) else value for name, value in kept.items()}


def _shape(config: Any) -> ModelShape:
    tied = bool(config.tie_word_embeddings)
    if config.model_type == "gpt2":
        return ModelShape(
            family="gpt2",
            depth=config.n_layer,
            width=config.n_embd,
            heads=config.n_head,
            kv_heads=config.n_head,
            feed_forward=config.n_inner or 4 * config.n_embd,
            context=config.n_positions,
            vocab_size=config.vocab_size,
            sliding_window=None,
            rope_theta=None,
            tie_embeddings=tied,
            norm_eps=config.layer_norm_epsilon,
        )
    if config.model_type not in _FAMILIES:
        raise NotCarriedError(f"{config.model_type} is not one of {', '.join(_FAMILIES)}")
    family, rope = _FAMILIES[config.model_type], config.rope_parameters
    special: dict[str, Any] = {}
    feed_forward = config.intermediate_size
    if family in ("gemma3", "olmo3"):
        types, local = config.layer_types, float(rope["sliding_attention"]["rope_theta"])
        # The first global layer gives the period, and without one no layer is global
        period = types.index("full_attention") + 1 if "full_attention" in types else len(types) + 1
        special = {"global_every": period, "local_rope_theta": local if family == "gemma3" else None}
        rope = rope["full_attention"]
    if family == "gemma3" and config.query_pre_attn_scalar != config.head_dim:
        special["query_scalar"] = config.query_pre_attn_scalar
    if family == "qwen3_moe":
        special = {
            "experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
            "expert_feed_forward": config.moe_intermediate_size,
        }
        feed_forward = config.num_experts_per_tok * config.moe_intermediate_size
    return ModelShape(
        family=family,
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        feed_forward=feed_forward,
        context=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        sliding_window=getattr(config, "sliding_window", None),
        rope_theta=float(rope["rope_theta"]),
        tie_embeddings=tied,
        norm_eps=config.rms_norm_eps,
        head_size=head_size(config) if family in OWN_HEADS else None,
        rope_scaling=scaling_of(rope),
        **special,
    )


def _names(shape: ModelShape, *, files: bool = False) -> list[tuple[str, tuple[str, ...], bool]]:
    """(our parameter, their parameters that it fuses, whether theirs are transposed) for the whole model. `files` have
    the matrices of experts one by one."""
    gpt2 = shape.family == "gpt2"
    names: list[tuple[str, tuple[str, ...], bool]]
    if gpt2:
        names = [("embedding.weight", ("transformer.wte.weight",), False)]
        names.append(("positions.weight", ("transformer.wpe.weight",), False))
        block, norm = "transformer.h", "transformer.ln_f"
    else:
        names = [("embedding.weight", ("model.embed_tokens.weight",), False)]
        block, norm = "model.layers", "model.norm"
    names.append(("head.weight", ("lm_head.weight",), False))
    for kind in ("weight", "bias") if gpt2 else ("weight",):
        names.append((f"norm.{kind}", (f"{norm}.{kind}",), False))
        for layer in range(shape.depth):
            for ours, theirs in _BLOCKS[shape.family].items():
                transposed = gpt2 and kind == "weight" and "norm" not in ours
                stacked = tuple(f"{block}.{layer}.{name}.{kind}" for name in theirs)
                names.append((f"blocks.{layer}.{ours}.{kind}", stacked, transposed))
    for layer, (ours, together) in product(range(shape.depth), _EXPERTS.items() if shape.experts else ()):
        within = f"{block}.{layer}."
        each = tuple(
            f"{within}mlp.experts.{expert}.{part}.weight"
            for expert in range(shape.experts or 0)
            for part in _EXPERT[ours]
        )
        names.append((f"blocks.{layer}.{ours}.weight", each if files else (within + together,), False))
    return names


def _to_ours(theirs: State, shape: ModelShape) -> State:
    embedding = "transformer.wte.weight" if shape.family == "gpt2" else "model.embed_tokens.weight"
    if shape.tie_embeddings:
        theirs = {**theirs, "lm_head.weight": theirs[embedding]}
    state = {}
    for ours, names, transposed in _names(shape):
        stacked = torch.cat([theirs[name] for name in names]) if len(names) > 1 else theirs[names[0]]
        stacked = stacked.flatten(0, 1) if stacked.dim() == 3 else stacked
        state[ours] = stacked.T if transposed else stacked
    return state


def _to_theirs(ours: State, shape: ModelShape) -> State:
    state = {}
    heads, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts = {1: None, 2: [shape.feed_forward] * 2, 3: [heads, shared, shared]}
    for name, names, transposed in _names(shape):
        sizes = parts[len(names)]
        if ".experts." in names[0]:
            state[names[0]] = ours[name].unflatten(0, (shape.experts or 1, -1)).contiguous()
            continue
        pieces = (ours[name],) if sizes is None else ours[name].split(sizes)
        for their_name, piece in zip(names, pieces, strict=True):
            state[their_name] = (piece.T if transposed else piece).contiguous()
    return state
