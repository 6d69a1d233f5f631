"""One step of a decoder with its cache as plain tensors, which torch.export traces.

The step takes the new ids and the keys and values of all earlier tokens (a past of length 0 at first), and returns
logits and the keys and values of all tokens. Its names are those that optimum, onnxruntime-genai and transformers.js
give such a graph. The step computes the mask itself, as transformers' own depends on the kind of cache and isn't
traced. A past is never cut: the mask applies a sliding window, so that all layers have one length.

Shapes: B sequences, T new tokens, P past tokens, H heads of keys and values, D their size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from models.pretrained import load_pretrained
from models.runtimes.kv_cache import past_shape
from tasks.export.formats.graphs.models import MASK_BY_KIND, windows_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PREFIX = "causal."  # of the parameters' names in a traced program
ATTENTION = "gristmill-traced"  # transformers' name for `_attend`


class CachedDecoder(nn.Module):
    """One step of a causal language model of transformers."""

    def __init__(self, causal: Any) -> None:
        super().__init__()
        self.causal = causal
        self.windows = windows_of(causal.config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, T, V), and keys and values (B, H, P + T, D) layer by layer.

        Ids and positions are (B, T), the mask (B, P + T) is 0 at padding, the past holds keys and values (B, H, P, D).
        """
        from transformers.cache_utils import Cache, DynamicLayer

        layers = []
        for keys, values in zip(past_key_values[::2], past_key_values[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            layers.append(layer)
        past = past_key_values[0].shape[2]
        masks = {kind: _mask(attention_mask, input_ids.shape[1], past, each) for kind, each in self.windows.items()}
        output = self.causal(
            input_ids=input_ids,
            attention_mask=masks if self.causal.config.model_type in MASK_BY_KIND else masks["full_attention"],
            position_ids=position_ids,
            past_key_values=Cache(layers=layers),
            use_cache=True,
        )
        return output.logits, [each for layer in layers for each in (layer.keys, layer.values)]


@torch.no_grad()
def trace(folder: Path) -> ExportedProgram:
    """Trace the step of a folder's model, in float32, for any number of sequences, new tokens and past tokens."""
    from torch.export import Dim
    from torch.fx.experimental import _config as tracing
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)
    decoder = CachedDecoder(load_pretrained(folder, attn_implementation=ATTENTION)).eval()
    layers, heads, size = past_shape(decoder.causal.config)
    rows, new, past = 2, 3, 5  # any example will do whose sizes differ and aren't 0 or 1
    ids = torch.ones(rows, new, dtype=torch.long)
    mask = torch.ones(rows, past + new, dtype=torch.long)
    cached = [torch.zeros(rows, heads, past, size) for _ in range(2 * layers)]
    shapes = (
        {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
        {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
        {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
        [{0: Dim.DYNAMIC, 2: Dim.DYNAMIC} for _ in cached],
    )
    example = (ids, mask, torch.arange(past, past + new).expand(rows, new), cached)
    # Without it, torch specialises lengths of 0 and 1 as other programs
    settings: Any = tracing
    with settings.patch(backed_size_oblivious=True):
        program = torch.export.export(decoder, example, dynamic_shapes=shapes, strict=False)
    for node in program.graph.nodes:  # stack traces name files of this machine
        node.meta.pop("stack_trace", None)
    return program


def _mask(attention_mask: Tensor, new: int, past: int, window: int | None) -> Tensor:
    """(B, 1, T, P + T), 0 for a visible token and the lowest float32 for any other: later, padding, or too far away."""
    at_T1 = torch.arange(new, device=attention_mask.device).unsqueeze(1) + past
    seen_S = torch.arange(past + new, device=attention_mask.device).unsqueeze(0)
    seen = seen_S <= at_T1
    if window is not None:
        seen = seen & (seen_S > at_T1 - window)
    seen = seen[None, None] & (attention_mask[:, None, None, :] != 0)
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Attention for transformers by torch's own function. That of transformers branches on the length of a step, so its
    trace would hold for one length or for all others."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return attended.transpose(1, 2).contiguous(), None
