"""Mixtures to try: a swarm around natural proportions, mild ones and sharp ones.

Shares come from Dirichlet distributions around natural proportions, as in RegMix (Liu et al. 2024, section 3.1) and
olmix (Chen et al. 2026): mild draws tell how the loss falls near where one is, sharp ones let each source be seen from
none to most of the text. Every member depends on its number and on those before it, so a swarm of 20 begins with the
swarm of 10, and a source that is added later leaves the old members as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

RUNS_PER_SOURCE = 8  # olmix, section 4: runs in proportion to the sources suffice
MILD, SHARP = 8.0, 0.5  # pseudo-counts of each source, on average
LEAST_COUNT = 0.05  # of a source, below which Dirichlet draws underflow
FLATTER = 0.5  # power of natural proportions that sharp draws are around, as in RegMix, so that small sources are seen
LEAST_SHARE = 1 / 256  # a smaller one is none: over a run of some hundred sequences it would not be exact
LEAST_SLOT = 1 / 4096  # less than one of the slots that the loader divides among sources
TRIES = 100  # for a draw within the limits
CANDIDATES = 8  # of which the one farthest from all others is taken


def default_runs(sources: int) -> int:
    """The number of runs that `sources` sources need, with that of natural proportions."""
    return RUNS_PER_SOURCE * sources


def drawn(natural: Shares, most: Shares, count: int, *, old: Sequence[Shares] = ()) -> list[Shares]:
    """`count` mixtures of shape (sources,): natural proportions first, then the `old` ones, then others.

    No source has more than its share in `most`. The others have some of each source that no old one has.
    """
    members = [natural, *old][:count]
    unseen = np.sum(old, axis=0) == 0 if len(old) else np.zeros(len(natural), bool)
    while len(members) < count:
        rng = np.random.default_rng(len(members))
        candidates = [_draw(natural, most, unseen, rng, sharp=len(members) % 2 == 0) for _ in range(CANDIDATES)]
        members.append(max(candidates, key=lambda one: _nearest(one, members)))
    return members


def _draw(natural: Shares, most: Shares, unseen: Bool, rng: np.random.Generator, *, sharp: bool) -> Shares:
    centre = natural**FLATTER if sharp else natural
    counts = (SHARP if sharp else MILD) * len(natural) * centre / centre.sum()
    for _ in range(TRIES):
        shares = rounded(rng.dirichlet(np.maximum(counts, LEAST_COUNT)))
        if np.all(shares <= most) and np.all(shares[unseen] > 0):
            return shares
    return towards(natural, shares, most)


def rounded(shares: Shares) -> Shares:
    """Shares without those that are next to nothing, to a multiple of 1/10,000, with the sum 1."""
    kept = np.where(shares < LEAST_SHARE, 0.0, shares)
    units = np.floor(kept / kept.sum() * 10_000)
    units[np.argmax(units)] += 10_000 - units.sum()
    whole: Shares = units / 10_000
    return whole


def towards(natural: Shares, shares: Shares, most: Shares) -> Shares:
    """The mixture on the line from natural proportions to `shares` that goes as far as the limits allow."""
    away = shares - natural
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.where(away > 0, (most - natural) / away, np.inf)
    return natural + min(1.0, max(0.0, float(lengths.min()))) * away


def _nearest(one: Shares, members: Sequence[Shares]) -> float:
    """The distance to the nearest member (Hellinger)."""
    return float(np.min(np.linalg.norm(np.sqrt(one) - np.sqrt(np.array(members)), axis=1)))


def largest_shares(tokens: Shares, read: int, epochs: Shares) -> Shares:
    """The largest share of each source in a run that reads `read` tokens, and no source more than `epochs` times."""
    return np.minimum(1.0, epochs * tokens / read)


def even(most: Shares) -> Shares:
    """Shares as even as the limits allow: UniMax (Chung et al. 2023), the heuristic that needs only token counts."""
    shares, open_, left = np.zeros_like(most), np.ones(len(most), bool), 1.0
    while open_.any() and left > 1e-12:
        level = left / open_.sum()
        full = open_ & (most <= level)
        if not full.any():
            shares[open_] = level
            break
        shares[full] = most[full]
        left, open_ = 1.0 - float(shares.sum()), open_ & ~full
    return shares
