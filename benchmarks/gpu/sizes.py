"""The models of the GPU benchmark: GPT-2's sizes in LLaMA's shape, and a small one that shows on a CPU that all runs.

Steps are meant to take a second or less on an H200, where they are steady: few are enough. Micro-batches are such that
the peers, which keep the logits of all tokens, have room for them too.
"""

from __future__ import annotations

from benchmarks.pretrain.sizes import Size

VOCAB, TINY_VOCAB = 50_304, 2_048  # GPT-2's, padded as nanoGPT does: a multiple of 128
TOKENS, TINY_TOKENS = 20_000_000, 200_000  # of the training shards

SMALL, LONG, MEDIUM, LARGE = "124M × 1,024", "124M × 4,096", "350M × 1,024", "1.3B × 1,024"
SIZES = {
    SMALL: Size(12, 768, 12, 12, 2048, VOCAB, 1024, 128, 64, 15),
    LONG: Size(12, 768, 12, 12, 2048, VOCAB, 4096, 32, 16, 15),
    MEDIUM: Size(24, 1024, 16, 16, 2816, VOCAB, 1024, 128, 32, 10),
    LARGE: Size(24, 2048, 16, 16, 5632, VOCAB, 1024, 64, 16, 5),
}
TINY = {"0.2M × 64": Size(2, 64, 4, 2, 192, TINY_VOCAB, 64, 8, 4, 10)}


def sizes(*, tiny: bool) -> dict[str, Size]:
    """By name."""
    return dict(TINY if tiny else SIZES)
