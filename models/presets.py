"""From one size dial to a whole shape, and the arithmetic of it: parameters, FLOPs, memory, tokens.

Every derived number has its rule beside it (`explain`), so that nobody has to trust a preset. No torch here: a plan
must be instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config import ModelConfig

WIDTH_PER_LAYER = 64  # the aspect ratio of nanochat's `depth`
CHINCHILLA_TOKENS = 20  # per parameter: Hoffmann et al. 2022, table 3


@dataclass(frozen=True)
class ModelShape:
    """Every number of a model. Sizes in elements, `context` and `sliding_window` in tokens."""

    family: Literal["gpt2", "llama", "mistral"]
    vocab_size: int
    depth: int
    context: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    sliding_window: int | None
    rope_theta: float
    tie_embeddings: bool
    norm_eps: float

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Trainable parameters, tied embeddings once."""
        if self.family == "gpt2":
            attention = 4 * self.width * self.width + 4 * self.width
            feed_forward = 2 * self.width * self.feed_forward + self.feed_forward + self.width
            norms = 4 * self.width
            outside = self.context * self.width + 2 * self.width
        else:
            attention = 2 * self.width * self.width + 2 * self.width * self.kv_heads * self.head_width
            feed_forward = 3 * self.width * self.feed_forward
            norms = 2 * self.width
            outside = self.width
        embeddings = self.vocab_size * self.width * (1 if self.tie_embeddings else 2)
        return self.depth * (attention + feed_forward + norms) + outside + embeddings

    @property
    def flops_per_token(self) -> int:
        """Training FLOPs a token, forward and backward: 6 a matrix parameter + 12·L·T·C of attention.

        Kaplan et al. 2020, eq. 2.2 with the attention term of Chowdhery et al. 2022 (PaLM), appendix B.
        """
        embeddings = self.vocab_size * self.width
        looked_up = self.context * self.width if self.family == "gpt2" else 0
        matrices = self.parameters - looked_up - (0 if self.tie_embeddings else embeddings)
        return 6 * matrices + 12 * self.depth * self.context * self.width

    @property
    def optimal_tokens(self) -> int:
        """Tokens at which compute is best spent on this size (Chinchilla)."""
        return CHINCHILLA_TOKENS * self.parameters

    def training_memory(self, *, zero_stage: int = 0, ranks: int = 1, micro_batch: int = 1, item_bytes: int = 4) -> int:
        """Bytes a rank needs: weights, gradients, float32 Adam states (Rajbhandari et al. 2020) and activations.

        Activations are a rough 34·T·C a layer (Korthikanti et al. 2022, without recomputation) in `item_bytes` halves.
        """
        mixed = item_bytes == 2
        weights = self.parameters * item_bytes / (ranks if zero_stage >= 3 else 1)
        gradients = self.parameters * item_bytes / (ranks if zero_stage >= 2 else 1)
        states = self.parameters * (12 if mixed else 8) / (ranks if zero_stage >= 1 else 1)
        activations = micro_batch * self.context * self.width * self.depth * 17 * item_bytes
        return int(weights + gradients + states + activations)


def derive(config: ModelConfig, vocab_size: int) -> ModelShape:
    """The whole shape of a config. Raises ValueError, naming the two numbers, for a shape that can't be built."""
    width = config.width or config.depth * WIDTH_PER_LAYER
    heads = config.heads or max(1, width // (64 if width >= 256 else 32))
    kv_heads = config.kv_heads or heads
    multiple = 256 if width >= 1024 else 64
    swiglu = -(-(8 * width // 3) // multiple) * multiple
    feed_forward = config.feed_forward or (4 * width if config.family == "gpt2" else swiglu)
    window = config.sliding_window or (min(4096, config.context) if config.family == "mistral" else None)
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")
    if heads % kv_heads:
        raise ValueError(f"heads {heads} is not a multiple of kv_heads {kv_heads}")
    if config.family == "gpt2" and kv_heads != heads:
        raise ValueError("gpt2 has no grouped-query attention: leave kv_heads out")
    if config.family != "mistral" and config.sliding_window:
        raise ValueError(f"{config.family} has no sliding window: leave sliding_window out, or take mistral")
    return ModelShape(
        family=config.family,
        vocab_size=vocab_size,
        depth=config.depth,
        context=config.context,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        feed_forward=feed_forward,
        sliding_window=window,
        rope_theta=config.rope_theta,
        tie_embeddings=config.tie_embeddings,
        norm_eps=config.norm_eps,
    )


def explain(shape: ModelShape) -> list[tuple[str, int | float | str, str]]:
    """Name, value and rule of everything that a shape says."""
    gated = shape.family != "gpt2"
    rows: list[tuple[str, int | float | str, str]] = [
        ("depth", shape.depth, "the size dial"),
        ("width", shape.width, f"{WIDTH_PER_LAYER} a layer, unless given"),
        ("heads", shape.heads, "width / 64 (32 below width 256), unless given"),
        ("kv_heads", shape.kv_heads, "as many as heads, unless given (grouped-query attention)"),
        ("feed_forward", shape.feed_forward, f"{'8/3' if gated else '4'} × width, unless given"),
        ("context", shape.context, "given"),
        ("vocab_size", shape.vocab_size, "the tokenizer's"),
        ("parameters", shape.parameters, "counted, tied embeddings once"),
        ("FLOPs a token", shape.flops_per_token, "6 a matrix parameter + 12 × depth × context × width"),
        ("optimal tokens", shape.optimal_tokens, f"{CHINCHILLA_TOKENS} a parameter (Hoffmann et al. 2022)"),
    ]
    if shape.sliding_window:
        rows.insert(6, ("sliding_window", shape.sliding_window, "given, or 4096 at most"))
    return rows
