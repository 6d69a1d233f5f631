"""Checkpoints of TRL's trainers: marked as whole once every file is on disk, and checked before one is opened."""

from __future__ import annotations

from pathlib import Path

from tasks.children.child import emit
from tasks.posttrain.spec import PosttrainSpec
from tasks.training.checkpoint_marker import CheckpointMarker, dropped_note, flush_and_digest, newest_sound, refusal


class PosttrainMarker(CheckpointMarker):
    """Adds the engine whose files the checkpoint holds, with the number of processes if the files are their shards."""

    layout: str


def mark_whole(spec: PosttrainSpec, step: int, processes: int) -> None:
    """Flush and digest the checkpoint of a step, then mark it as whole. Every rank must have written its files."""
    folder = spec.checkpoints / f"checkpoint-{step}"
    files = flush_and_digest(folder)
    layout = _layout(spec, processes)
    PosttrainMarker(identity=spec.identity, step=step, files=files, layout=layout).write(folder)


def latest_checkpoint(spec: PosttrainSpec, processes: int) -> tuple[Path | None, int]:
    """The newest whole checkpoint and its step. Removes half-written ones.

    Raises TrainingError for a checkpoint of another run, and for one that this engine can't read.
    """

    def dropped(step: int, sound: int, damage: str) -> None:
        emit(note=dropped_note(step, sound, damage))

    folder, step = newest_sound(spec.checkpoints, spec.identity, dropped=dropped)
    if folder is not None and (layout := PosttrainMarker.read(folder).layout) != _layout(spec, processes):
        raise refusal(folder, f"runtime.posttrain.engine {layout}")
    return folder, step


def _layout(spec: PosttrainSpec, processes: int) -> str:
    """DDP and FSDP write whole states, for any number of processes. Each rank of DeepSpeed writes its own shards."""
    runtime = spec.runtime.posttrain
    if runtime.engine == "deepspeed":
        return f"deepspeed, zero_stage {runtime.zero_stage}, {processes} processes"
    return runtime.engine
