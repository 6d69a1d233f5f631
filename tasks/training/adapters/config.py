"""The settings of an adapter, and whether it can be released without its base. No torch, no PEFT."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from storage.errors import ConfigError
from tasks.stage.config import StageConfig

Part = Literal["embedding", "head", "norms"]

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# The linear layers of our models
LAYERS = {
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    **dict.fromkeys(("llama", "mistral", "qwen3", "gemma3", "olmo3"), LLAMA),
    "qwen3_moe": LLAMA[:4],  # experts aren't linear layers of transformers
}


def linear_layers(family: str, depth: int) -> list[str]:
    """The names of the linear layers of our models, as transformers has them, but for the head."""
    if family == "gpt2":
        ends = [f"attn.{name}" for name in LAYERS[family][:2]] + [f"mlp.{name}" for name in LAYERS[family][1:]]
        return [f"transformer.h.{layer}.{end}" for layer in range(depth) for end in ends]
    ends = [f"self_attn.{name}" if name in LLAMA[:4] else f"mlp.{name}" for name in LAYERS[family]]
    return [f"model.layers.{layer}.{end}" for layer in range(depth) for end in ends]


WHOLE = (
    "parts to train whole beside the adapter, for text of a new kind: embedding (with learned positions), head, norms. "
    "A tied matrix needs both of its names"
)


def smaller_sides(family: str, *, width: int, queries: int, keys: int, feed_forward: int) -> dict[str, int]:
    """The smaller side of each linear layer of our models, by the end of its name."""
    if family == "gpt2":
        return dict(zip(LAYERS[family], (width, min(width, feed_forward), min(width, feed_forward)), strict=True))
    sides = (queries, keys, keys, queries, feed_forward, feed_forward, feed_forward)
    return {name: min(width, side) for name, side in zip(LLAMA, sides, strict=True)}


class LoraConfig(StageConfig):
    """Low-rank adaptation (Hu et al. 2021): the weight W of a layer is frozen, and scale · B·A is learned beside it."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(16, ge=1, description="rank of B·A: the columns of B and the rows of A")
    alpha: int = Field(32, ge=1, description="scale of B·A, divided by the rank")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout before A, which differs with processes and micro-batches"
    )
    targets: list[str] | None = Field(
        None,
        min_length=1,
        description="names of linear layers, such as q_proj, or patterns, such as layers.[0-3].*_proj (default: "
        "all but the head)",
    )
    quantize: Literal["none", "nf4"] = Field(
        "none", description="nf4: the frozen model in 4 bits (QLoRA). model/ then has the rounded weights, in float32"
    )
    rslora: bool = Field(False, description="divide alpha by the root of the rank instead (Kalajdzievski 2023)")
    dora: bool = Field(False, description="learn the magnitude of each row of W too (Liu et al. 2024)")
    whole: tuple[Part, ...] = Field(
        (),
        exclude_if=lambda whole: not whole,  # so that keys from before this field stay valid
        description=WHOLE,
    )

    @property
    def words(self) -> str:
        """What it is, for a model card."""
        kind = f"{'QLoRA' if self.quantize != 'none' else 'DoRA' if self.dora else 'LoRA'} of rank {self.rank}"
        return f"{kind}, and {', '.join(self.whole)} whole" if self.whole else kind

    @property
    def low_rank(self) -> LoraConfig:
        """The adapter without the parts that are trained whole."""
        return self.model_copy(update={"whole": ()})

    def unknown_targets(self, family: str, depth: int) -> list[str]:
        """The targets that our models of a family don't have with so many layers."""
        names = linear_layers(family, depth)
        return [target for target in self.targets or () if not any(_meant(name, target) for name in names)]

    def smallest_side(self, family: str, depth: int, sides: Mapping[str, int]) -> int:
        """The smallest side of a layer that it adapts, by those of `smaller_sides`."""
        names = linear_layers(family, depth)
        meant = [name for name in names if any(_meant(name, target) for target in self.targets or ("*",))]
        return min(sides[name.rpartition(".")[2]] for name in meant)


def _meant(name: str, target: str) -> bool:
    return fnmatchcase(f".{name}", f"*.{target}")


class VirtualTokens(StageConfig):
    """Trained vectors before every text. They can't be merged into weights."""

    tokens: int = Field(16, ge=1, description="virtual tokens. They take as many positions of the context")

    @property
    def words(self) -> str:
        """What it is, for a model card."""
        return f"{self.tokens} virtual tokens"


class PrefixConfig(VirtualTokens):
    """Prefix tuning (Li & Liang 2021): keys and values of virtual tokens are learned in every layer."""

    kind: Literal["prefix"] = "prefix"


class PromptConfig(VirtualTokens):
    """Prompt tuning (Lester et al. 2021): embeddings of virtual tokens are learned."""

    kind: Literal["prompt"] = "prompt"


def _kind(adapter: Any) -> str:
    return str(adapter.get("kind", "lora") if isinstance(adapter, dict) else getattr(adapter, "kind", "lora"))


AdapterConfig = Annotated[
    Annotated[LoraConfig, Tag("lora")]
    | Annotated[PrefixConfig, Tag("prefix")]
    | Annotated[PromptConfig, Tag("prompt")],
    Discriminator(_kind),
]
AnyAdapter = LoraConfig | VirtualTokens


def check_sight(section: str, config: Any) -> None:
    """Raises ConfigError for a model with layers that see only a window of the text, and so lose what begins it."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if window and "sliding_attention" in kinds and window < config.max_position_embeddings:
        raise ConfigError(
            f"{section}.adapter learns virtual tokens before a text, but layers of this {config.model_type} see "
            f"{window:,} tokens of {config.max_position_embeddings:,} only.",
            "Train a LoRA adapter instead (kind: lora).",
        )


def why_not_apart(adapters: Mapping[str, AnyAdapter | None]) -> str:
    """Why links that were trained one after another with these adapters can't be released as one adapter over the
    starting model of the first, and what to do about it, or "" if they can."""
    if not adapters:
        return "nothing was trained on the base: release a link after it"
    for name, adapter in adapters.items():
        if adapter is None:
            return f"{name} trains all weights: give it an adapter"
        if isinstance(adapter, VirtualTokens):
            both = f"{name} learns virtual tokens over an adapter, and no folder of PEFT holds both: leave one out"
            return both if len(adapters) > 1 else ""
        if adapter.dora:
            return f"{name}.adapter.dora scales the base's own rows, which no sum of adapters does: set it to false"
        if adapter.quantize != "none":
            return f"{name}.adapter.quantize rounds the base, but users have the original: set it to none"
    return ""
