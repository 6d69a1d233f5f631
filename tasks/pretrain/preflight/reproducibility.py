"""Checks of reproducibility: shards as written, equal batches, an exact resume, and the same weights on every rank."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.errors import DamagedArtifact, TokenizerMismatch, TrainingError
from storage.shards.tokens import open_tokens
from tasks.checks.check import Check, verdict
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.engines import Engine, open_engine
from tasks.pretrain.loader import StepLoader
from tasks.pretrain.preflight.bench import Bench

HASHED_BYTES = 1 << 30  # of shards, per rank. Of the remaining ones only headers and sizes are checked
SAME_STEP = 0.1  # tolerated share of an update's norm, as sums in another order round differently
SAME_LOSS = 1e-3  # relative tolerance of one batch's loss on GPUs of several kinds, in 16 bits


def shards(bench: Bench) -> Check:
    """Check that token shards match their headers."""
    spec = bench.spec
    mine = [*spec.train, *spec.validation][bench.world.rank :: bench.world.size]
    return judge_shards(mine, spec.tokenizer_digest)


def judge_shards(paths: Sequence[Path], tokenizer_digest: str) -> Check:
    """Judge sizes and tokenizer of all shards, and checksums of the first gigabyte."""
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
    """Check that two loaders serve the same batches."""
    return judge_loader(bench.open_loader(bench.spec), bench.open_loader(bench.spec), (1, bench.spec.steps))


def judge_loader(one: StepLoader, other: StepLoader, steps: Sequence[int]) -> Check:
    """Judge the batches of these steps, served twice, which must be equal."""
    digests = [[_served(each, step) for step in steps] for each in (one, other)]
    differs = [step for step, first, second in zip(steps, *digests, strict=True) if first != second]
    return verdict(
        "loader",
        not differs,
        f"step {differs[0]} is served differently the second time" if differs else "two loaders serve the same batches",
        "The order of the data must follow only from the step: look at what changed in the loader.",
    )


def _served(loader: StepLoader, step: int) -> str:
    digest = hashlib.sha256()
    for batch in loader.micro_batches(step, rank=0, ranks=1, size=1):
        for part in batch:
            if part is not None:
                digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def checkpoint(bench: Bench) -> Check:
    """Check that saving, and loading into a fresh engine, changes neither weights nor the next step. Changes the small
    engine."""
    name, world, engine = "checkpoint", bench.world, bench.engine
    remedy = "A resume would not be exact: look at what changed in the engine's save and load."
    checkpoints = Checkpoints(bench.spec.checkpoints, "pre-flight", world=world)
    try:
        checkpoints.save(engine, 1)
        latest = checkpoints.latest()
    except TrainingError as error:
        return Check(name, "failed", error.message, error.remedy)
    fresh = open_engine(bench.small, world)
    checkpoints.load(fresh, latest)
    both = (engine, fresh)
    loaded = [_weights(each) for each in both]
    outcomes = [
        torch.stack([part.double().cpu() for part in each.step(bench.batches, each.config.learning_rate)])
        for each in both
    ]
    stepped = [_weights(each) for each in both]
    value, good = judge_resume(loaded, stepped, outcomes, repeats=world.device.type == "cpu")
    return verdict(name, good, value + bench.depth, remedy)


def _weights(engine: Engine) -> Tensor:
    """All weights in a row, empty on every rank but the first."""
    whole = engine.whole_model()
    return torch.cat([part.detach().flatten() for part in whole.parameters()]) if whole else torch.zeros(0)


def judge_resume(
    loaded: Sequence[Tensor], stepped: Sequence[Tensor], outcomes: Sequence[Tensor], *, repeats: bool
) -> tuple[str, bool]:
    """Judge pairs, of the engine that saved and the one that loaded: weights before a step and after it, and the step's
    loss and gradient norm.

    Loaded weights must be equal bit for bit. So must the next step if kernels `repeats`, that is, sum in a fixed order.
    Otherwise the two updates must nearly agree: a lost optimizer state makes them differ by as much as they are large,
    whatever the precision.
    """
    if not torch.equal(*loaded):
        return f"the weights differ by {_largest(loaded):.1e} after loading", False
    apart = max(_largest(stepped), _largest(outcomes))
    if apart == 0:
        return "saved, loaded and stepped: the same bits", True
    updates = [after - before for before, after in zip(loaded, stepped, strict=True)]
    share = float((updates[1] - updates[0]).norm() / updates[0].norm()) if updates[0].numel() else 0.0
    value = f"a step after loading differs by {apart:.1e}"
    return (value, False) if repeats else (f"{value}, {share:.1%} of the step", share < SAME_STEP)


def _largest(pair: Sequence[Tensor]) -> float:
    """The largest difference of two tensors."""
    return float((pair[1] - pair[0]).abs().max()) if pair[0].numel() else 0.0


def ranks(bench: Bench) -> Check:
    """Check that every rank has the same initial weights, and its own samples."""
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


def judge_ranks(of_ranks: Sequence[dict[str, Any]]) -> Check:
    """Judge each rank's data rank, the loss of one batch, and digests of initial weights and of samples."""
    losses = [each["loss"] for each in of_ranks]
    wrong = [] if all(math.isclose(loss, losses[0], rel_tol=SAME_LOSS) for loss in losses) else ["loss"]
    wrong += ["weights"] if len({each["weights"] for each in of_ranks}) > 1 else []
    seen = {each["data rank"]: each["samples"] for each in of_ranks}
    twice = len(set(seen.values())) < len(seen)
    value = f"{len(of_ranks)} with equal weights, {len(seen)} different shares of the data"
    if wrong:
        value = f"the ranks don't agree on the {' and the '.join(wrong)} of step 0"
    elif twice:
        value = "two ranks see the same samples"
    return verdict(
        "ranks",
        not wrong and not twice,
        value if len(of_ranks) > 1 else "one process",
        "Ranks must begin with equal weights and share out the batch: look at what changed in engine or loader.",
    )
