"""A first toxicity score: `alt-profanity-check`, a linear model over words that comes with its package.

It finds insults (AUC 0.84 on forum posts) and misses implicit hate (0.47): a weak signal, kept as the worst paragraph's
score and the share of bad paragraphs, so that one strong word in a long speech removes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

BATCH = 4096  # paragraphs scored at once
BAD = 0.97  # from which a paragraph counts in the share


def scores(texts: Sequence[str], piece: int) -> list[tuple[float, float]]:
    """(score of the worst paragraph, share of paragraphs at or above `BAD`) of each text."""
    from profanity_check import predict_prob

    pieces = [list(paragraphs(text, piece)) for text in texts]
    flat = [part for parts in pieces for part in parts]
    values = np.concatenate([predict_prob(flat[i : i + BATCH]) for i in range(0, len(flat), BATCH)])
    ends = np.cumsum([len(parts) for parts in pieces])
    split = np.split(values, ends[:-1])
    return [(float(part.max()), float((part >= BAD).mean())) for part in split]


def paragraphs(text: str, piece: int) -> Iterable[str]:
    """The text's paragraphs, long ones cut; at least one."""
    parts = [part for part in text.split("\n\n") if part.strip()] or [text]
    return (part[at : at + piece] for part in parts for at in range(0, max(1, len(part)), piece))
