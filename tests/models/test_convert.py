"""Settings of a transformers model that our decoder can't carry are refused by name, not dropped."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from models.convert import NotCarriedError, shape_of

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GPT2: dict[str, Any] = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
QWEN3: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 24}
MOE: dict[str, Any] = {
    **QWEN3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
GEMMA3: dict[str, Any] = {**QWEN3, "num_hidden_layers": 3}
ROPE: dict[str, Any] = {"rope_theta": 10_000.0}
STRETCHED = {"rope_type": "linear", "factor": 2.0}
WINDOW, WHOLE = "sliding_attention", "full_attention"
YARN: dict[str, Any] = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("family", "settings", "named"),
    [
        ("qwen2", SIZES, "qwen2 is not one of gpt2, llama, mistral, qwen3, qwen3_moe, gemma3_text, olmo3"),
        ("gemma3", {}, "gemma3 is not one of"),  # with eyes
        ("gemma3_text", {**GEMMA3, "final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ("gemma3_text", {**GEMMA3, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("gemma3_text", {**GEMMA3, "attention_bias": True}, "attention_bias True"),
        ("gemma3_text", {**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma3_text", {**GEMMA3, "layer_types": [WHOLE, WINDOW, WHOLE]}, "layer_types"),
        ("gemma3_text", {**GEMMA3, "rope_parameters": {WINDOW: {**ROPE, **STRETCHED}}}, "rope_type': 'linear'"),
        ("olmo3", {**SIZES, "layer_types": [WHOLE, WINDOW]}, "layer_types"),
        ("olmo3", {**SIZES, "rope_parameters": {WHOLE: ROPE, WINDOW: {"rope_theta": 500.0}}}, "rope_parameters"),
        ("olmo3", {**SIZES, "head_dim": 32}, "head_dim 32"),
        ("llama", {**SIZES, "attention_bias": True}, "our llama does not support attention_bias True"),
        ("llama", {**SIZES, "mlp_bias": True}, "mlp_bias True"),
        ("llama", {**SIZES, "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("llama", {**SIZES, "rope_parameters": {**YARN, "truncate": False}}, "truncate"),
        ("llama", {**SIZES, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}, "mscale"),
        ("llama", {**SIZES, "hidden_act": "gelu"}, "hidden_act gelu"),
        ("llama", {**SIZES, "head_dim": 32}, "head_dim 32"),
        ("mistral", {**SIZES, "head_dim": 32, "num_key_value_heads": 2}, "our mistral does not support head_dim 32"),
        ("qwen3", {**QWEN3, "attention_bias": True}, "our qwen3 does not support attention_bias True"),
        ("qwen3", {**QWEN3, "use_sliding_window": True, "sliding_window": 16}, "use_sliding_window True"),
        ("qwen3", {**QWEN3, "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen3", {**QWEN3, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("qwen3_moe", {**MOE, "norm_topk_prob": False}, "our qwen3_moe does not support norm_topk_prob False"),
        ("qwen3_moe", {**MOE, "decoder_sparse_step": 2}, "decoder_sparse_step 2"),
        ("qwen3_moe", {**MOE, "mlp_only_layers": [1]}, r"mlp_only_layers \[1\]"),
        ("qwen3_moe", {**MOE, "use_sliding_window": True, "sliding_window": 16}, "use_sliding_window True"),
        ("gpt2", {**GPT2, "activation_function": "relu"}, "our gpt2 does not support activation_function relu"),
        ("gpt2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
    ],
)
def test_what_is_not_carried_is_refused_by_name(family: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(NotCarriedError, match=named):
        shape_of(AutoConfig.for_model(family, **settings))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {**SIZES, "rope_parameters": {"rope_theta": 100_000, "rope_type": "default"}, "head_dim": 16}),
        ("llama", {**SIZES, "num_key_value_heads": 1, "tie_word_embeddings": True, "attention_dropout": 0.1}),
        ("mistral", {**SIZES, "num_key_value_heads": 2, "sliding_window": None}),
        ("qwen3", {**QWEN3, "max_window_layers": 1, "sliding_window": 16}),  # unless use_sliding_window
        ("qwen3_moe", {**MOE, "router_aux_loss_coef": 0.01, "output_router_logits": True}),
        ("gemma3_text", {**GEMMA3, "query_pre_attn_scalar": 168, "sliding_window_pattern": 2}),
        ("gemma3_text", {**GEMMA3, "layer_types": [WINDOW, WINDOW, WINDOW]}),
        ("olmo3", {**SIZES, "layer_types": [WHOLE, WHOLE], "head_dim": 16}),
        ("gpt2", {**GPT2, "n_inner": None, "resid_pdrop": 0.1, "summary_type": "mean"}),
    ],
)
def test_what_changes_no_logit_is_no_reason(family: str, settings: dict[str, Any]) -> None:
    assert shape_of(AutoConfig.for_model(family, **settings)).family == family.removesuffix("_text")
