"""Mixes sources in set proportions: which source serves a sample, and which of its own samples that is.

The run is divided into blocks of 4,096 samples. In each block every source has an exact quota of slots, placed by a
keyed permutation. So the share of a source is exact over each block, and how often a source was served before a sample
follows from the sample's number, without state. That count gives the source's window as in windows.py, so that each of
its windows is served once per epoch, whatever the weights, even when they change.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import ConfigError
from storage.shards.arrays import Int64
from storage.shards.token_stream import Ranges
from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.loader.permutation import permute
from tasks.pretrain.loader.windows import ShuffledWindows, Windows

BLOCK = 4096  # samples, so shares of sources are multiples of 1/4096


@dataclass(frozen=True)
class Phase:
    """The weights of the sources from sample `first` of the run on. Sources without a weight are not served."""

    first: int
    weights: Mapping[str, float]


class MixtureOrder:
    """The source of each sample, for consecutive phases from sample 0 on."""

    def __init__(self, phases: Sequence[Phase], sources: Sequence[str], *, seed: int) -> None:
        self.seed = seed
        self._firsts = [phase.first for phase in phases]
        self._quotas = [quotas(phase.weights, sources) for phase in phases]
        self._served = [np.zeros(len(sources), np.int64)]  # by source, before each phase
        for number, end in enumerate(self._firsts[1:]):
            self._served.append(self._before(number, end))

    def served(self, samples: int) -> Int64:
        """The number that each source serves of the first `samples` of the run."""
        return self._before(bisect_right(self._firsts, samples) - 1, samples)

    def places(self, first: int, count: int) -> tuple[Int64, Int64]:
        """For samples `first` to `first + count`: the source, and the sample's number within that source."""
        sources, numbers = np.empty(count, np.int64), np.empty(count, np.int64)
        done = 0
        while done < count:
            sample = first + done
            phase = bisect_right(self._firsts, sample) - 1
            block, slot = divmod(sample - self._firsts[phase], BLOCK)
            next_phase = self._firsts[phase + 1] if phase + 1 < len(self._firsts) else first + count
            here = min(BLOCK - slot, count - done, next_phase - sample)  # samples within one block and one phase
            chosen = self._slots(phase, block)[slot : slot + here]
            among = np.empty(here, np.int64)
            for source in np.unique(chosen):
                mine = chosen == source
                among[mine] = np.arange(mine.sum())
            sources[done : done + here] = chosen
            numbers[done : done + here] = self._before(phase, sample)[chosen] + among
            done += here
        return sources, numbers

    def samples_of(self, source: int, numbers: Int64) -> Int64:
        """The samples of the run that are these samples of a source. The inverse of `places`."""
        phases = np.searchsorted([served[source] for served in self._served], numbers, side="right") - 1
        samples = np.empty(len(numbers), np.int64)
        for place, (number, phase) in enumerate(zip(numbers.tolist(), phases.tolist(), strict=True)):
            block, among = divmod(number - int(self._served[phase][source]), self._quotas[phase][source])
            slot = np.flatnonzero(self._slots(phase, block) == source)[among]
            samples[place] = self._firsts[phase] + block * BLOCK + slot
        return samples

    def _before(self, phase: int, sample: int) -> Int64:
        """Samples of each source before `sample`, which is in `phase` or at its end."""
        block, slot = divmod(sample - self._firsts[phase], BLOCK)
        begun = np.bincount(self._slots(phase, block)[:slot], minlength=len(self._quotas[phase]))
        return self._served[phase] + block * np.array(self._quotas[phase], np.int64) + begun

    def _slots(self, phase: int, block: int) -> Int64:
        return _slots(f"{self.seed} mixture {phase} {block}", self._quotas[phase])


def quotas(weights: Mapping[str, float], sources: Sequence[str]) -> tuple[int, ...]:
    """The slots of a block for each source, in proportion to its weight, by the largest-remainder method.

    Raises ConfigError for a weight too small for one slot.
    """
    exact = np.array([weights.get(source, 0.0) for source in sources]) / math.fsum(weights.values()) * BLOCK
    whole = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[: BLOCK - int(whole.sum())]] += 1
    starved = [source for source, slots in zip(sources, whole, strict=True) if source in weights and not slots]
    if starved:
        raise ConfigError(
            f"pretrain.mixture gives {', '.join(starved)} less than 1/{BLOCK:,} of the samples.",
            "Give it more, or leave it out.",
        )
    return tuple(int(slots) for slots in whole)


@functools.lru_cache(maxsize=4)
def _slots(key: str, counts: tuple[int, ...]) -> Int64:
    """The source of each slot of a block: (BLOCK,). Cached, since a batch seldom spans blocks."""
    order = permute(np.arange(BLOCK, dtype=np.uint64), BLOCK, key)
    return np.searchsorted(np.cumsum(counts), order.astype(np.int64), side="right")


class MixtureLoader:
    """Windows of the sources by weight, each window from one source. Sources that never have a weight are left out.

    Raises ConfigError for a weight of an unknown source or one that is too small, and EmptyOutput for a source without
    a whole window.
    """

    def __init__(self, windows: Mapping[str, Windows], phases: Sequence[Phase], *, seed: int) -> None:
        weighed = {source for phase in phases for source in phase.weights}
        unknown = sorted(weighed - windows.keys())
        if unknown:
            raise ConfigError(
                f"pretrain.mixture names {', '.join(unknown)}, but the token shards know {', '.join(windows)}.",
                "Name the sources as the table of `tokenize` does.",
            )
        self._left_out = {source: one.count for source, one in windows.items() if source not in weighed}
        self.sources = [source for source in windows if source in weighed]
        self.taken = {source: windows[source] for source in self.sources}
        self.context = self.taken[self.sources[0]].context
        self.order = MixtureOrder(phases, self.sources, seed=seed)
        self._shuffled = [
            ShuffledWindows(one, key=f"{seed} {source}", name=f"The source {source}")
            for source, one in self.taken.items()
        ]
        self.windows = sum(one.count for one in self._shuffled)

    def serving(self, ranges: Mapping[str, Ranges], samples: int) -> Iterator[tuple[int, Int64]]:
        """For each source and its epochs among the first `samples` of the run: the epoch, and the samples of the run
        with a token of these ranges of the source's stream."""
        served = self.order.served(samples)
        for number, (source, windows) in enumerate(self.taken.items()):
            if source in ranges:
                found = windows.holding(ranges[source])
                for epoch, numbers in self._shuffled[number].serving(found, int(served[number])):
                    yield epoch, self.order.samples_of(number, numbers)

    def batch(self, first: int, count: int) -> Batch:
        """Samples `first` to `first + count` of the run."""
        rows = np.empty((count, self.context + 1), np.int64)
        sources, numbers = self.order.places(first, count)
        for source in np.unique(sources):
            shuffled = self._shuffled[source]
            mine = np.flatnonzero(sources == source)
            windows = shuffled.order(numbers[mine].astype(np.uint64))
            for row, window in zip(mine.tolist(), windows.tolist(), strict=True):
                shuffled.read_into(rows[row], window)
        return Batch(rows[:, :-1], rows[:, 1:])

    def served(self, samples: int) -> dict[str, int]:
        """How many of the first `samples` of the run come from each source."""
        return dict(zip(self.sources, self.order.served(samples).tolist(), strict=True))

    def report(self, samples: int) -> list[dict[str, object]]:
        """The use of each source by the first `samples` of the run, as rows of a table. Sources left out have zeros."""
        served = self.served(samples)
        rows = [one.report(source, served[source]) for source, one in zip(self.sources, self._shuffled, strict=True)]
        nothing = dict.fromkeys(rows[0], 0) | {"epochs": 0.0}
        return rows + [
            nothing | {"source": source, "windows": windows} for source, windows in sorted(self._left_out.items())
        ]
