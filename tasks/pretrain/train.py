"""The training child: `python -m tasks.pretrain.train SPEC`, once per rank.

A step is a pure function of (weights, optimizer states, step number, batch schedule): data order, learning rate and
validation windows follow from the step number and from skipped batches. So a resume only has to load a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from models.convert import save
from models.foreign import ForeignDecoder
from models.kernels.attention import for_one_shape
from storage.shards.token_stream import TokenStream
from storage.shards.tokens import read_header
from tasks.children.child import emit, run_as_child
from tasks.children.orderly_stop import OrderlyStop
from tasks.pretrain.averages import Averages
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.checkpoints.snapshots import Snapshots
from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.adapted import merge_adapter
from tasks.pretrain.engines.async_save import saves_async
from tasks.pretrain.engines.trained import trained_sizes
from tasks.pretrain.evaluation import Validation, write_samples
from tasks.pretrain.healing.divergence import DivergenceMonitor
from tasks.pretrain.healing.heartbeat import Heartbeat
from tasks.pretrain.healing.skipped_batches import report_of_steps
from tasks.pretrain.held_out_change import Change, HeldOutChange
from tasks.pretrain.insight.observe import Insight
from tasks.pretrain.loader import StepLoader, open_loader
from tasks.pretrain.loader.epochs import check_epochs, repeats
from tasks.pretrain.log import Log
from tasks.pretrain.long_context.measure import LongContextChange
from tasks.pretrain.loop import Training
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World, join, reports
from tasks.training.checkpoint_marker import resumed_note
from tasks.training.logs import cut_log, read_log
from tasks.training.recovery.fault_injection import FaultInjection
from tasks.training.recovery.lost_host import hosts_named
from tasks.training.recovery.out_of_memory import memory_named
from tasks.training.recovery.remote_checkpoints import RemoteCheckpoints


def train(path: Path) -> None:
    """Train as the spec says, from the last checkpoint if any. Rank 0 writes the model and the result.

    Raises OutOfMemory on the rank where memory runs out.
    """
    spec = TrainSpec.model_validate_json(path.read_text())
    heartbeat = Heartbeat(reports=reports(spec.runtime), seconds=60 * spec.runtime.pretrain.hang_minutes)
    heartbeat.slow()
    try:
        with memory_named("Memory ran out", "Lower runtime.pretrain.micro_batch, or set runtime.pretrain.recompute."):
            world = join(spec.runtime)
            with hosts_named(spec.runtime.training):
                _train(spec, world, heartbeat)
    finally:
        heartbeat.stop()


def _train(spec: TrainSpec, world: World, heartbeat: Heartbeat) -> None:
    if world.reports:
        emit(ranks=world.size)
    faults = FaultInjection(spec.faults, world.rank, world.device)
    loader = _open_loader(spec, world)
    validation = Validation(
        TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest),
        context=spec.context,
        tokens=spec.config.validation_tokens,
        world=world,
    )
    held_out = HeldOutChange(spec, world) if spec.base else None
    if held_out:
        held_out.measure_own(heartbeat)
    engine = open_engine(spec, world)
    checkpoints = Checkpoints(
        spec.checkpoints,
        spec.identity,
        world=world,
        keep=spec.runtime.training.keep_checkpoints,
        keep_every=spec.runtime.pretrain.keep_every,
        asynchronous=saves_async(engine),
        tell=lambda sentence: emit(note=sentence),
        dropped=lambda step, sound, damage: emit(damaged=step, sound=sound, what=damage),
        remote=RemoteCheckpoints(
            spec, world, keep_every=spec.runtime.pretrain.keep_every, tell=lambda sentence: emit(note=sentence)
        ),
    )
    begun = checkpoints.latest()
    # Whatever was written after the checkpoint is written again: cut log and snapshots back to it
    snapshots = Snapshots(spec)
    if world.first:
        snapshots.cut(begun)
        cut_log(spec.log, begun)
    world.wait()  # no rank may read the log while it is being cut
    if begun:
        checkpoints.load(engine, begun)
        if world.reports:
            emit(note=resumed_note(begun))
    changes: dict[str, Change] = {"held_out": held_out} if held_out else {}
    if spec.config.rope_scaling is not None:
        changes["long_context"] = LongContextChange(spec)
    if changes and world.reports and not begun and spec.extends is None:  # else it was measured, and said, before
        emit(note="measuring the base on held-out text")
    for change in changes.values():
        change.begin(engine, begun, heartbeat)
    monitor = DivergenceMonitor(spec.config, spec.batch_schedule)
    log = Log(spec.log, world, monitor, read_log(spec.log), may_skip=engine.precision == "float16")
    if world.reports:
        emit(micro_batch=engine.micro_batch, share=engine.micro_batch * engine.micro_steps)
    insight = Insight(spec, engine, begun)
    stop = OrderlyStop(
        spec.stop, ranks=world.size, grace=spec.runtime.training.stop_grace_seconds, reports=world.reports
    )
    training = Training(
        spec, engine, loader, validation, checkpoints, snapshots, log, insight, heartbeat, faults, stop, begun
    )
    with for_one_shape(world.device):
        ended = training.run()
    heartbeat.slow()
    if ended:
        averages = Averages(engine)
        engine.free_states()
        losses = {"last": log.rows[-1]["validation_loss"]}
        losses |= averages.losses(lambda: validation.loss(engine, heartbeat))
        if spec.config.final_weights != "last":
            averages.swap(spec.config.final_weights)
        changed = {name: change.end(engine, heartbeat) for name, change in changes.items()}
        heartbeat.slow()
        _finish(training, changed, losses)
    world.leave()


def _open_loader(spec: TrainSpec, world: World) -> StepLoader:
    """The loader, and a note of sources that repeat. Raises ConfigError for one that does more often than allowed."""
    loader = open_loader(
        spec.train,
        spec.config,
        context=spec.context,
        tokenizer_digest=spec.tokenizer_digest,
        fim_tokens=spec.fim_tokens,
    )
    readings = loader.readings(spec.steps)
    check_epochs(spec.config, readings)
    if world.reports:
        for sentence in repeats(readings):
            emit(note=sentence)
    return loader


def _finish(training: Training, changed: Mapping[str, Mapping[str, Any]], losses: dict[str, float]) -> None:
    """`losses` are those of the validation, by the weights that they are of."""
    spec, engine, rows = training.spec, training.engine, training.log.rows
    model = engine.whole_model()
    if model is None:
        return
    trained: dict[str, Any] | None = None
    if spec.config.adapter is not None:
        # An adapter over a base with more rows can't be laid over the base itself, so it isn't kept
        kept = spec.scratch if spec.extends else spec.out
        trained = merge_adapter(cast(ForeignDecoder, model), spec.config.adapter, spec, kept / "adapter")
    elif spec.config.freeze is not None:
        number = sum(map(math.prod, trained_sizes(spec.shape, spec.config, spec.base).values()))
        trained = {
            "trained_parameters": number,
            "parameters": model.num_parameters(),
            "trainable_share": round(number / model.num_parameters(), 6),
        }
    save(model, spec.out / "model", spec.tokenizer, spec.base)
    training.snapshots.publish(spec.out / "snapshots")
    end = read_header(spec.validation[0]).eos_id
    write_samples(model, spec.config, spec.tokenizer, spec.out / "samples.md", eos_id=end)
    (spec.out / "log.jsonl").write_bytes(spec.log.read_bytes())
    last = [row["loss"] for row in rows[-max(1, min(20, spec.steps // 10)) :]]
    measured = {
        "windows": training.loader.samples.windows,
        "sources": report_of_steps(
            training.loader.samples.report, spec.batch_schedule, spec.steps, spec.config.samples
        ),
        "packing": training.loader.packing_report(),
        "fim": training.loader.fim_report(spec.steps),
        "precision": engine.precision,
        "held_out": changed.get("held_out"),
        "long_context": changed.get("long_context"),
        "trained": trained,
        "train_loss": sum(last) / len(last),
        "validation_loss": losses[spec.config.final_weights],
        "validation_bits_per_byte": training.validation.bits_per_byte(losses[spec.config.final_weights]),
        "weights": {name: [loss, training.validation.bits_per_byte(loss)] for name, loss in losses.items()},
        "facts": {
            "resumed_from_step": training.begun,
            "device": engine.world.device.type,
            "processes": engine.world.size,
            "micro_batch": engine.micro_batch,
        },
    }
    spec.finish(measured)


if __name__ == "__main__":
    run_as_child(train)
