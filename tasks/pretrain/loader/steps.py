"""The micro-batches of a step and a rank, as the profile wants them served.

Sample numbers run through the whole training: a step's are those that follow the step before, as many as its batch has,
and micro-batch m of rank r is the (m · ranks + r)-th of these. So a resume may change ranks and micro-batch and goes on
in the same global order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from storage.token_stream import TokenStream, source_streams
from storage.tokens import read_header
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.loader.batch import Batch, isolate, shorten
from tasks.pretrain.loader.mixture import MixtureLoader, Phase
from tasks.pretrain.loader.windows import WindowLoader


class SampleLoader(Protocol):
    """Samples by their number; `windows` are all there are."""

    windows: int

    def batch(self, first: int, count: int) -> Batch:
        """Samples `first` to `first + count` of the run."""

    def report(self, samples: int) -> list[dict[str, object]]:
        """What the first `samples` of the run took of each source, as rows of a table."""


class StepLoader:
    """Serves steps of a training, counted from 1."""

    def __init__(self, samples: SampleLoader, config: PretrainConfig, *, eos_id: int) -> None:
        self.samples, self.config, self.eos_id = samples, config, eos_id

    def micro_batches(self, step: int, *, rank: int, ranks: int, size: int) -> list[Batch]:
        """This rank's micro-batches of a step, each of `size` samples, or fewer where the batch warms up."""
        served, batch = self.config.samples(step - 1), self.config.batch(step)
        size = math.gcd(size, batch // ranks)
        count = batch // (size * ranks)
        return [self._serve(step, served + (number * ranks + rank) * size, size) for number in range(count)]

    def _serve(self, step: int, first: int, size: int) -> Batch:
        batch = self.samples.batch(first, size)
        parts = self.config.context_parts(step)
        if parts > 1:
            batch = shorten(batch, parts)
        return isolate(batch, self.eos_id) if self.config.isolate_documents else batch


def open_loader(paths: Sequence[Path], config: PretrainConfig, *, context: int, tokenizer_digest: str) -> StepLoader:
    """The loader of a profile over the token shards of the training split.

    Raises TokenizerMismatch, EmptyOutput for too few tokens, ConfigError for a mixture of sources that are not there.
    """
    eos_id = read_header(paths[0]).eos_id
    if config.mixture is None:
        stream = TokenStream(paths, tokenizer_digest=tokenizer_digest)
        return StepLoader(WindowLoader(stream, context=context, seed=config.seed), config, eos_id=eos_id)
    later = ((change.from_step, change.mixture) for change in config.curriculum)
    phases = [Phase(config.samples(step - 1), mixture) for step, mixture in ((1, config.mixture), *later)]
    streams = source_streams(paths, tokenizer_digest=tokenizer_digest)
    samples = MixtureLoader(streams, phases, context=context, seed=config.seed)
    return StepLoader(samples, config, eos_id=eos_id)
