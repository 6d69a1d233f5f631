"""`python -m tests.tasks.pretrain.engines.engine_child FOLDER CASES`: engines in turn, in one launch.

Starting a process with torch and DeepSpeed costs more than all that is learned here, so a pair does everything: where a
case asks for one process, each of the pair is alone in a world of its own for as long. (The second's results go
nowhere, but DeepSpeed numbers modules over the life of a process, and the numbers must agree when both are joined.)
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.kernels.cross_entropy import IGNORED
from models.presets import ModelShape
from models.transformer import Decoder
from storage.errors import GristmillError
from tasks.pretrain import PretrainConfig, averages
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.engines import Engine, MicroBatch, open_engine
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World, join
from tests.runtimes import runtime_of

CONTEXT, VOCABULARY, GLOBAL_BATCH, STEPS, SAVED = 16, 96, 8, 4, 2
LOCAL = {"sliding_window": 5, "global_every": 2}
AVERAGED = {"ema_decay": 0.3, "average": {"last": 3, "every": 1}}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "kv_heads": 2, "tie_embeddings": True, "rope_theta": 10_000.0},
    "mistral": {"family": "mistral", "kv_heads": 2, "tie_embeddings": False, "rope_theta": 1e4, "sliding_window": 8},
    "qwen3": {"family": "qwen3", "kv_heads": 2, "tie_embeddings": True, "rope_theta": 1e4, "head_size": 12},
    "qwen3_moe": {
        "family": "qwen3_moe",
        "kv_heads": 2,
        "tie_embeddings": True,
        "rope_theta": 1e4,
        "head_size": 12,
        "experts": 4,
        "experts_per_token": 2,
        "expert_feed_forward": 24,
    },
    "gemma3": {"family": "gemma3", "kv_heads": 2, "tie_embeddings": True, "rope_theta": 1e6, **LOCAL, "head_size": 12},
    "olmo3": {"family": "olmo3", "kv_heads": 2, "tie_embeddings": False, "rope_theta": 5e5, **LOCAL},
    "gpt2": {"family": "gpt2", "kv_heads": 4, "tie_embeddings": True},
}


def make_spec(folder: Path, case: dict[str, Any]) -> TrainSpec:
    """The spec of a case: a model of two blocks, no data."""
    missing: dict[str, Any] = {"sliding_window": None, "rope_theta": None}
    numbers = {"depth": 2, "width": 32, "heads": 4, "feed_forward": 48, "context": CONTEXT, "vocab_size": VOCABULARY}
    asked = missing | numbers | SHAPES[case["shape"]] | case.get("changes", {})
    shape = ModelShape(**asked, norm_eps=1e-5)
    model = {"family": shape.family, "depth": 2, "width": 32, "context": shape.context}
    config = PretrainConfig.model_validate(
        {
            "model": model,
            "steps": STEPS,
            "global_batch": GLOBAL_BATCH,
            "gradient_clip": 0.5,
            "weight_decay": 0.5,
            **case.get("config", AVERAGED if case["shape"] == "llama" else {}),
        }
    )
    runtime = runtime_of(threads=1, device="cpu", workers=1, **case["runtime"])
    return TrainSpec(
        config=config,
        runtime=runtime,
        shape=shape,
        steps=STEPS,
        tokens_digest="",
        tokenizer_digest="",
        train=[],
        validation=[],
        fim_tokens=None,
        tokenizer=folder,
        scratch=folder,
        out=folder,
    )


def global_batch(step: int, *, isolated: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, targets and positions that follow from the step. Isolated: two documents a row, of any length, and rows in
    which whole parts lack targets."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(VOCABULARY, (GLOBAL_BATCH, CONTEXT + 1), generator=generator)
    inputs, targets = ids[:, :-1], ids[:, 1:].clone()
    positions = torch.arange(CONTEXT).expand(GLOBAL_BATCH, -1).clone()
    if isolated:
        for row, begin in enumerate(torch.randint(2, CONTEXT - 1, (GLOBAL_BATCH,), generator=generator).tolist()):
            positions[row, begin:] -= begin
            targets[row, : begin + row] = IGNORED
            targets[row, begin - 1] = IGNORED
            targets[row, -1] = ids[row, -1]
    return inputs, targets, positions


def micro_batches(engine: Engine, step: int, *, isolated: bool) -> list[MicroBatch]:
    """This rank's share of a global batch."""
    inputs, targets, positions = global_batch(step, isolated=isolated)
    share = GLOBAL_BATCH // engine.data_ranks
    parts = range(engine.data_rank * share, (engine.data_rank + 1) * share, engine.micro_batch)
    rows = [slice(start, start + engine.micro_batch) for start in parts]
    return [(inputs[row], targets[row], positions[row] if isolated else None) for row in rows]


def train(engine: Engine, world: World, steps: range, case: dict[str, Any]) -> dict[str, Any]:
    """Losses and norms of some steps, and the digest of the whole model after them."""
    losses, norms = [], []
    for step in steps:
        loss, norm = engine.step(micro_batches(engine, step, isolated=case.get("isolated", False)), 1e-2)
        averages.update(engine, step)
        losses.append(world.mean(loss.clone()).item())
        norms.append(float(norm))

    def validated() -> float:
        held_out = [engine.loss(ids, targets) for ids, targets, _ in micro_batches(engine, 99, isolated=False)]
        return world.mean(torch.stack(held_out).mean()).item()

    found: dict[str, Any] = {"losses": losses, "norms": norms, "validation": validated()}
    model = engine.whole_model()
    if model is not None:
        found |= {"model": digest(model), "whole": whole_loss(model)}
    if steps.stop > STEPS and engine.config.average:
        found["averages"] = validated_averages(engine, validated)
        assert validated() == found["validation"]
    return found


def validated_averages(engine: Engine, validated: Callable[[], float]) -> dict[str, Any]:
    """The validation loss of each average, and on the first rank that of the gathered model, and its digest."""
    kept = averages.Averages(engine)
    engine.free_states()
    found: dict[str, Any] = {"losses": kept.losses(validated)}
    for name in found["losses"]:
        kept.swap(name)
        model = engine.whole_model()
        if model is not None:
            found[name] = [whole_loss(model), digest(model)]
        kept.swap(name)
    return found


def digest(model: Decoder) -> str:
    """SHA-256 over all weights."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


@torch.no_grad()
def whole_loss(model: Decoder) -> float:
    """The gathered model's loss on the held-out rows."""
    inputs, targets, _ = global_batch(99, isolated=False)
    return float(model(inputs, targets))


def run(folder: Path, case: dict[str, Any], world: World) -> dict[str, Any]:
    """Train to the end, saving on the way, then again from the saved states, by this case or by another."""
    spec = make_spec(folder, case)
    checkpoints = Checkpoints(folder / case["name"], "mine", world=world)
    try:
        if "from" in case:
            engine = open_engine(spec, world)
            Checkpoints(folder / case["from"], "mine", world=world).load(engine, SAVED)
            return train(engine, world, range(SAVED + 1, STEPS + 1), case)
        engine = open_engine(spec, world)
        first = train(engine, world, range(1, SAVED + 1), case)
        checkpoints.save(engine, SAVED)
        through = train(engine, world, range(SAVED + 1, STEPS + 1), case)
        engine = open_engine(spec, world)
        checkpoints.load(engine, SAVED)
        resumed = train(engine, world, range(SAVED + 1, STEPS + 1), case)
    except GristmillError as error:
        return {"error": type(error).__name__, "message": error.message}
    whole = {key: first[key] + through[key] for key in ("losses", "norms")}
    return {**through, **whole, "resumed_alike": resumed == through}


def main() -> None:
    """Run every case, in worlds of as many processes as it needs."""
    folder, cases = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    results: dict[str, Any] = {}
    world = None
    for number, case in enumerate(cases):
        processes = case["processes"]
        if world is None or world.size != processes:
            if world is not None:
                part(world)
            own = 0 if processes == 1 else rank
            os.environ |= {"RANK": str(own), "WORLD_SIZE": str(processes), "MASTER_PORT": str(port + number)}
            world = join(runtime_of(threads=1, device="cpu"))
        mirrored = processes == 1 and rank > 0
        if not (mirrored and "from" in case):
            results[case["name"]] = run(folder / f"mirrored-{rank}" if mirrored else folder, case, world)
    if world is not None:
        part(world)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))


def part(world: World) -> None:
    """Leave a world, so that another can be joined. DeepSpeed keeps global state of its own."""
    world.leave()
    if "deepspeed" in sys.modules:
        from deepspeed.comm import comm
        from deepspeed.utils import groups

        comm.cdb = groups._WORLD_GROUP = None


if __name__ == "__main__":
    main()
