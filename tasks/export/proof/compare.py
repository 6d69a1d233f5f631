"""Compares a format's answers with the checkpoint's: ids, distributions, perplexity, greedy text.

A greedy difference counts only where the checkpoint was sure: between two equally likely tokens, rounding decides. The
interval of the perplexity is for paired differences by block of text, because neighbouring tokens are not independent,
and by Student's t, because blocks may be few.

Shapes: T tokens of a window, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.runtimes.protocol import AllLogProbabilities, ModelRuntime
from storage.errors import ParityError
from storage.shards.arrays import Float32, Float64
from tasks.export.proof.probes import probe
from tasks.export.proof.reference import Reference, without_end

BLOCK = 64  # tokens that count as one observation
CONFIDENCE = 0.95
ROWS = 128  # of a distribution at a time, in float64


@dataclass(frozen=True)
class Parity:
    """How a format compares with the checkpoint. Divergences are in nats. The increase of the perplexity is relative,
    with its 95 % interval."""

    positions: int
    mean_divergence: float
    runtime_divergence: float | None  # from the checkpoint's program with the format's matrices. None if unreadable
    max_difference: float  # of a log-probability, among tokens that the checkpoint finds likelier than LIKELY
    same_top: float  # share of positions whose likeliest token is the same
    perplexity: float
    perplexity_increase: float
    increase_low: float
    increase_high: float
    same_greedy: int
    greedy_ties: int
    greedy_tokens: int  # total length of the checkpoint's continuations
    prompts: int
    texts: int
    chats: int
    probes: list[dict[str, Any]]


LIKELY = 1e-4


def compare(reference: Reference, candidate: ModelRuntime, weights: Iterable[tuple[str, Float32]] = ()) -> Parity:
    """Compare everything that can differ. `weights` are the format's matrices. Raises ParityError for a text or a chat
    with other token ids."""
    _same_ids(reference, candidate)
    answers = reference.distributions(candidate, "format")
    windows = [_window(reference, answer, number) for number, answer in enumerate(answers)]
    divergence, difference, tops, ours, theirs = (np.concatenate(part) for part in zip(*windows, strict=True))
    increase, low, high = _increase(ours, theirs)
    same, ties = _greedy(reference, candidate)
    return Parity(
        positions=len(ours),
        mean_divergence=float(divergence.mean()),
        runtime_divergence=_runtime_divergence(reference, answers, weights),
        max_difference=float(difference.max()),
        same_top=float(tops.mean()),
        perplexity=math.exp(-float(theirs.mean())),
        perplexity_increase=increase,
        increase_low=low,
        increase_high=high,
        same_greedy=same,
        greedy_ties=ties,
        greedy_tokens=sum(map(len, reference.continuations)),
        prompts=len(reference.prompts),
        texts=len(reference.texts),
        chats=len(reference.chats),
        probes=probe(candidate, reference.probed),
    )


def perplexity(reference: Reference) -> float:
    """The checkpoint's perplexity on the windows of the proof."""
    logs = [_of_targets(reference.answers[number], window) for number, window in enumerate(reference.windows)]
    return math.exp(-float(np.concatenate(logs).mean()))


def _same_ids(reference: Reference, candidate: ModelRuntime) -> None:
    remedy = "The release's tokenizer or template differs from the checkpoint's. This is a defect: report it."
    for text, ids in reference.texts:
        if candidate.tokenize(text) != ids:
            raise ParityError(f"The runtime tokenizes {text[:60]!r} differently.", remedy)
    for ids, text in reference.vocabulary:
        if _characters(candidate.decode(ids)) != _characters(text):
            raise ParityError(f"The runtime decodes some of the tokens {ids[0]} to {ids[-1]} differently.", remedy)
    for chat, ids in reference.chats:
        if not np.array_equal(candidate.chat_log_probabilities(chat), candidate.log_probabilities(ids)):
            raise ParityError(f"The runtime renders the chat {chat[-1]['content'][:60]!r} differently.", remedy)


def _characters(text: str) -> str:
    """The whole characters of a text, without leading spaces. Programs differ in how many signs they write for part of
    a character, and in whether a text's first space belongs to the tokenizer."""
    return text.replace("\ufffd", "").lstrip(" ")


def _runtime_divergence(
    reference: Reference, answers: Sequence[AllLogProbabilities], weights: Iterable[tuple[str, Float32]]
) -> float | None:
    """The divergence of the answers from those of the checkpoint's own program with the format's matrices. It excludes
    the cost of rounding, so that a wrong rope base shows in a format of few bits as well."""
    with reference.holding(weights) as held:
        if not held:
            return None
        windows = zip(reference.windows, answers, strict=True)
        parts = [_divergence(reference.runtime.all_log_probabilities(window)[:-1], q[:-1]) for window, q in windows]
    return float(np.concatenate(parts).mean())


def _divergence(p_TV: AllLogProbabilities, q_TV: AllLogProbabilities) -> Float64:
    """(T,) KL(p ‖ q) in nats."""
    parts = []
    for start in range(0, len(p_TV), ROWS):
        p, q = (np.asarray(log[start : start + ROWS], np.float64) for log in (p_TV, q_TV))
        with np.errstate(invalid="ignore"):
            parts.append(np.where(np.exp(p) > 0, np.exp(p) * (p - q), 0.0).sum(-1))
    return np.concatenate(parts)


def _window(reference: Reference, q_TV: AllLogProbabilities, number: int) -> tuple[Float64, ...]:
    """For each position but the last: divergence, largest difference, whether the likeliest token is the same, and the
    checkpoint's and the format's log-probability of the next token."""
    window = reference.windows[number]
    p_TV = reference.answers[number]
    if p_TV.shape != q_TV.shape:
        raise ParityError(
            f"The runtime has {q_TV.shape[-1]:,} tokens, the checkpoint {p_TV.shape[-1]:,}.", "Report it."
        )
    difference, tops = [], []
    for start in range(0, len(window) - 1, ROWS):
        rows = slice(start, min(start + ROWS, len(window) - 1))
        p, q = p_TV[rows].astype(np.float64), q_TV[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.where(np.exp(p) > LIKELY, np.abs(p - q), 0.0)
        difference.append(apart.max(-1))
        tops.append((p.argmax(-1) == q.argmax(-1)).astype(np.float64))
    ours, theirs = _of_targets(p_TV, window), _of_targets(q_TV, window)
    divergence = _divergence(p_TV[: len(window) - 1], q_TV[: len(window) - 1])
    return divergence, np.concatenate(difference), np.concatenate(tops), ours, theirs


def _of_targets(log_TV: AllLogProbabilities, window: tuple[int, ...]) -> Float64:
    targets = np.array(window[1:])
    return np.asarray(log_TV[np.arange(len(targets)), targets], np.float64)


def _increase(ours: Float64, theirs: Float64) -> tuple[float, float, float]:
    """The relative increase of the perplexity, and its 95 % interval."""
    from scipy.stats import t

    differences = ours - theirs
    blocks = np.array([part.mean() for part in np.array_split(differences, max(len(differences) // BLOCK, 2))])
    error = float(blocks.std(ddof=1)) / math.sqrt(len(blocks))
    mean, margin = float(differences.mean()), float(t.ppf((1 + CONFIDENCE) / 2, len(blocks) - 1)) * error
    low, high = mean - margin, mean + margin
    return _relative(mean), _relative(low), _relative(high)


def _relative(nats: float) -> float:
    return math.expm1(nats) if nats < 700 else math.inf


def _greedy(reference: Reference, candidate: ModelRuntime) -> tuple[int, int]:
    """The number of prompts with the same continuation, including those that diverge at a tie, and of the latter."""
    same = ties = 0
    end = next(iter(reference.ends))
    for ids, expected in zip(reference.prompts, reference.continuations, strict=True):
        actual = without_end(candidate.greedy(ids, reference.config.greedy_tokens), reference.ends)
        if actual == expected:
            same += 1
            continue
        pairs = enumerate(zip(expected, actual, strict=False))
        differs = next((place for place, (one, other) in pairs if one != other), min(len(expected), len(actual)))
        ours, theirs = (row[differs] if differs < len(row) else end for row in (expected, actual))
        logs = reference.runtime.log_probabilities([*ids, *expected[:differs]])
        if logs[ours] - logs[theirs] <= reference.config.tie:
            same, ties = same + 1, ties + 1
    return same, ties
