"""Windows of the token stream, in an order that only the seed decides.

The shards of a split, one after the other, are one long stream; window i is its tokens i·T to i·T + T, and the token
after it as the last target. Each epoch visits each window once, in the order of a keyed permutation that is computed,
not stored: sample s of the endless run is window π_e(s mod n) of epoch e = s div n. So the loader's whole state is the
number of samples served, and neither the number of processes nor the micro-batch can change what a step sees.

Shapes: B samples, T tokens of context.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from storage.errors import EmptyOutput
from storage.token_stream import TokenStream

ROUNDS = 6  # Luby & Rackoff 1988: four make a Feistel network a pseudo-random permutation; two to spare

U64 = npt.NDArray[np.uint64]


class WindowLoader:
    """Shuffled windows of `context` tokens; see the module's docstring. Raises EmptyOutput when there is not one."""

    def __init__(self, stream: TokenStream, *, context: int, seed: int) -> None:
        self.stream = stream
        self.context = context
        self.seed = seed
        self.windows = (stream.tokens - 1) // context
        if self.windows < 1:
            raise EmptyOutput(
                f"The training split has {stream.tokens:,} tokens: less than one window of {context:,} and its target.",
                "Give more documents, or a smaller model.context.",
            )

    def batch(self, first: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Inputs and targets, each (B, T), of samples `first` to `first + count` of the run."""
        samples = np.arange(first, first + count, dtype=np.uint64)
        windows = np.empty(count, np.int64)
        for epoch in range(first // self.windows, (first + count - 1) // self.windows + 1):
            inside = samples // np.uint64(self.windows) == epoch
            position = samples[inside] - np.uint64(epoch * self.windows)
            windows[inside] = permute(position, self.windows, f"{self.seed} {epoch}")
        ids = np.stack([self.stream.read(int(window) * self.context, self.context + 1) for window in windows])
        return ids[:, :-1], ids[:, 1:]


def permute(values: U64, size: int, key: str) -> U64:
    """A keyed permutation of 0 … size − 1, applied to each value: a Feistel network that walks on while outside.

    (Black & Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking.) Memory does not grow with `size`.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.frombuffer(hashlib.sha512(key.encode()).digest()[: 8 * ROUNDS], "<u8")
    result = values.copy()
    walking = np.ones(len(values), bool)
    while walking.any():
        left, right = result[walking] >> half, result[walking] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        result[walking] = left << half | right
        walking = result >= np.uint64(size)
    return result


def _mix(values: U64) -> U64:
    """The finalizer of SplitMix64 (Steele et al. 2014): every input bit reaches every output bit."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
