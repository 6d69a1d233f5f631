"""The micro-batches of a step and rank.

Samples are numbered over the whole run. The batch of a step takes those after the previous step's, and micro-batch m of
rank r is the (m · ranks + r)-th part of it. So a resume may change ranks and micro-batch, and continues in the same
global order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from storage.errors import ConfigError
from storage.shards.arrays import Int64
from storage.shards.token_stream import MARK, Ranges, Stretches, TokenStream, source_streams
from storage.shards.tokens import read_header
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.loader.batch import Batch, isolate, mask, shorten
from tasks.pretrain.loader.epochs import Reading, phases_of
from tasks.pretrain.loader.fim import FillInTheMiddle
from tasks.pretrain.loader.mixture import MixtureLoader
from tasks.pretrain.loader.packing import PackedWindows, pack
from tasks.pretrain.loader.windows import StreamWindows, WindowLoader, Windows

MEASURED = 1000  # most samples of a report


class SampleLoader(Protocol):
    """Samples by number. `windows` is the number of distinct ones."""

    windows: int
    taken: dict[str, Windows]  # by source, if it has a weight

    def batch(self, first: int, count: int) -> Batch:
        """Samples `first` to `first + count` of the run. Packed ones have `~id` for tokens without loss."""

    def served(self, samples: int) -> dict[str, int]:
        """How many of the first `samples` of the run come from each source."""

    def serving(self, ranges: Mapping[str, Ranges], samples: int) -> Iterator[tuple[int, Int64]]:
        """By epoch and source: the epoch, and those of the first `samples` of the run that have a token of these ranges
        of the sources' streams."""

    def report(self, samples: int) -> list[dict[str, object]]:
        """The use of each source by the first `samples` of the run, as rows of a table."""


class Read(NamedTuple):
    """A sample with tokens of a document: its step from 1, its epoch from 0 (of its source), and the number of those
    tokens that the step learned to predict. With 0 of them, they were context only."""

    step: int
    epoch: int
    predicted: int


class StepLoader:
    """Serves the steps of a run, counted from 1."""

    def __init__(
        self, samples: SampleLoader, config: PretrainConfig, *, eos_id: int, fim_tokens: FimTokens | None = None
    ) -> None:
        self.samples, self.config, self.eos_id = samples, config, eos_id
        self._fim: FillInTheMiddle | None = None
        if config.fim_rate:
            assert fim_tokens is not None
            self._fim = FillInTheMiddle(
                fim_tokens, eos_id=eos_id, rate=config.fim_rate, spm_share=config.fim_spm_share, seed=config.seed
            )

    def readings(self, steps: int) -> list[Reading]:
        """How often a run of `steps` steps reads each source."""
        served = self.samples.served(self.config.samples(steps))
        return [Reading(source, self.samples.taken[source].count, number) for source, number in served.items()]

    def micro_batches(self, step: int, *, rank: int, ranks: int, size: int, number: int | None = None) -> list[Batch]:
        """This rank's micro-batches of a step, each of `size` samples, or fewer during batch warmup. They come from
        batch `number`, by default the step's own. Raises ConfigError if ranks can't share it evenly."""
        number = number or step
        served, batch = self.config.samples(number - 1), self.config.batch(number)
        if batch % ranks:
            raise ConfigError(
                f"Batch {number:,} has {batch} sequences, which {ranks} ranks can't share evenly.",
                "Choose a pretrain.global_batch, and a first batch of its warmup, that the ranks divide evenly.",
            )
        size = math.gcd(size, batch // ranks)
        count = batch // (size * ranks)
        return [self._serve(step, served + (part * ranks + rank) * size, size) for part in range(count)]

    def reads(self, documents: Mapping[int, Ranges], batches: Int64) -> Iterator[Read]:
        """Each sample in which a run, whose step n trains on batch `batches[n - 1]`, reads tokens of documents: ranges
        of the shards, by shard number, without EOS. Which samples those are follows from the loader's own order. They
        are then served as the step did, with the documents' tokens marked, so that what fill-in-the-middle cuts off
        doesn't count. Not in the order of steps. The loader can't serve a training afterwards."""
        ranges = {name: windows.stream.ranges(documents) for name, windows in self.samples.taken.items()}
        for name, windows in self.samples.taken.items():
            windows.stream = windows.stream.marked(ranges[name])
        ends = np.array([self.config.samples(batch) for batch in range(int(batches[-1]) + 1)])
        for epoch, samples in self.samples.serving(ranges, int(ends[-1])):
            numbers = np.searchsorted(ends, samples, side="right")
            steps = np.searchsorted(batches, numbers)
            taken = batches[steps] == numbers  # and not skipped after a divergence
            for step, sample in zip((steps[taken] + 1).tolist(), samples[taken].tolist(), strict=True):
                served = self._serve(step, sample, 1)
                predicted = int((served.targets >= MARK).sum())
                if predicted or (served.ids >= MARK).any():
                    yield Read(step, epoch, predicted)

    def fim_report(self, steps: int) -> dict[str, float] | None:
        """The effect of `fim_rate` on a run of `steps` steps, measured on evenly spread samples: rearranged documents
        per window, and the share of tokens cut off for FIM tokens. None if nothing is rearranged."""
        if self._fim is None:
            return None
        firsts = np.cumsum([0, *(self.config.batch(step) for step in range(1, steps + 1))])
        numbers = range(0, int(firsts[-1]), -(-int(firsts[-1]) // MEASURED))
        steps_of = np.searchsorted(firsts, numbers, side="right")
        places = list(zip(steps_of.tolist(), numbers, strict=True))
        ids = np.concatenate([self._rows(step, number, 1).ids.ravel() for step, number in places])
        fim_tokens = np.isin(ids, self._fim.fim_tokens)
        padding = ~self.eos_id
        into_padding = sum(int((self.samples.batch(number, 1).ids == padding).sum()) for number in numbers)
        into_padding -= int((ids == padding).sum())
        return {
            "rearranged_a_window": round(int((ids == self._fim.fim_tokens.prefix).sum()) / len(numbers), 4),
            "cut_off_share": round(float(fim_tokens.mean()) - into_padding / len(ids), 6),
        }

    def packing_report(self) -> list[dict[str, Any]] | None:
        """Statistics of best-fit packing by source, as rows of a table. None without it."""
        if self.config.packing == "stream":
            return None
        taken = self.samples.taken.items()
        return [{"source": source} | one.report() for source, one in taken if isinstance(one, PackedWindows)]

    def _rows(self, step: int, first: int, size: int) -> Batch:
        batch = self.samples.batch(first, size)
        parts = self.config.context_parts(step)
        if parts > 1:
            batch = shorten(batch, parts)
        return batch if self._fim is None else self._fim.rearrange(batch, first, parts)

    def _serve(self, step: int, first: int, size: int) -> Batch:
        batch = self._rows(step, first, size)
        if self.config.packing != "stream":
            batch = mask(batch)
        return isolate(batch, self.eos_id) if self.config.isolate_documents else batch


def open_loader(
    paths: Sequence[Path],
    config: PretrainConfig,
    *,
    context: int,
    tokenizer_digest: str,
    fim_tokens: FimTokens | None = None,
) -> StepLoader:
    """The loader of a profile over the token shards of the training split. It needs `fim_tokens` if the config has a
    `fim_rate`.

    Raises TokenizerMismatch, EmptyOutput for too few tokens, and ConfigError for a mixture that names missing sources.
    """
    eos_id = read_header(paths[0]).eos_id

    def windows(stream: Stretches) -> Windows:
        if config.packing == "stream":
            return StreamWindows(stream, context)
        plan = pack(stream.document_lengths(paths), context)
        return PackedWindows(stream, plan, eos_id=eos_id, long_first=config.packing == "long_first")

    samples: SampleLoader
    if config.mixture is None:
        samples = WindowLoader(windows(TokenStream(paths, tokenizer_digest=tokenizer_digest)), seed=config.seed)
    else:
        streams = source_streams(paths, tokenizer_digest=tokenizer_digest)
        sources = {source: windows(stream) for source, stream in streams.items()}
        samples = MixtureLoader(sources, phases_of(config), seed=config.seed)
    return StepLoader(samples, config, eos_id=eos_id, fim_tokens=fim_tokens)
