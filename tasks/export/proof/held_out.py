"""Held-out text in two parts: one that formats are calibrated on, and another that they are proved on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import EmptyOutput
from storage.shards.token_stream import TokenStream

LONGEST = 1024  # tokens of a window: the logits of more take gigabytes where vocabularies are large
SHORTEST = 16  # of a whole text

Windows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class HeldOut:
    """Windows of ids, of at most a context each, which begin as every text of the model does. `proof` predicts about as
    many tokens as were asked for."""

    calibration: Windows
    proof: Windows


def held_out(stream: TokenStream, context: int, *, calibration: int, proof: int, begin: Sequence[int] = ()) -> HeldOut:
    """Spread over its halves, as many tokens as there are at the most, `begin` before each window. Raises EmptyOutput
    for next to no text."""
    length = min(context, LONGEST) - len(begin)
    half = stream.tokens // 2
    if half < SHORTEST:
        raise EmptyOutput(
            f"The held-out text has {stream.tokens} tokens, too few to prove an export.", "Hold out more documents."
        )
    parts = ((0, half, calibration), (half, stream.tokens, proof))
    return HeldOut(
        *(
            tuple((*begin, *window) for window in _spread(stream, start, end, length, tokens))
            for start, end, tokens in parts
        )
    )


def _spread(stream: TokenStream, start: int, end: int, length: int, tokens: int) -> Windows:
    """Windows that don't overlap, from start to end at even distances."""
    length = min(length, end - start, tokens + 1)
    count = min(-(-tokens // max(length - 1, 1)), (end - start) // length)
    step = (end - start) // count
    return tuple(tuple(stream.read(start + step * number, length).tolist()) for number in range(count))
