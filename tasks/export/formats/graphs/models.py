"""Which models of transformers have a step that can be traced, judged only by their config."""

from __future__ import annotations

from typing import Any

ONE_MASK = ("gpt2", "llama", "mistral", "gemma")  # transformers' modules take one mask for all layers,
MASK_BY_KIND = ("qwen2", "qwen3", "smollm3", "gemma3_text", "olmo3")  # or one for each kind of layer
ROTARY_OF_LENGTH = ("dynamic", "longrope")  # rotary embeddings that depend on the longest position of a call


def windows_of(config: Any) -> dict[str, int | None]:
    """The sliding window of each kind of layer. If all layers are alike, their kind is `full_attention`."""
    window = getattr(config, "sliding_window", None)
    if config.model_type not in MASK_BY_KIND:
        return {"full_attention": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(config.layer_types))}


def why_not(config: Any) -> str | None:
    """The reason why a model's step can't be traced, or None if it can."""
    if config.model_type not in (*ONE_MASK, *MASK_BY_KIND):
        return f"{config.model_type} isn't among {', '.join((*ONE_MASK, *MASK_BY_KIND))}"
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rotary in ROTARY_OF_LENGTH:
        return f"its rotary embedding is {rotary}, which depends on the length of the text"
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention is bidirectional"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantized"
    return None
