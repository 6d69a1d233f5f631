"""Held-out text in two parts: one to calibrate formats on, and one to prove them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import EmptyOutput
from storage.shards.token_stream import TokenStream

LONGEST = 1024  # tokens of a window: with large vocabularies the logits of more take gigabytes
SHORTEST = 16  # tokens of a whole text

Windows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class HeldOut:
    """Windows of ids, each of at most a context, which begin as every text of the model does. `proof` predicts about
    the requested number of tokens."""

    calibration: Windows
    proof: Windows


def held_out(stream: TokenStream, context: int, *, calibration: int, proof: int, begin: Sequence[int] = ()) -> HeldOut:
    """Windows spread over both halves of the text, each after `begin`: up to `calibration` tokens of the first half,
    and up to `proof` of the second. Raises EmptyOutput for next to no text."""
    length = min(context, LONGEST) - len(begin)
    half = stream.tokens // 2
    if half < SHORTEST:
        raise EmptyOutput(
            f"The held-out text has only {stream.tokens} tokens, too few to prove an export.",
            "Hold out more documents.",
        )
    parts = ((0, half, calibration), (half, stream.tokens, proof))
    return HeldOut(
        *(
            tuple((*begin, *window) for window in _spread(stream, start, end, length, tokens))
            for start, end, tokens in parts
        )
    )


def _spread(stream: TokenStream, start: int, end: int, length: int, tokens: int) -> Windows:
    """Windows without overlap, evenly spaced from start to end."""
    length = min(length, end - start, tokens + 1)
    count = min(-(-tokens // max(length - 1, 1)), (end - start) // length)
    step = (end - start) // count
    return tuple(tuple(stream.read(start + step * number, length).tolist()) for number in range(count))
