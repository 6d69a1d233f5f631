"""Decides what to do about a fault: pure functions over a state that outlives every process.

A run recovers from three faults, each by restarting the training from a checkpoint:

    divergence      skip the batches that led there, from a checkpoint before them. Soon again: skip twice as many, and
                    lower the learning rate. A third time: stop with a diagnosis. Skipping batches follows PaLM
                    (Chowdhery et al. 2022, section 5.1)
    out of memory   halve the micro-batch. At 1, recompute activations (selective, then full), then raise the ZeRO
                    stage (ddp becomes fsdp). The global batch stays, and so does the result
    lost process    one that died without an error, or hangs: restart, as often as runtime.pretrain.restarts allows

Errors of the profile, the data or the tokenizer would recur, so they are not retried. The fault and the decision are
written to disk before the restart, so that a rerun of a stage killed in between carries the decision out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from storage.errors import Divergence, LostProcess, OutOfMemory, TrainingError
from storage.files.flush import flush
from tasks.pretrain.config import HealingConfig
from tasks.pretrain.healing.skipped_batches import BatchSchedule
from tasks.stage.runtime import PretrainRuntime, Runtime

STRIKES = 3
LARGEST_ZERO_STAGE = 3
SHARING = (  # runtime settings that also affect what fits into memory
    "training.processes",
    "training.hosts",
    "training.hostfile",
    "training.rendezvous",
    "pretrain.engine",
    "pretrain.tensor_parallel",
    "pretrain.pipeline_parallel",
    "pretrain.context_parallel",
    "pretrain.replicate",
    "pretrain.offload",
    "compute.device",
)
Error = TypeVar("Error", bound=TrainingError)
Kind = Literal["divergence", "out of memory", "lost process", "damaged checkpoint"]


class Event(BaseModel):
    """A fault at `step`, and the action taken. `checkpoint` is the step that the run resumed from (0: from scratch)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str
    kind: Kind
    step: int
    checkpoint: int
    what: str
    action: str
    stopped: bool = False
    exit_code: int | None = None
    last_lines: list[str] = []
    rows: list[dict[str, int | float | str]] = []


class Healing(BaseModel):
    """The state of recovery: past events, the resulting batch schedule, and settings needed to fit into memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_schedule: BatchSchedule = BatchSchedule()
    # The user's values of the fields of `instead` and of SHARING: once one of them changes, `instead` no longer applies
    asked: dict[str, Any] = {}
    instead: dict[str, Any] = {}  # runtime.pretrain settings that save memory
    events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Healing:
        """The state that an earlier run left, or a fresh one."""
        return cls.model_validate_json(path.read_text()) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Write it atomically."""
        draft = path.with_suffix(".draft")
        draft.write_text(self.model_dump_json(indent=1))
        flush(draft)
        draft.rename(path)
        flush(path.parent)

    def runtime(self, runtime: Runtime) -> Runtime:
        """The user's runtime, with `instead` applied as long as the settings that led to it are unchanged."""
        if any(attrgetter(path)(runtime) != value for path, value in self.asked.items()):
            return runtime
        return runtime.with_changes("pretrain", **self.instead)


@dataclass(frozen=True)
class Situation:
    """The facts known when a fault occurs."""

    config: HealingConfig
    samples: Callable[[int], int]  # in the first N batches
    runtime: Runtime  # as the user set it
    checkpoints: Sequence[int]  # steps of the complete ones, in order
    ranks: int = 0  # processes that joined, 0 if they never did
    reached: int = 0  # the last step reported
    shardable: bool = True  # whether its engine, or fsdp in place of ddp, can shard it: see `check.check_special`
    share: int = 0  # sequences of a step on each rank, 0 while no engine is open
    micro_batch: int = 0


class Decision(NamedTuple):
    """The new state, and the checkpoint to resume from (later ones are removed) or the error to stop with."""

    healing: Healing
    checkpoint: int
    error: TrainingError | None = None


def without_damaged(healing: Healing, step: int, sound: int, damage: str) -> Healing:
    """The state after a damaged checkpoint was dropped in favour of the `sound` one before it."""
    event = Event(time=_now(), kind="damaged checkpoint", step=step, checkpoint=sound, what=damage, action="dropped")
    return _after(healing, event)


def decide(healing: Healing, error: Divergence | OutOfMemory | LostProcess, now: Situation) -> Decision:
    """Decide about a fault, which is also the last event of the new state."""
    if isinstance(error, Divergence):
        return _diverged(healing, error, now)
    if isinstance(error, OutOfMemory):
        return _out_of_memory(healing, error, now)
    return _lost(healing, error, now)


def _diverged(healing: Healing, error: Divergence, now: Situation) -> Decision:
    step = int(error.facts["step"])
    chain = _chain(healing.events, step, now.config.again_within)
    checkpoint, first = _rollback(now, step, now.config.skip_batches * (len(chain) + 1))
    if len(chain) >= STRIKES - 1 or not now.config.enabled:
        event = _event("divergence", step, checkpoint, error, "stopped", stopped=True)
        final = _diagnosis(healing, error, now, chain) if now.config.enabled else _copied(error)
        return Decision(_after(healing, event), checkpoint, final)
    # Steps and batches differ once a batch was skipped: the schedule so far says what these steps trained on
    skipped = (healing.batch_schedule.batch(first), healing.batch_schedule.batch(step))
    action = f"skipped {_batches_text(skipped, now.samples)}"
    batch_schedule = healing.batch_schedule.without(first, step)
    if chain:
        batch_schedule = batch_schedule.slower(first, now.config.rate_factor)
        action += f"; learning rate × {now.config.rate_factor:g} from step {first:,} on"
    event = _event("divergence", step, checkpoint, error, action)
    return Decision(_after(healing, event, batch_schedule=batch_schedule), checkpoint)


def _rollback(now: Situation, step: int, span: int) -> tuple[int, int]:
    """The checkpoint to roll back to after a fault at `step`, and the first step to train on another batch: the first
    of the last `span` steps. Only if no checkpoint is old enough does that step depend on the checkpoints, and so on
    the runtime.
    """
    first = max(1, step - span + 1)
    older = [checkpoint for checkpoint in now.checkpoints if checkpoint < step]
    if not older:
        return 0, first
    # The newest from before the batches to skip, else the oldest kept: then fewer batches are skipped
    checkpoint = max((checkpoint for checkpoint in older if checkpoint < first), default=older[0])
    return checkpoint, max(first, checkpoint + 1)


def _chain(events: Sequence[Event], step: int, within: int) -> list[Event]:
    """The earlier divergences that one at `step` repeats, in order: each soon after the previous one."""
    chain: list[Event] = []
    for event in reversed([event for event in events if event.kind == "divergence"]):
        if step - event.step > within:
            break
        chain.insert(0, event)
        step = event.step
    return chain


def _diagnosis(healing: Healing, error: Divergence, now: Situation, chain: Sequence[Event]) -> Divergence:
    rows = error.facts.get("rows", [])
    losses, norms = (
        ", ".join(_short(row.get(name)) for row in rows) or "unknown" for name in ("loss", "gradient_norm")
    )
    skipped = "; ".join(_batches_text(run, now.samples) for run in healing.batch_schedule.skipped)
    before = " and ".join(f"{event.step:,}" for event in chain[-2:])
    rate = _short(rows[-1].get("learning_rate")) if rows else "less than the profile's"
    return Divergence(
        f"{error.message} It is the third divergence in a row (before: at {before}), though the run skipped "
        f"{skipped} and lowered its learning rate to {rate}. Last losses: {losses}. Last gradient norms: {norms}.",
        "Halve pretrain.learning_rate (pretrain.muon_learning_rate too, if set), lower pretrain.gradient_clip, or "
        "lengthen pretrain.warmup_steps, and run again from scratch. If only the losses are unusual and not the norms, "
        "inspect those samples, or raise pretrain.healing.spike_deviations.",
        **error.facts,
    )


def _out_of_memory(healing: Healing, error: OutOfMemory, now: Situation) -> Decision:
    runtime = healing.runtime(now.runtime)
    checkpoint = now.checkpoints[-1] if now.checkpoints else 0
    change = _less_memory(runtime.pretrain, now)
    if change is None:
        message = f"{error.message} Every setting that saves memory without changing the result is in use already."
        remedy = (
            "Train on more processes (runtime.training.processes), over which runtime.pretrain.engine fsdp, or "
            "deepspeed with zero_stage 3, shards the weights. Or make the model or its context smaller "
            "(pretrain.model)."
        )
        event = _event("out of memory", now.reached, checkpoint, error, "stopped", stopped=True)
        return Decision(_after(healing, event), checkpoint, OutOfMemory(message, remedy, **error.facts))
    name, value, was = change
    kept = healing.instead if runtime is not now.runtime else {}  # unless the user's settings have changed since
    instead = {**kept, name: value}
    paths = (*(f"pretrain.{field}" for field in instead), *SHARING)
    asked = {path: attrgetter(path)(now.runtime) for path in paths}
    event = _event("out of memory", now.reached, checkpoint, error, f"{name} {value} instead of {was}")
    return Decision(_after(healing, event, asked=asked, instead=instead), checkpoint)


def _less_memory(runtime: PretrainRuntime, now: Situation) -> tuple[str, int | str, int | str] | None:
    """The next setting to change: its name, new value, old value. None when nothing is left to change."""
    if now.micro_batch > 1:  # the next smaller one that divides the rank's share of the batch
        smaller = next(size for size in range(now.micro_batch // 2, 0, -1) if now.share % size == 0)
        return "micro_batch", smaller, now.micro_batch
    if now.micro_batch:  # the model fits, but not a forward and backward pass
        if runtime.recompute == "none":
            return "recompute", "selective", "none"
        if runtime.recompute == "selective":
            return "recompute", "full", "selective"
    if now.ranks > 1 and now.shardable and runtime.engine == "ddp" and runtime.pipeline_parallel == 1:
        return "engine", "fsdp", "ddp"  # fsdp can load ddp's checkpoints
    # DeepSpeed trains by Muon only at stage 0
    sharded = runtime.zero_stage > 0 or (now.shardable and runtime.engine != "ddp")
    if now.ranks > 1 and sharded and runtime.zero_stage < LARGEST_ZERO_STAGE:
        stage = LARGEST_ZERO_STAGE if runtime.engine == "fsdp" else runtime.zero_stage + 1
        return "zero_stage", stage, runtime.zero_stage
    return None


def _lost(healing: Healing, error: LostProcess, now: Situation) -> Decision:
    checkpoint = now.checkpoints[-1] if now.checkpoints else 0
    restarts = 0  # in a row, and without progress: a new checkpoint gives the run all its restarts again
    for event in reversed(healing.events):
        if event.kind != "lost process" or event.checkpoint != checkpoint or event.stopped:
            break
        restarts += 1
    if restarts >= now.runtime.pretrain.restarts:
        final = _copied(error)
        if restarts:
            final.message = f"Restarted {restarts} times from step {checkpoint:,}: {error.message}"
        event = _event("lost process", now.reached, checkpoint, error, "stopped", stopped=True)
        return Decision(_after(healing, event), checkpoint, final)
    event = _event("lost process", now.reached, checkpoint, error, "restarted")
    return Decision(_after(healing, event), checkpoint)


def _event(kind: Kind, step: int, checkpoint: int, error: TrainingError, action: str, stopped: bool = False) -> Event:
    rows = [  # JSON has neither NaN nor infinity
        {name: value if abs(value) < float("inf") else str(value) for name, value in row.items()}
        for row in error.facts.get("rows", [])
    ]
    return Event(
        time=_now(),
        kind=kind,
        step=step,
        checkpoint=checkpoint,
        what=error.message.splitlines()[0].rstrip(":."),
        action=action,
        stopped=stopped,
        exit_code=error.facts.get("exit_code"),
        last_lines=error.facts.get("last_lines", []),
        rows=rows,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _copied(error: Error) -> Error:
    """A copy of the error, to raise from it."""
    return type(error)(error.message, error.remedy, **error.facts)


def _after(healing: Healing, event: Event, **changes: Any) -> Healing:
    return healing.model_copy(update={**changes, "events": (*healing.events, event)})


def _batches_text(batches: tuple[int, int], samples: Callable[[int], int]) -> str:
    first, last = batches
    number = f"batch {first:,}" if first == last else f"batches {first:,} to {last:,}"
    return f"{number} (samples {samples(first - 1):,} to {samples(last) - 1:,})"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
