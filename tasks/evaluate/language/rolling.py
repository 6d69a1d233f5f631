"""Perplexity of whole documents by rolling log-likelihood, as lm-evaluation-harness (Gao et al. 2021) defines it.

Every token of a document is predicted once. Windows are as long as the context and follow each other without overlap.
Only the last one is moved back, so that it is full too, and its overlap bears no loss. The first token follows the BOS,
or the EOS of a tokenizer without one. Perplexities are per word (split by whitespace) and per byte, over the sum of all
documents.

Windows of similar length share a forward pass, at most SLACK of which is padding. The harness takes them in order.

Shapes: B windows, T tokens.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from models.kernels.cross_entropy import IGNORED
from models.likelihood import MOST_LOGITS
from storage.errors import OutOfMemory
from tasks.evaluate.language.ratios import ratio
from tasks.evaluate.language.scores import Scorer
from tasks.training.recovery.out_of_memory import in_halves

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SLACK = 0.1  # maximum share of padding in a batch
MOST_TOKENS = {"cpu": 4096, "cuda": 1 << 17}  # of a batch. A CPU gains nothing from more, as its caches are small
TOGETHER = 1 << 20  # tokens whose windows are sorted together


class Window(NamedTuple):
    """The ids that the model reads, and the targets of its last positions."""

    document: int
    ids: Sequence[int]
    targets: Sequence[int]


class Document(NamedTuple):
    """The measurements of one document."""

    nats: float
    tokens: int
    words: int
    bytes: int


def rolling_windows(ids: Sequence[int], prefix: int, length: int, document: int = 0) -> list[Window]:
    """The windows of a document, of at most `length` ids each. Together their targets are `ids`."""
    windows = [Window(document, [prefix, *ids[: min(length, len(ids)) - 1]], ids[:length])] if ids else []
    for start in range(length, len(ids), length):
        end = min(start + length, len(ids))
        windows.append(Window(document, ids[end - length - 1 : end - 1], ids[start:end]))
    return windows


def prefix_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id before the first token of a document."""
    first = tokenizer.bos_token_id
    return int(tokenizer.eos_token_id if first is None else first)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Encode as the harness does: with the tokenizer's special tokens, unless the text begins with the prefix."""
    ids: list[int]
    if text.startswith(str(tokenizer.decode(prefix_of(tokenizer)))):
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = tokenizer.encode(text)
    return ids


def measure_texts(
    scorer: Scorer,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    *,
    context: int | None = None,
    done: Callable[[int], None] = lambda tokens: None,
) -> list[Document]:
    """Measure the log-likelihood of each text, in nats. `done` gets the number of tokens measured so far.

    Raises OutOfMemory if a single window is too large.
    """
    length, prefix = min(context or scorer.context, scorer.context), prefix_of(tokenizer)
    budget = _budget(scorer)
    nats: list[float] = []
    sizes: list[tuple[int, int, int]] = []
    waiting: list[Window] = []
    held = measured = 0

    def measure() -> None:
        nonlocal held, measured
        for batch in batches(waiting, budget):
            losses = in_halves(functools.partial(_nats, scorer), batch, _too_large)
            for window, loss in zip(batch, losses, strict=True):
                nats[window.document] += loss
            measured += sum(len(window.targets) for window in batch)
            done(measured)
        waiting.clear()
        held = 0

    for text in texts:
        ids = encode(tokenizer, text)
        waiting += rolling_windows(ids, prefix, length, len(nats))
        nats.append(0.0)
        sizes.append((len(ids), len(re.split(r"\s+", text)), len(text.encode())))
        held += len(ids)
        if held >= TOGETHER:
            measure()
    measure()
    return [Document(loss, *size) for loss, size in zip(nats, sizes, strict=True)]


def summary(documents: Sequence[Document]) -> dict[str, Any]:
    """{"documents", "tokens", "words", "bytes", "nats_per_token", "word_perplexity", "byte_perplexity",
    "bits_per_byte", "bits_per_byte_stderr"} over all documents together. A perplexity beyond a float's range is
    null."""
    nats = math.fsum(document.nats for document in documents)
    tokens, words, size = (
        sum(getattr(document, name) for document in documents) for name in ("tokens", "words", "bytes")
    )
    bits = ratio(
        np.array([d.nats / math.log(2) for d in documents]), np.array([d.bytes for d in documents], np.float64)
    )
    return {
        "documents": len(documents),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "nats_per_token": nats / max(1, tokens),
        "word_perplexity": _exp(nats / words),
        "byte_perplexity": _exp(nats / size),
        "bits_per_byte": nats / size / math.log(2),
        "bits_per_byte_stderr": bits.error if bits else None,
    }


def batches(windows: Iterable[Window], budget: int) -> Iterator[list[Window]]:
    """Batches of windows of similar length, the longest first, of at most `budget` tokens including padding."""
    batch: list[Window] = []
    padding = 0
    for window in sorted(windows, key=lambda window: len(window.ids), reverse=True):
        if batch:
            longest = len(batch[0].ids)
            more = padding + longest - len(window.ids)
            places = longest * (len(batch) + 1)
            if places > budget or more > SLACK * places:
                yield batch
                batch, more = [], 0
            padding = more
        batch.append(window)
    if batch:
        yield batch


def _budget(scorer: Scorer) -> int:
    """Maximum tokens of a batch, such that its logits, three times in float32, take a third of the free memory."""
    vocabulary, device = scorer.vocab_size, scorer.device
    most = MOST_LOGITS
    if device.type == "cuda":
        most = torch.cuda.mem_get_info(device)[0] // (3 * 3 * 4)
    return max(1, min(MOST_TOKENS.get(device.type, MOST_TOKENS["cpu"]), most // vocabulary))


def _too_large(window: Window) -> OutOfMemory:
    return OutOfMemory(
        f"A window of {len(window.ids):,} tokens doesn't fit into memory.", "Lower evaluate.language.context."
    )


def _nats(scorer: Scorer, batch: Sequence[Window]) -> list[float]:
    """The loss of each window. The first is the longest."""
    longest = len(batch[0].ids)
    ids = np.zeros((len(batch), longest), np.int64)  # padding after a window doesn't affect the tokens before it
    targets = np.full((len(batch), longest), IGNORED, np.int64)
    for row, window in enumerate(batch):
        end = len(window.ids)
        ids[row, :end] = window.ids
        targets[row, end - len(window.targets) : end] = window.targets
    _, scores = scorer(torch.from_numpy(ids).to(scorer.device), torch.from_numpy(targets).to(scorer.device))
    ends = np.cumsum([len(window.targets) for window in batch])
    return [float(part.sum(dtype=np.float64)) for part in islice(np.split(scores.nats, ends), len(batch))]


def _exp(value: float) -> float | None:
    return math.exp(value) if value < 700 else None
