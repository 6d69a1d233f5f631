"""A model's architecture and shape in llama.cpp's terms, from its config of transformers.

Only settings that both compute alike are accepted. A setting that llama.cpp lacks, or that was never checked, is
refused by name. The proof of an export then runs the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from models.kernels.rope_scaling import BETA_FAST, BETA_SLOW, RopeScaling, attention_of, scaling_of
from storage.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFWriter


@dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp, and how its matrices differ from those of transformers."""

    name: str
    activations: tuple[str, ...] = ("silu",)
    neighbours: bool = False  # rotary pairs are neighbours, not halves: rows of queries and keys are permuted
    transposed: bool = False  # GPT-2's Conv1D: inputs × outputs
    norms_without_one: bool = False  # Gemma's norms store their weight minus one
    biases: bool = False  # of queries, keys and values
    windows: bool = False  # llama.cpp computes a sliding window, in all layers but each n-th
    experts: bool = False  # in each layer, with weights that add up to 1


# What a file says of YaRN, with the values that llama.cpp always takes
_YARN: dict[str, float | None] = dict.fromkeys(("rope_theta", "type", *(field.name for field in fields(RopeScaling))))
_YARN |= {"beta_fast": BETA_FAST, "beta_slow": BETA_SLOW}
_GELU = ("gelu_pytorch_tanh", "gelu_new")
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", neighbours=True),
    "mistral": Architecture("llama", neighbours=True),
    "qwen2": Architecture("qwen2", biases=True),
    "qwen3": Architecture("qwen3"),
    "qwen3_moe": Architecture("qwen3moe", experts=True),
    "gemma": Architecture("gemma", activations=(*_GELU, "gelu"), norms_without_one=True),
    "gemma3_text": Architecture("gemma3", activations=_GELU, norms_without_one=True, windows=True),
    "olmo3": Architecture("olmo2", windows=True),
    "gpt2": Architecture("gpt2", activations=("gelu_new",), transposed=True),
}


def architecture_of(config: Any) -> Architecture:
    """The architecture for a model's config. Raises ConfigError for a model that llama.cpp would compute
    differently."""
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        raise _refusal(f"{config.model_type} isn't among {', '.join(ARCHITECTURES)}")
    activation = getattr(config, "hidden_activation", None) or _first(config, "hidden_act", "activation_function")
    if activation not in known.activations:
        raise _refusal(f"its activation is {activation}, and {known.name} has {known.activations[0]}")
    window, context = getattr(config, "sliding_window", None), _first(config, "max_position_embeddings", "n_positions")
    if known.windows:
        _check_windows(config, known)
    elif getattr(config, "use_sliding_window", True) and window is not None and window < context:
        raise ConfigError(
            f"llama.cpp doesn't support a sliding window ({window}) in this architecture.",
            "Leave gguf out of export.formats, or set pretrain.model.sliding_window to the context.",
        )
    if not known.biases and (getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False)):
        raise _refusal("its projections have biases")
    if known.experts:
        for name, needed in (("norm_topk_prob", True), ("decoder_sparse_step", 1), ("mlp_only_layers", [])):
            if (value := getattr(config, name)) != needed:
                raise _refusal(f"its {name} is {value}, and {known.name} has {needed}")
    if known.windows and (kind := rope(config, "sliding_attention").get("rope_type", "default")) != "default":
        raise _refusal(f"its local rotary positions are scaled by {kind}")
    _check_scaling(rope(config), known)
    if config.model_type == "gpt2" and (
        getattr(config, "scale_attn_by_inverse_layer_idx", False) or not getattr(config, "scale_attn_weights", True)
    ):
        raise _refusal("its attention is scaled by layer")
    return known


def _check_windows(config: Any, known: Architecture) -> None:
    """Raises ConfigError for layers, scores or an output layer that llama.cpp's architecture lacks."""
    kinds, period = config.layer_types, _period(config)
    if [kind == "full_attention" for kind in kinds] != [(layer + 1) % period == 0 for layer in range(len(kinds))]:
        raise _refusal("its layers with a window follow no regular pattern")
    if not config.sliding_window:
        raise _refusal("its layers have no window")
    if known.name == "olmo2" and config.tie_word_embeddings:
        raise _refusal("its embedding is its output layer, and olmo2 has one of its own")
    if known.name != "gemma3":
        return
    # Of 62 layers, llama.cpp takes it for Gemma 3 27B
    scalar = config.hidden_size // config.num_attention_heads if layers_of(config) == 62 else config.head_dim
    if config.query_pre_attn_scalar != scalar:
        raise _refusal(f"query_pre_attn_scalar is {config.query_pre_attn_scalar}, and llama.cpp has {scalar}")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if getattr(config, name, None):
            raise _refusal(f"it has {name}")


def _period(config: Any) -> int:
    """Each how manieth layer sees the whole context. One more than the layers if none does."""
    kinds = config.layer_types
    return int(kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1)


def rope(config: Any, kind: str = "full_attention") -> Mapping[str, Any]:
    """The settings of rotary positions, empty for a model without them, in layers of a kind if they differ by it."""
    settings: Mapping[str, Any] = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    by_kind: Mapping[str, Any] = settings.get(kind, settings)
    return by_kind


def write_architecture(writer: GGUFWriter, config: Any, known: Architecture, rows: int) -> None:
    """Write the shape as metadata. `rows` is that of the embedding."""
    from gguf import RopeScalingType

    width, heads = _first(config, "hidden_size", "n_embd"), _first(config, "num_attention_heads", "n_head")
    writer.add_context_length(_first(config, "max_position_embeddings", "n_positions"))
    writer.add_embedding_length(width)
    writer.add_block_count(layers_of(config))
    writer.add_feed_forward_length(_first(config, "intermediate_size", "n_inner") or 4 * width)
    if known.experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_head_count(heads)
    writer.add_vocab_size(rows)
    if known.transposed:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head = getattr(config, "head_dim", None) or width // heads
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    if known.windows:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(_period(config))
        writer.add_rope_freq_base_swa(float(rope(config, "sliding_attention")["rope_theta"]))
    positions = rope(config)
    writer.add_rope_freq_base(float(positions.get("rope_theta") or config.rope_theta))
    kind = positions.get("rope_type")
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(positions["factor"])
    elif kind == "yarn":
        scaling = scaling_of(positions)
        assert scaling is not None
        assert scaling.original_max_position_embeddings is not None
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling.factor)
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)
        # llama.cpp multiplies it by YaRN's own factor on queries and keys
        writer.add_rope_scaling_attn_factors(scaling.attention / attention_of(scaling.factor))


def layers_of(config: Any) -> int:
    """The number of a decoder's blocks."""
    return int(_first(config, "num_hidden_layers", "n_layer"))


def _first(config: Any, *names: str) -> Any:
    """A setting under the first of these names that the config has, as families name it differently."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _check_scaling(positions: Mapping[str, Any], known: Architecture) -> None:
    kind = positions.get("rope_type", "default")
    possible = {"default", "linear"}
    if not known.windows:  # llama.cpp would apply YaRN to the local layers too
        possible |= {"yarn", "llama3"} if known.name == "llama" else {"yarn"}
    if kind not in possible:
        raise _refusal(f"its rotary positions are scaled by {kind}, which llama.cpp doesn't do in a {known.name}")
    if kind != "yarn":
        return
    if other := sorted(f"{name} {positions[name]}" for name in positions.keys() - _YARN.keys()):
        raise _refusal(f"its rotary positions are scaled by yarn with {', '.join(other)}, which llama.cpp doesn't read")
    for name, only in _YARN.items():
        if only and positions.get(name) not in (None, only):
            raise _refusal(
                f"{name} of its yarn is {positions[name]}, and llama.cpp computes {only:g} whatever a file says"
            )


def _refusal(why: str) -> ConfigError:
    return ConfigError(f"This model can't be written as GGUF: {why}.", "Leave gguf out of export.formats.")
