"""Bits per byte of the held-out split, and every token's contribution to it.

The number itself equals that of tasks/training/bits_per_byte.py: the same windows, batches and sums. This module adds
where it comes from: which sources, which lengths of document, which positions in the window.

Shapes: N measured tokens, D documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from models.tokenizer import beginning
from storage.shards.arrays import Int64
from storage.shards.token_stream import TokenStream
from tasks.evaluate.language.documents import Documents, read_documents
from tasks.evaluate.language.ratios import LENGTHS, Float, Ratio, length_label, position_label, positions, ratio
from tasks.evaluate.language.scores import Recorder, Scorer, Scores
from tasks.training.bits_per_byte import Likelihood, likelihood, spread_windows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LONGEST_WINDOW = 4096  # tokens, as in `evaluate`, since some contexts are longer than the text


@dataclass(frozen=True)
class HeldOut:
    """The scores of N tokens of a stream, with their document and their position in the window, from 1."""

    likelihood: Likelihood
    documents: Documents
    scores: Scores
    document: Int64
    position: Int64
    bytes: Float

    def per_document(self, values: Float, chosen: Any = slice(None)) -> Float:
        """(D) sums of a value per token, over the chosen tokens."""
        sums: Float = np.bincount(self.document[chosen], values[chosen], len(self.documents.source)).astype(np.float64)
        return sums

    @cached_property
    def nats(self) -> Float:
        """(D) the nats of each document's measured tokens."""
        return self.per_document(self.scores.nats.astype(np.float64))

    @cached_property
    def text_bytes(self) -> Float:
        """(D) the bytes of text of each document's measured tokens."""
        return self.per_document(self.bytes)

    def bits_per_byte(self, chosen: Any = slice(None)) -> Ratio | None:
        """Bits per byte of chosen documents."""
        return ratio(self.nats[chosen] / math.log(2), self.text_bytes[chosen])


def measure_held_out(
    scorer: Scorer,
    tokenizer: PreTrainedTokenizerFast,
    shards: Sequence[Path],
    *,
    digest: str,
    max_tokens: int | None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> HeldOut:
    """Measure token shards, or `max_tokens` spread over them. `done` gets the number of measured windows and of all.

    Raises TokenizerMismatch for shards of another tokenizer.
    """
    begin = beginning(tokenizer)
    stream = TokenStream(shards, tokenizer_digest=digest)
    context = min(scorer.context - len(begin), LONGEST_WINDOW, stream.tokens - 1)
    windows = spread_windows(stream, context, max_tokens)
    recorder, passed = Recorder(scorer, begin), 0

    def loss(ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        nonlocal passed
        mean = recorder(ids_BT, targets_BT)
        passed += len(ids_BT)
        done(passed, len(windows))
        return mean

    measured = likelihood(loss, stream, context=context, max_tokens=max_tokens)
    lengths = np.minimum(context, stream.tokens - 1 - np.array(windows) * context)
    position = np.concatenate([np.arange(1, length + 1) for length in lengths.tolist()])
    places = np.repeat(np.array(windows) * context, lengths) + position
    documents = read_documents(shards, tokenizer, digest)
    sizes = documents.token_bytes[places].astype(np.float64)
    return HeldOut(measured, documents, recorder.scores(), documents.of(places), position, sizes)


def by_source(held_out: HeldOut) -> list[dict[str, Any]]:
    """Bits per byte of each source."""
    documents = held_out.documents
    return [_row(name, held_out, documents.source == number) for number, name in enumerate(documents.names)]


def by_length(held_out: HeldOut) -> list[dict[str, Any]]:
    """Bits per byte by length of document, which is in bytes of the whole document even if only a part was measured."""
    bucket = np.digitize(held_out.documents.bytes, LENGTHS)
    return [_row(length_label(number), held_out, bucket == number) for number in range(len(LENGTHS) + 1)]


def by_position(held_out: HeldOut) -> list[dict[str, Any]]:
    """The mean loss in nats per token by the number of tokens that the model sees in the window, with standard errors
    over documents. A model that uses its context has less loss where it sees more."""
    nats, ones = held_out.scores.nats.astype(np.float64), np.ones(len(held_out.position))
    last = int(held_out.position.max())
    bucket = np.ceil(np.log2(held_out.position)).astype(np.int64)  # powers of two are exact
    rows = []
    for number in range(int(bucket.max()) + 1):
        chosen = bucket == number
        mean = ratio(held_out.per_document(nats, chosen), held_out.per_document(ones, chosen))
        if mean is not None:
            first, end = positions(number, last)
            rows.append(
                {
                    "position": position_label(number, last),
                    "from": first,
                    "to": end,
                    "tokens": int(chosen.sum()),
                    "nats_per_token": mean.value,
                    "nats_per_token_stderr": mean.error,
                }
            )
    return rows


def _row(name: str, held_out: HeldOut, chosen: Any) -> dict[str, Any]:
    bits = held_out.bits_per_byte(chosen)
    return {
        "name": name,
        "documents": bits.documents if bits else 0,
        "bytes": round(float(held_out.text_bytes[chosen].sum())),
        "bits_per_byte": bits.value if bits else None,
        "bits_per_byte_stderr": bits.error if bits else None,
    }
