"""Derives the shape of a model from its depth. No torch, so that planning is fast.

Each derived value has a rule, and `explain` lists values with their rules. Parameter counts are exact: a test compares
them with the built module. FLOPs are the usual 6N + attention (Kaplan et al. 2020, PaLM appendix B). Estimates of
training are in `models/memory` and `models/compute.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from models.config import ModelConfig
from models.kernels.rope_scaling import RopeScaling

Family = Literal["gpt2", "llama", "mistral", "qwen3", "qwen3_moe", "gemma3", "olmo3"]
Recompute = Literal["none", "selective", "full"]  # activation checkpointing

OF_EXPERTS = ("experts", "experts_per_token", "expert_feed_forward")
SET = "set in the profile"
LOSS_CHUNK = 512  # tokens whose logits are computed at a time
# In 16 bits on a GPU. Each chunk reads and writes the head's gradient, 8 bytes a weight: 64 µs for GPT-2's 39M weights
# at an H200's 4.8 TB/s. A chunk's products, 6 FLOPs a weight and token, take 150 µs there for 512 tokens (790 TFLOP/s),
# and 1.2 ms for 4,096, whose logits are 0.4 GB for 50,257 words.
LOSS_CHUNK_CUDA = 4_096
LOGITS_ALIGNED = 128  # 16-bit rows of logits begin at multiples of it, 256 bytes
CHINCHILLA_TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, table 3


class ShapeError(ValueError):
    """A shape that can't be built, or contradictory settings of it."""


class UntracedError(ValueError):
    """A module whose steps can't be estimated. The message names its architecture."""


class Sight(NamedTuple):
    """What a layer attends to: the base of its rotary embeddings, None for learned positions, how they are scaled, and
    its window, None for all tokens."""

    theta: float | None
    scaling: RopeScaling | None
    window: int | None


@dataclass(frozen=True)
class ModelShape:
    """All numbers needed to build the model. `rules` says where each came from, and is not part of its identity."""

    family: Family
    depth: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int  # that a token passes: of a mixture, of all its experts together
    context: int
    vocab_size: int
    sliding_window: int | None
    rope_theta: float | None
    tie_embeddings: bool
    norm_eps: float
    head_size: int | None = None  # None for width / heads
    experts: int | None = None  # of a layer. None for one dense feed-forward layer
    experts_per_token: int | None = None
    expert_feed_forward: int | None = None
    global_every: int | None = None  # length of the pattern of layers, whose last sees the whole context
    local_rope_theta: float | None = None  # of layers with a window. None for `rope_theta`
    query_scalar: int | None = None  # scores are divided by its root. None for the head size
    rope_scaling: RopeScaling | None = None  # in layers that see the whole context
    rules: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.head_size is None or self.family == "gemma3") and self.width % self.heads:
            raise ShapeError(
                f"width {self.width} is not a multiple of {self.heads} heads: set heads to a divisor of it"
            )
        if self.heads % self.kv_heads:
            raise ShapeError(
                f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads: set a divisor of heads"
            )
        if self.family != "gpt2" and self.head_dim % 2:
            size, name = (self.head_size, "head_size") if self.head_size else (f"{self.width}/{self.heads}", "heads")
            raise ShapeError(f"rotary positions need an even head size, not {size}: change {name}")
        if self.experts and (self.experts_per_token or 0) > self.experts:
            raise ShapeError(f"experts_per_token is {self.experts_per_token} of {self.experts} experts: lower it")

    @property
    def head_dim(self) -> int:
        """Dimension of one attention head."""
        return self.head_size or self.width // self.heads

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """The rotary positions as transformers' setting, by kind of layer if it has local and global ones."""
        scaled = self.rope_scaling.parameters if self.rope_scaling else {"rope_type": "default"}
        whole = {**scaled, "rope_theta": self.rope_theta}
        if self.global_every is None:
            return whole
        local = {"rope_type": "default", "rope_theta": self.local_rope_theta or self.rope_theta}
        return {"sliding_attention": local, "full_attention": whole}

    @property
    def heads_width(self) -> int:
        """Width of the queries, and of what attention returns: the model's width, unless it has a `head_size`."""
        return self.heads * self.head_dim

    @property
    def head_norms(self) -> tuple[int, int] | None:
        """Weights of the norms of queries and of keys, the same for all heads unless they have `joint_norms`. None for
        a model without such norms."""
        if self.joint_norms:
            return self.heads_width, self.kv_heads * self.head_dim
        return (self.head_dim, self.head_dim) if self.family in OWN_HEADS else None

    @property
    def joint_norms(self) -> bool:
        """Whether all heads of queries, or of keys, are normalised together."""
        return self.family == "olmo3"

    @property
    def pre_norms(self) -> bool:
        """Whether attention and the feed-forward layer get normalised inputs."""
        return self.family != "olmo3"

    @property
    def post_norms(self) -> bool:
        """Whether their outputs are normalised before they are added."""
        return self.family in ("gemma3", "olmo3")

    @property
    def zero_centred(self) -> bool:
        """Whether a norm's scale is 1 + its weight."""
        return self.family == "gemma3"

    @property
    def block_norms(self) -> int:
        """Norms of the width of the model in a block."""
        return 2 * (self.pre_norms + self.post_norms)

    @property
    def all_feed_forward(self) -> int:
        """The feed-forward size of a layer's experts together, or of its one."""
        return (self.experts or 1) * (self.expert_feed_forward or self.feed_forward)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layer is SwiGLU, or Gemma's GeGLU. GPT-2's is GELU."""
        return self.family != "gpt2"

    @property
    def windowed(self) -> int:
        """Layers whose attention a window narrows."""
        if self.sliding_window is None or self.sliding_window >= self.context:
            return 0
        return self.depth - (self.depth // self.global_every if self.global_every else 0)

    def sight(self, layer: int) -> Sight:
        """What a layer attends to."""
        if self.global_every and (layer + 1) % self.global_every:
            return Sight(self.local_rope_theta or self.rope_theta, None, self.sliding_window)
        return Sight(self.rope_theta, self.rope_scaling, None if self.global_every else self.sliding_window)

    def seen(self, document: int | None = None) -> int:
        """Tokens that one token attends to, summed over the layers: the context, a window, or a `document` if shorter,
        with masked later tokens counted."""
        far = min(self.context, document or self.context)
        return self.windowed * min(far, self.sliding_window or far) + (self.depth - self.windowed) * far


@dataclass(frozen=True)
class ForeignShape:
    """A decoder that transformers computes and ours can't (`models/foreign.py`): what its training needs to know."""

    family: str  # transformers' model_type
    depth: int
    context: int
    vocab_size: int
    plain_head: bool  # logits are the last hidden state times a matrix, without bias, scale or cap
    by_name: bool  # its files have each parameter under the name that it has in the module
    sizes: Mapping[str, tuple[int, ...]] = field(repr=False)  # of its parameters by name, tied ones once
    rope_parameters: Mapping[str, Any] | None = None  # transformers' setting, if it isn't that of its files


Shape = ModelShape | ForeignShape


def derive(config: ModelConfig, vocab_size: int) -> ModelShape:
    """The shape for `config` and a vocabulary: overrides are kept, and the rest follows the rules below.

    Raises ShapeError for contradictory numbers, and for an override without effect.
    """
    _refuse_unread(config)
    rules: dict[str, str] = {"family": SET, "depth": SET, "context": SET, "vocab_size": "the tokenizer's"}

    def choose(name: str, derived: Any, rule: str) -> Any:
        override = getattr(config, name)
        rules[name] = rule if override is None else SET
        return derived if override is None else override

    gpt2, gemma, olmo = (config.family == name for name in ("gpt2", "gemma3", "olmo3"))
    width = choose("width", 64 * config.depth, "64 × depth, nanochat's aspect ratio")
    head = 32 if width < 256 else 64 if width < 2048 else 128
    sizes = "32 below width 256, 64 below 2048, else 128"
    heads = choose("heads", max(1, width // head), f"width / head size: {sizes}")
    mixture = dict[str, Any]()
    if config.family == "qwen3_moe":
        for name in OF_EXPERTS:
            mixture[name] = choose(name, *_of_experts(name, width, mixture))
        feed_forward = mixture["experts_per_token"] * mixture["expert_feed_forward"]
        rules["feed_forward"] = "experts_per_token × expert_feed_forward, that a token passes"
    else:
        feed_forward = choose("feed_forward", *_feed_forward(width, gpt2))
    return ModelShape(
        family=config.family,
        depth=config.depth,
        width=width,
        heads=heads,
        kv_heads=choose("kv_heads", *_kv_heads(heads, config.family)),
        feed_forward=feed_forward,
        context=config.context,
        vocab_size=vocab_size,
        sliding_window=choose("sliding_window", *_window(config)) if config.family in WINDOWED else None,
        rope_theta=None if gpt2 else choose("rope_theta", *_ROPE.get(config.family, (10_000.0, "as LLaMA"))),
        tie_embeddings=choose(
            "tie_embeddings", *_TIED.get(config.family, (gpt2 or width < 2048, "for GPT-2, and below width 2048"))
        ),
        norm_eps=choose("norm_eps", *_EPSILON.get(config.family, (1e-5, "as LLaMA 2"))),
        head_size=choose("head_size", head, sizes) if config.family in OWN_HEADS else None,
        global_every=choose("global_every", *_pattern(config)) if gemma or olmo else None,
        local_rope_theta=choose("local_rope_theta", 10_000.0, "as Gemma 3") if gemma else None,
        **mixture,
        rules=rules,
    )


def _refuse_unread(config: ModelConfig) -> None:
    for name in ("kv_heads", "rope_theta"):
        if config.family == "gpt2" and getattr(config, name) is not None:
            raise ShapeError(f"{name} does not apply to gpt2: remove it, or choose another family")
    for name, families, instead in _ONLY:
        if config.family not in families and getattr(config, name) is not None:
            *most, last = families
            named, other = (f"{', '.join(most)} and {last}", "one of them") if most else (last, "that family")
            raise ShapeError(f"{name} applies only to {named}: {instead}, or choose {other}")
    if config.family == "qwen3_moe" and config.feed_forward is not None:
        raise ShapeError("feed_forward does not apply to qwen3_moe: set expert_feed_forward, the size of an expert")
    if config.family in _TIED and config.tie_embeddings == (not _TIED[config.family][0]):
        raise ShapeError(
            f"tie_embeddings is {config.tie_embeddings}, which runtimes of {config.family} lack: remove it"
        )
    if (config.global_every or 0) > config.depth:
        raise ShapeError(
            f"global_every is {config.global_every} with {config.depth} layers, of which none would see the whole "
            "context: lower it, or choose mistral"
        )


def _window(config: ModelConfig) -> tuple[int, str]:
    half = max(1, config.context // 2)
    if config.family == "mistral":
        return config.context // 2, "context / 2, as Mistral 7B"
    if config.family == "olmo3":
        return min(half, 4_096), "context / 2, at most 4,096, as OLMo 3 7B"
    return max(1, min(config.context // 4, 1_024)), "context / 4, at most the 1,024 of Gemma 3 4B"


def _pattern(config: ModelConfig) -> tuple[int, str]:
    usual, name = (6, "Gemma 3") if config.family == "gemma3" else (4, "OLMo 3")
    return min(usual, config.depth), f"{usual} as {name}, at most the depth"


def _kv_heads(heads: int, family: Family) -> tuple[int, str]:
    if family == "mistral" and heads % 4 == 0:
        return heads // 4, "heads / 4, as Mistral 7B"
    if family in OWN_HEADS and heads % 2 == 0:
        return heads // 2, "heads / 2, as " + ("Gemma 3 4B to 27B" if family == "gemma3" else "Qwen3 0.6B and 1.7B")
    return heads, "heads: no sharing"


WINDOWED, OWN_HEADS = ("mistral", "gemma3", "olmo3"), ("qwen3", "qwen3_moe", "gemma3")
_ONLY = (  # a key, the families that have it, and what to do in others
    ("sliding_window", WINDOWED, "remove it"),
    ("head_size", OWN_HEADS, "set heads"),
    ("global_every", ("gemma3", "olmo3"), "remove it"),
    ("local_rope_theta", ("gemma3",), "set rope_theta"),
    *((name, ("qwen3_moe",), "remove it") for name in OF_EXPERTS),
)
_ROPE = {"gemma3": (1_000_000.0, "as Gemma 3"), "olmo3": (500_000.0, "as OLMo 3")}
_EPSILON = {
    "qwen3": (1e-6, "as Qwen3"),
    "qwen3_moe": (1e-6, "as Qwen3"),
    "gemma3": (1e-6, "as Gemma 3"),
    "olmo3": (1e-6, "as OLMo 3"),
}
_TIED = {"gemma3": (True, "as Gemma 3"), "olmo3": (False, "as OLMo 3")}


def _feed_forward(width: int, gpt2: bool) -> tuple[int, str]:
    if gpt2:
        return 4 * width, "4 × width, as GPT-2"
    # k-quants pack rows of 256, so multiples of it can be quantized without padding
    multiple = 64 if width < 256 else 256
    return -(-8 * width // (3 * multiple)) * multiple, f"8/3 × width, up to a multiple of {multiple} (LLaMA's SwiGLU)"


def _of_experts(name: str, width: int, chosen: Mapping[str, int]) -> tuple[int, str]:
    large = width >= 2048
    like = "as Qwen3-30B-A3B" if large else "as Mixtral"
    if name != "expert_feed_forward":
        return {"experts": (8, 128), "experts_per_token": (2, 8)}[name][large], like
    multiple = 64 if width < 512 else 256  # as in `_feed_forward`
    inner = -(-8 * width // (3 * chosen["experts_per_token"] * multiple)) * multiple
    return inner, f"8/3 × width / experts_per_token, up to a multiple of {multiple}"


def count_parameters(shape: Shape, *, active: bool = False) -> int:
    """The exact number of parameters, with a tied matrix counted once. `active`: of those that a token passes."""
    if isinstance(shape, ForeignShape):
        return sum(math.prod(size) for size in shape.sizes.values())
    width, biased = shape.width, shape.family == "gpt2"
    norm = width * (2 if biased else 1)
    head_norms = sum(shape.head_norms or ())
    biases = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.feed_forward + 2 * width if biased else 0
    positions = shape.context * width if biased else 0
    matrices = block_matrices(shape, active=active) + router_parameters(shape)
    embeddings = shape.vocab_size * width * (1 if shape.tie_embeddings else 2)
    return embeddings + positions + shape.depth * (matrices + biases + shape.block_norms * norm + head_norms) + norm


def block_matrices(shape: ModelShape, *, active: bool = False) -> int:
    """Parameters in the matrices of one block, without biases, norms and a router. `active`: of those that a token
    passes."""
    attention = shape.width * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    inner = shape.feed_forward if active else shape.all_feed_forward
    return attention + shape.width * inner * (3 if shape.gated else 2)


def router_parameters(shape: ModelShape) -> int:
    """Parameters of one block's router."""
    return shape.width * (shape.experts or 0)


def fits_flash(head_dim: int) -> bool:
    """Whether flash attention has a kernel for heads of this size, on a GPU and in 16 bits."""
    return head_dim % 8 == 0 and head_dim <= 256


def blocks_of_stage(depth: int, stages: int, stage: int) -> range:
    """The blocks of a pipeline stage: as even as possible, with fewer in the first, which has most micro-batches in
    flight."""
    return range(depth * stage // stages, depth * (stage + 1) // stages)


def flops_per_token(shape: Shape, *, training: bool = True, document: int | None = None) -> int:
    """Matrix FLOPs per token at full context. Training is forward + backward, three times the forward pass.

    6 × the parameters of matrix products that a token passes (including the output layer, not the embedding) + 12 ×
    width of all heads × tokens attended to in each layer: the context, a sliding window, or with isolated documents the
    mean length of a `document`. As in PaLM, the masked half of the scores, which kernels may skip, is counted. Of a
    foreign shape only 6 × all parameters.
    """
    if isinstance(shape, ForeignShape):
        return (6 if training else 2) * count_parameters(shape)
    block = block_matrices(shape, active=True) + router_parameters(shape)
    matrices = shape.depth * block + shape.vocab_size * shape.width
    forward = 2 * matrices + 4 * shape.heads_width * shape.seen(document)
    return 3 * forward if training else forward


def chinchilla_tokens(shape: Shape) -> int:
    """Compute-optimal training tokens: 20 per parameter (Hoffmann et al. 2022), of a mixture per active one."""
    return CHINCHILLA_TOKENS_PER_PARAMETER * count_parameters(shape, active=True)


def explain(shape: Shape) -> list[tuple[str, int | float | str | bool, str]]:
    """(name, value, rule) for each number of the shape, and for figures that follow from it."""
    if isinstance(shape, ForeignShape):
        return [
            *((name, getattr(shape, name), "the base's") for name in ("family", "depth", "context", "vocab_size")),
            ("parameters", count_parameters(shape), "exact, tied matrices once"),
            ("FLOPs per token", flops_per_token(shape), "6 × parameters"),
        ]
    rows = [(name, getattr(shape, name), shape.rules.get(name, "as given")) for name in _NUMBERS]
    rows = [row for row in rows if row[1] is not None]
    if shape.rope_scaling is not None:
        scaled = f"{shape.rope_scaling.rope_type} × {shape.rope_scaling.factor:g}"
        rows.append(("rope_scaling", scaled, shape.rules.get("rope_scaling", "as given")))
    if shape.head_size is None:
        rows.append(("head_dim", shape.head_dim, "width / heads"))
    rows.append(("parameters", count_parameters(shape), "exact, tied matrices once"))
    if shape.experts:
        rows.append(("active parameters", count_parameters(shape, active=True), "those that a token passes"))
    return [
        *rows,
        (
            "FLOPs per token",
            flops_per_token(shape),
            "6 × parameters of products + 12 × depth × heads × head size × tokens seen"
            + (", their mean over the layers" if shape.global_every else ""),
        ),
        (
            "compute-optimal tokens",
            chinchilla_tokens(shape),
            "20 per active parameter (Chinchilla)" if shape.experts else "20 per parameter (Chinchilla)",
        ),
    ]


_NUMBERS = (
    "family",
    "depth",
    "width",
    "heads",
    "kv_heads",
    "feed_forward",
    "context",
    "vocab_size",
    "sliding_window",
    "global_every",
    "rope_theta",
    "local_rope_theta",
    "tie_embeddings",
    "norm_eps",
    "head_size",
    *OF_EXPERTS,
)
