"""Virtual tokens before every text: a trained prefix of keys and values, or trained embeddings of a prompt.

They can't be merged into weights, so they lie beside their base: a model's config.json has their number, and the folder
`adapter` their values as PEFT writes them. Both kinds are the beginning of a text that was read before, so either is
put into the cache before the first token. The model stays one of transformers. Everything that calls or generates with
it reads them, and doesn't need to know.

Shapes: B texts, N virtual tokens, L layers, H heads of keys and values, D their size, C channels, T tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

FIELD = "gristmill_virtual_tokens"  # in a model's config.json: how many
FOLDER = "adapter"  # in a model's folder
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's names
VALUES = "prompt_embeddings"  # in WEIGHTS: (N, 2·L·H·D) of a prefix, (N, C) of a prompt
_BUFFER = "virtual_keys_and_values"


def virtual_tokens(config: Any) -> int:
    """How many virtual tokens precede a text, by the config of a model."""
    return int(getattr(config, FIELD, 0))


def read_virtual_tokens(model: PreTrainedModel, folder: Path) -> None:
    """Have a base begin every text with the virtual tokens that lie in `folder`. Raises OSError if they aren't there,
    and ValueError for those of another model."""
    from safetensors.torch import load_file

    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    values = load_file(folder / WEIGHTS)[VALUES].to(model.device)
    if settings["peft_type"] == "PREFIX_TUNING":
        heads = settings["num_attention_heads"]
        size = settings["token_dim"] // heads
        if values.shape[1] != 2 * model.config.num_hidden_layers * heads * size:
            raise ValueError(f"{folder / WEIGHTS} is a prefix for another model")
        past = values.view(len(values), -1, 2, heads, size).permute(1, 2, 3, 0, 4)
    else:
        if values.shape[1] != model.get_input_embeddings().weight.shape[1]:
            raise ValueError(f"{folder / WEIGHTS} is a prompt for another model")
        past = keys_and_values(model, values)
    begin_with(model, past.contiguous())


def keys_and_values(model: PreTrainedModel, embeddings_NC: Tensor) -> Tensor:
    """(L, 2, H, N, D): the keys and values of a text of these embeddings."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()  # of the whole text in each layer, whatever the layer sees of it
    with torch.no_grad():
        whole: Any = model
        given = embeddings_NC[None].to(model.dtype)
        whole(inputs_embeds=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
    layers: Any = cache.layers
    return torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in layers])


def begin_with(model: PreTrainedModel, past: Tensor) -> None:
    """Put keys and values (L, 2, H, N, D) before every text that a model reads from now on."""
    import torch
    from transformers import DynamicCache

    tokens = past.shape[3]
    setattr(model.config, FIELD, tokens)
    model.register_buffer(_BUFFER, past.to(model.dtype), persistent=False)  # moves with the model, and isn't saved

    def begin(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = named.get("input_ids", named.get("inputs_embeds"))
        rows = len(arguments[0] if given is None else given)
        mask, cache = named.get("attention_mask"), named.get("past_key_values")
        if cache is None:
            cache = DynamicCache(config=model.config)
        if not cache.get_seq_length():
            for layer, (keys, values) in enumerate(getattr(model, _BUFFER)):
                cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        if mask is not None:  # (B, T), or (B, 1, T, T) of a packed row
            seen = torch.ones(*mask.shape[:-1], tokens, dtype=mask.dtype, device=mask.device)
            named["attention_mask"] = torch.cat([seen, mask], -1)
        if named.get("position_ids") is not None:
            named["position_ids"] = named["position_ids"] + tokens
        return arguments, {**named, "past_key_values": cache}

    model.register_forward_pre_hook(begin, with_kwargs=True)
