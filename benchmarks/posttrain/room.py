"""`python -m benchmarks.posttrain.room`: memory and time of adapters over models of 1B to 8B, by reckoning.

Nothing is run. Weights are float32, or with `quantize: nf4` four bits in the linear layers but the head. The adapter
has weights, gradients and Adam's two states in float32. Activations are those of one row, recomputed
(`runtime.posttrain.recompute: full`), and the logits of its tokens. Seconds are those of the products alone, at the
share of the peak that plans assume; unpacking four bits comes on top.
"""

from __future__ import annotations

import argparse

from models.activations import activations, numbers
from models.config import ModelConfig
from models.devices import DEVICES
from models.presets import ModelShape, block_matrices, count_parameters, derive

FLOAT32, NF4 = 4.0, 0.53  # bytes of a number; scales included
LOGITS = 3  # in float32: themselves, their softmax, their gradient
PASSES = 3  # forward, again to recompute, and backward through frozen weights


def known(
    depth: int, width: int, heads: int, kv_heads: int, feed_forward: int, vocab: int, *, tied: bool
) -> ModelShape:
    """A shape of LLaMA's family, with rows of 1,024 tokens."""
    given = {
        "depth": depth,
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads,
        "feed_forward": feed_forward,
        "context": 1024,
        "tie_embeddings": tied,
    }
    return derive(ModelConfig.model_validate(given), vocab)


MODELS = {
    "Llama 3.2 1B": known(16, 2048, 32, 8, 8192, 128_256, tied=True),
    "Llama 3.2 3B": known(28, 3072, 24, 8, 8192, 128_256, tied=True),
    "Mistral 7B": known(32, 4096, 32, 8, 14_336, 32_000, tied=False),
    "Llama 3.1 8B": known(32, 4096, 32, 8, 14_336, 128_256, tied=False),
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=16, help="of the adapter, on all linear layers (default 16)")
    parser.add_argument("--tokens", type=float, default=5e6, help="to train on (default 5e6: 10,000 rows of 500)")
    asked = parser.parse_args()
    print(f"rank {asked.rank}, {asked.tokens:,.0f} tokens")
    print("| model | LoRA, GB | QLoRA, GB | minutes, RTX 4090 | minutes, H100 |")
    print("|---|---|---|---|---|")
    for name, shape in MODELS.items():
        rooms = [room(shape, asked.rank, size) / 1e9 for size in (FLOAT32, NF4)]
        minutes = [seconds(shape, asked.tokens, device) / 60 for device in ("rtx4090", "h100")]
        print(f"| {name} | {rooms[0]:.0f} | {rooms[1]:.0f} | {minutes[0]:.0f} | {minutes[1]:.0f} |")


def room(shape: ModelShape, rank: int, size: float) -> float:
    """Bytes, with `size` bytes for each number of the frozen linear layers."""
    linear = shape.depth * block_matrices(shape)
    frozen = size * linear + FLOAT32 * (count_parameters(shape) - linear)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sides = 2 * (shape.width + queries) + 2 * (shape.width + keys) + 3 * (shape.width + shape.feed_forward)
    adapter = 4 * FLOAT32 * rank * sides * shape.depth
    form = numbers("mixed", autocast=True, cuda=True)
    kept = activations(shape, form, micro_batch=1, recompute="full", head=False).peak
    return frozen + adapter + kept + LOGITS * FLOAT32 * shape.context * shape.vocab_size


def seconds(shape: ModelShape, tokens: float, device: str) -> float:
    """On one of these."""
    sheet = DEVICES[device]
    assert sheet.half is not None
    return 2 * PASSES * count_parameters(shape) * tokens / (sheet.half * sheet.utilisation)


if __name__ == "__main__":
    main()
