"""The micro-batches of a step and rank.

Samples are numbered over the whole run. The batch of a step takes those after the previous step's, and micro-batch m of
rank r is the (m · ranks + r)-th part of it. So a resume may change ranks and micro-batch, and continues in the same
global order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from storage.errors import ConfigError
from storage.shards.token_stream import Stretches, TokenStream, source_streams
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

    def report(self, samples: int) -> list[dict[str, object]]:
        """The use of each source by the first `samples` of the run, as rows of a table."""


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
