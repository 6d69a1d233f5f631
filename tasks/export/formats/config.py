"""config.json of a release, for both transformers 4 and 5.

transformers 5 saves rotary settings as `rope_parameters`, and the number of experts as `num_local_experts`, which 4
doesn't know: it would silently compute with its own default. So the config has both forms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "config.json"
OF_LOADING = ("_name_or_path", "_model_name_or_path", "torch_dtype")  # how the model was once loaded
_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}  # GPT-NeoX's names of these


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a model's config into a folder of a release."""
    text = json.dumps(portable_config(config), indent=2, sort_keys=True, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def rewrite_config(folder: Path) -> None:
    """Rewrite the config that transformers saved in a folder."""
    write_config(folder, json.loads((folder / NAME).read_text(encoding="utf-8")))


def portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config in the terms of transformers 5 and 4, without the fields that say how the model was loaded."""
    kept = {name: value for name, value in config.items() if name not in OF_LOADING}
    if "num_local_experts" in kept:
        kept.setdefault("num_experts", kept["num_local_experts"])
    rope = kept.get("rope_parameters")
    if not isinstance(rope, dict):
        return kept
    whole = rope.get("full_attention", rope)  # Gemma 3 rotates in two ways, by the kind of layer
    local = rope.get("sliding_attention")
    if local is not None:
        kept["rope_local_base_freq"] = local["rope_theta"]
    names = _NEOX if kept.get("model_type") == "gpt_neox" else {}
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in whole:
            kept[names.get(name, name)] = whole[name]
    if whole.get("rope_type", "default") != "default":
        kept["rope_scaling"] = {name: value for name, value in whole.items() if name != "rope_theta"}
    return kept
