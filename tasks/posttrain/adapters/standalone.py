"""Whether adapters can be released apart from the base: as plain LoRA over weights that users already have."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.posttrain.adapters.config import LoraConfig


def why_not_apart(adapters: Mapping[str, LoraConfig | None]) -> str:
    """Why links that were trained one after another with these adapters can't be released as one adapter over the
    starting model of the first, and what to do about it, or "" if they can."""
    if not adapters:
        return "nothing was trained on the base: release a link after it"
    for name, adapter in adapters.items():
        if adapter is None:
            return f"{name} trains all weights: give it an adapter"
        if adapter.dora:
            return f"{name}.adapter.dora scales the base's own rows, which no sum of adapters does: set it to false"
        if adapter.quantize != "none":
            return f"{name}.adapter.quantize rounds the base, but users have the original: set it to none"
    return ""
