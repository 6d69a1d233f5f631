"""Where scoring runs: worker processes with one thread each on a CPU, one process for each GPU.

A process that used a GPU ends with the work, so that later training finds all of its memory.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storage.artifact import Artifact
from storage.shards.arrays import Float64
from tasks.filter.classifier.scorer import open_classifier
from tasks.filter.side_files import MEASURE, Measure, write_signals
from tasks.shards import map_shards
from tasks.stage.output import Output

SCORES = "scores.npy"
CHUNK = 256  # pieces a job


class Placement(NamedTuple):
    """The kind of device, and the number of GPUs, each of which gets its own worker process."""

    device: str
    accelerators: int

    def here(self) -> str:
        """The device of this worker process."""
        if self.device == "cpu" or self.accelerators < 2:
            return self.device
        number = (multiprocessing.current_process()._identity or (1,))[-1] - 1
        return f"{self.device}:{number % self.accelerators}"


CPU = Placement("cpu", 0)


def placement(out: Output) -> Placement:
    """Where scoring runs by the runtime settings."""
    import torch

    from tasks.children.devices import device_of

    device = device_of(out.runtime.compute).type
    if device == "cpu":
        return CPU
    return Placement(device, torch.cuda.device_count())


def release_classifier() -> None:
    """Release the classifier that this process opened, if it was itself the only worker."""
    open_classifier.cache_clear()


def score_signals(measure: Measure, documents: Artifact, out: Output) -> None:
    """`write_signals` with a function that scores on the device in its argument `where`."""
    where = placement(out)
    name = f"{MEASURE}-{where.device}"  # another device rounds differently
    write_signals(functools.partial(measure, where=where), documents, out, name, accelerators=where.accelerators)
    release_classifier()


def score_pieces(folder: Path, pieces: Sequence[str], out: Output, name: str, *, whole: bool = False) -> Float64:
    """The scores of many pieces by the classifier in `folder`, or with `whole` of texts that may be longer."""
    where = placement(out)
    chunks = [list(pieces[start : start + CHUNK]) for start in range(0, len(pieces), CHUNK)]
    work = functools.partial(_score_chunk, folder, where, whole)
    scored = map_shards(work, chunks, out, name, "chunks", accelerators=where.accelerators)
    release_classifier()
    return np.concatenate([np.load(one.folder / SCORES) for one in scored]) if scored else np.empty(0)


def _score_chunk(folder: Path, where: Placement, whole: bool, pieces: list[str], result: Path) -> dict[str, Any]:
    import pyarrow as pa

    scorer = open_classifier(folder, where.here())
    scores = scorer.score(pa.array(pieces, pa.string()))[0] if whole else scorer.score_pieces(pieces).values
    np.save(result / SCORES, scores)
    return {"pieces": len(pieces)}
