"""What must be reproducible: shards as written, batches, a resume, and the same weights on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.errors import DamagedArtifact, TokenizerMismatch, TrainingError
from storage.shards.tokens import open_tokens
from tasks.checks.check import Check, verdict
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.engines import open_engine
from tasks.pretrain.loader import StepLoader
from tasks.pretrain.preflight.bench import Bench

HASHED_BYTES = 1 << 30  # of shards, per rank; of the others only headers and sizes are checked
GPU_TOLERANCE = 1e-5  # sums on a GPU have no fixed order


def shards(bench: Bench) -> Check:
    """Token shards match their headers."""
    spec = bench.spec
    mine = [*spec.train, *spec.validation][bench.world.rank :: bench.world.size]
    return judge_shards(mine, spec.tokenizer_digest)


def judge_shards(paths: Sequence[Path], tokenizer_digest: str) -> Check:
    """Sizes and tokenizer of all, checksums up to a gigabyte."""
    hashed = read = 0
    for path in paths:
        verify = read < HASHED_BYTES
        try:
            open_tokens(path, tokenizer_digest=tokenizer_digest, verify=verify)
        except (DamagedArtifact, TokenizerMismatch) as error:
            return Check("token shards", "failed", error.message, error.remedy)
        if verify:
            hashed, read = hashed + 1, read + path.stat().st_size
    return Check("token shards", "passed", f"{hashed} of {len(paths)} have the checksum in their header")


def loader(bench: Bench) -> Check:
    """Two loaders serve the same batches."""
    return judge_loader(bench.open_loader(bench.spec), bench.open_loader(bench.spec), (1, bench.spec.steps))


def judge_loader(one: StepLoader, other: StepLoader, steps: Sequence[int]) -> Check:
    """The batches of these steps, served twice, must be equal."""
    digests = [[_served(each, step) for step in steps] for each in (one, other)]
    differs = [step for step, first, second in zip(steps, *digests, strict=True) if first != second]
    return verdict(
        "loader",
        not differs,
        f"step {differs[0]} is served differently the second time" if differs else "two loaders serve the same batches",
        "The order of the data must follow from the step alone: look at what changed in the loader.",
    )


def _served(loader: StepLoader, step: int) -> str:
    digest = hashlib.sha256()
    for batch in loader.micro_batches(step, rank=0, ranks=1, size=1):
        for part in batch:
            if part is not None:
                digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def checkpoint(bench: Bench) -> Check:
    """Saving and loading into a fresh engine must not change the next step. Changes the small engine."""
    name, world, engine = "checkpoint", bench.world, bench.engine
    remedy = "A resume would not be exact: look at what changed in the engine's save and load."
    checkpoints = Checkpoints(bench.spec.checkpoints, "pre-flight", world=world)
    try:
        checkpoints.save(engine, 1)
        found = checkpoints.latest()
    except TrainingError as error:
        return Check(name, "failed", error.message, error.remedy)
    rate = engine.config.learning_rate
    fresh = open_engine(bench.small, world)
    checkpoints.load(fresh, found)
    expected = torch.stack([value.double().cpu() for value in engine.step(bench.batches, rate)])
    got = torch.stack([value.double().cpu() for value in fresh.step(bench.batches, rate)])
    models = engine.whole_model(), fresh.whole_model()
    apart = float((got - expected).abs().max())
    if models[0] is not None and models[1] is not None:
        after = zip(models[0].parameters(), models[1].parameters(), strict=True)
        apart = max(apart, *(float((one - other).abs().max()) for one, other in after))
    good = apart == 0 or (world.device.type == "cuda" and apart < GPU_TOLERANCE)
    value = "saved, loaded and stepped: the same bits" if apart == 0 else f"a step after loading differs by {apart:.1e}"
    return verdict(name, good, value + bench.depth, remedy)


def ranks(bench: Bench) -> Check:
    """Every rank has the same initial weights, and its own samples."""
    world, engine = bench.world, bench.engine
    ids_BT, targets_BT, _ = bench.batches[0]
    everywhere = ids_BT.clone(), targets_BT.clone()
    if world.size > 1:
        for part in everywhere:
            torch.distributed.broadcast(part, 0)
    weights = hashlib.sha256()
    for parameter in engine.new_model().parameters():
        weights.update(parameter.detach().numpy().data)
    mine = {
        "data rank": engine.data_rank,
        "loss": float(engine.loss(*everywhere)),
        "weights": weights.hexdigest(),
        "samples": hashlib.sha256(ids_BT.cpu().numpy().data).hexdigest(),
    }
    return judge_ranks(world.gathered(mine))


def judge_ranks(found: Sequence[dict[str, Any]]) -> Check:
    """`found` has of each rank its data rank, the loss of one batch, digests of initial weights and of samples."""
    wrong = [what for what in ("loss", "weights") if len({each[what] for each in found}) > 1]
    seen = {each["data rank"]: each["samples"] for each in found}
    twice = len(set(seen.values())) < len(seen)
    value = f"{len(found)} with equal weights, {len(seen)} shares of the data that differ"
    if wrong:
        value = f"the ranks don't agree on the {' and the '.join(wrong)} of step 0"
    elif twice:
        value = "two ranks see the same samples"
    return verdict(
        "ranks",
        not wrong and not twice,
        value if len(found) > 1 else "one process",
        "Ranks must begin with equal weights and share out the batch: look at what changed in engine or loader.",
    )
